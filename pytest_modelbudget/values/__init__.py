"""Values on the way and stored ones: their statistics, and what a budget holds of them."""
