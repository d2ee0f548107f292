"""Checks whether a model keeps the laws, on a tiny twin of it."""
