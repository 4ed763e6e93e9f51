"""What a budget file asks for, and how it is read."""
