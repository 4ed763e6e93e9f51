"""Every metric: a pure function from a costed graph to one exact number."""
