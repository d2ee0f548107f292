"""Runs whose rows, lengths and rates change at borders (`stages` of a recipe)."""
