"""Checkpoints: the run folder, what a checkpoint holds, and going on from one."""
