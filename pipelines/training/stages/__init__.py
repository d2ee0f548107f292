"""Runs in stages (`stages` of a recipe), between which rows, lengths and learning rates change."""
