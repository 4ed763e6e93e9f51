"""Bits for the weights of each layer: the cheapest plan whose outputs keep a bound."""
