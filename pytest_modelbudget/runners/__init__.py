"""What runs elsewhere: golden outputs, commands as second sides of claims, models on the clock, and git."""
