"""Files that are complete or absent: cache, checkpoints, saved model folders."""
