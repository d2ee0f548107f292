"""Whether a step fits: tried before a run, chosen by training.auto_batch, and advised where memory did not suffice."""
