"""Losses: of training and of validations, exact per label."""
