"""Answers of saved models to rows without labels."""
