"""Plans of bits for layers, and the trials that they rest on."""
