"""Engines: how several processes share model, rows and checkpoints."""
