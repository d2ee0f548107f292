"""Checkpoints: the run folder, the contents of a checkpoint, and resuming from one."""
