"""Second sides of a claim that compute elsewhere: golden outputs that a file has, and commands that run a model."""
