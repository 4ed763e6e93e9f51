"""Load → measure → judge; no pytest, no printing."""
