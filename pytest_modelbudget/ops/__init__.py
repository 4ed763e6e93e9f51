"""What each kind of operation costs: one file a family, one table over all of them."""
