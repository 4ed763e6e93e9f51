"""Rewrites of other people's tools, clean and damaged, held as a budget holds them."""
