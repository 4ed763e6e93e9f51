"""Weights as integers on a grid."""
