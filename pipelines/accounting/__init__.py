"""Arithmetic over a model: parameters, FLOPs."""
