"""Whoever answers for a model, and the lists of them."""
