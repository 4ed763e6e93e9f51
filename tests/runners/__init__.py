"""Second sides of a claim that compute elsewhere."""
