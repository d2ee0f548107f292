"""Guards: checks of losses, gradients, progress and signals while a run trains."""
