"""The best checkpoint of a run: that of the step with the best validation metric."""

from pathlib import Path

from transformers import TrainerState


def find_checkpoint(run_folder: str | Path, step: int | None) -> Path | None:
    """The checkpoint of a step, where it exists."""
    folder = Path(run_folder) / f"checkpoint-{step}"
    return folder if step and folder.is_dir() else None


def locate_best(state: TrainerState, run_folder: str | Path) -> bool:
    """Correct the path of the best checkpoint in `state`; False, with a line for the user, where it is gone.

    Its step is looked for, not the path in the state: a run's folder may have been moved.
    """
    best = find_checkpoint(run_folder, state.best_global_step)
    if best is None:
        print(f"anyformer: the best checkpoint (step {state.best_global_step}) is gone; the last model is kept")
        state.best_global_step = None
        return False
    state.best_model_checkpoint = str(best)
    return True
