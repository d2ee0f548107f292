"""Laws that a model keeps, asked of a tiny twin of it."""
