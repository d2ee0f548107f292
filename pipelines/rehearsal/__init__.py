"""A step of training, rehearsed by the run's own trainer as one rank of many, on tensors without values."""
