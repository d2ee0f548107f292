"""Whether a step fits: tried before a run, and advised where memory did not suffice."""
