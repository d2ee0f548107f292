"""Predictions of saved models for rows without labels."""
