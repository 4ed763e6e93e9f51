"""Language models in service: built from a configuration, and run with a cache on tensors without memory."""
