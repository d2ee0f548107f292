"""Training: the run, the trainer and its parts, arguments, optimizers, the run folder."""
