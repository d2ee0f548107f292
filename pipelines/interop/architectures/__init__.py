"""One file per architecture: its fields and weights, native and ours, as data."""
