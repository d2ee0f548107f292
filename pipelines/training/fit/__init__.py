"""Whether a step fits into memory: the dry run, and advice after an out-of-memory error."""
