"""How each model format becomes a graph."""
