"""Models of other packages, measured and counted a second time."""
