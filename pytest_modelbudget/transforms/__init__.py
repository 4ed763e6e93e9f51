"""Changes to models: what they cost, and whether the outputs are still the same."""
