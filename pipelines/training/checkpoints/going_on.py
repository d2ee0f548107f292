"""The checkpoint from which a run is resumed."""

from pathlib import Path

from ...errors import UserError
from ...recipes.compose import LEFT_OPEN
from ...recipes.schema import Recipe
from ...storage.ownership import find_foreign
from ..engines.elastic import check_engine_of
from .run_folder import stored_run


def with_values_of_run(recipe: Recipe) -> Recipe:
    """The recipe, with the stored run's values where both leave a setting open: versions may have other defaults."""
    stored = stored_run(Path(recipe.training.output_dir)) or {}
    both = {name for name in LEFT_OPEN if f"training.{name}" in stored.get("chosen", {}).keys() & recipe.chosen.keys()}
    values = {name: stored["recipe"]["training"][name] for name in LEFT_OPEN if name in both}
    chosen = recipe.chosen | {f"training.{name}": "as the run began with" for name in values}
    return recipe.with_(training=values, chosen=chosen)


def checkpoint_to_go_on(session, trusted: bool) -> Path | None:
    """The checkpoint that a session resumes, None for a new run; raises UserError for one that it must not read.

    trusted: whether its files may hold more than plain data.
    """
    checkpoint, engine = session.folder.checkpoint_to_resume(), session.engine
    if checkpoint is None:
        return None
    check_engine_of(checkpoint, engine)
    if engine.parallelism is not None and engine.parallelism.sp > 1:
        raise UserError(
            f"{checkpoint} is of a run with sp, whose loader cannot begin in the middle of the rows; begin from its "
            f"weights in another output_dir, by model.name_or_path={checkpoint}"
        )
    if engine.reads_pickles:
        check_own(checkpoint, session.recipe)
    return engine.resumable(checkpoint, session.arguments.world_size, trusted)


def check_own(checkpoint: Path, recipe: Recipe) -> None:
    """Raise UserError if a sharded checkpoint, which is read with pickle, belongs to another user.

    The checksums of its files have been verified by its manifest before.
    """
    foreign = None if recipe.trust_remote_code else find_foreign(checkpoint)
    if foreign is not None:
        raise UserError(
            f"{checkpoint}: {foreign}, and resuming under DeepSpeed or FSDP runs whatever code its files hold; if you "
            f"trust them, make a copy of your own and resume that, or add --trust-remote-code"
        )
