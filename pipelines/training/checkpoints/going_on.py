"""The checkpoint that a run goes on from."""

from dataclasses import replace
from pathlib import Path

from ...errors import UserError
from ...recipes.compose import LEFT_OPEN
from ...recipes.schema import Recipe
from ...storage.ownership import find_foreign
from ..engines.elastic import check_engine_of
from .run_folder import stored_run


def with_values_of_run(recipe: Recipe) -> Recipe:
    """The recipe with what the run in output_dir has where both leave it open: versions may find other values usual."""
    stored = stored_run(Path(recipe.training.output_dir)) or {}
    both = {name for name in LEFT_OPEN if f"training.{name}" in stored.get("chosen", {}).keys() & recipe.chosen.keys()}
    kept = {name: stored["recipe"]["training"][name] for name in LEFT_OPEN if name in both}
    chosen = recipe.chosen | {f"training.{name}": "as the run began with" for name in kept}
    return replace(recipe, training=replace(recipe.training, **kept), chosen=chosen) if kept else recipe


def checkpoint_to_go_on(session, trusted: bool) -> Path | None:
    """The checkpoint that a session goes on from, None where it begins; raises UserError for one it must not read.

    trusted: whether its files may hold more than plain data.
    """
    found, engine = session.folder.checkpoint_to_resume(), session.engine
    if found is None:
        return None
    check_engine_of(found, engine)
    if engine.parallelism is not None and engine.parallelism.sp > 1:
        raise UserError(
            f"{found} is of a run with sp, whose loader cannot begin in the middle of the rows; begin from its weights "
            f"in another output_dir, by model.name_or_path={found}"
        )
    if engine.reads_pickles:
        check_own(found, session.recipe)
    return engine.resumable(found, session.arguments.world_size, trusted)


def check_own(checkpoint: Path, recipe: Recipe) -> None:
    """Raise UserError where a sharded checkpoint, which is read with pickle, is not this user's own.

    Its files are those of its manifest, whose checksums have been verified.
    """
    foreign = None if recipe.trust_remote_code else find_foreign(checkpoint)
    if foreign is not None:
        raise UserError(
            f"{checkpoint}: {foreign}, and resuming under DeepSpeed or FSDP runs whatever code its files hold; if you "
            f"trust them, make a copy of your own and resume that, or add --trust-remote-code"
        )
