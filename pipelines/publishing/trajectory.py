"""The checkpoints of a run on the Hub, each on a branch that is named by the steps or the words seen so far."""

from pathlib import Path

from ..errors import UserError
from ..storage.checkpoints import check_intact, list_checkpoints, step_of
from ..storage.model_folder import open_model_folder
from .publish import files_to_publish, publish
from .run_facts import RunFacts


def publish_trajectory(
    folder: Path | str, repo_id: str, *, by: str = "steps", private: bool = False, license: str | None = None
) -> dict[str, str]:
    """Publish the checkpoints of a run, oldest first, as `publish` does: {branch: its URL}.

    AutoModel.from_pretrained(repo_id, revision="step-1000") loads one. Publishing again replaces the branches.

    by: steps, for branches such as step-1000; words, for 10M-words: words of the training text seen so far.

    Raises UserError: no checkpoint, a damaged one, or words that the run has not counted; and as `publish`.
    """
    run = open_model_folder(folder)
    checkpoints = list_checkpoints(run.path)[::-1]
    if not checkpoints:
        raise UserError(f"{folder} holds no checkpoint; training.save_total_limit says how many a run keeps")
    check_intact(checkpoints, "one of those to publish", "publishes the others")
    branches = dict(zip(branch_names(run.path, list(map(step_of, checkpoints)), by), checkpoints))
    facts = RunFacts.read(run.path)
    described = {branch: of_step(facts, step_of(checkpoint)) for branch, checkpoint in branches.items()}
    for checkpoint in checkpoints:
        files_to_publish(open_model_folder(checkpoint))
    options = {"private": private, "license": license, "code": run.code_files()}
    return {
        branch: publish(checkpoint, repo_id, revision=branch, facts=described[branch], **options)
        for branch, checkpoint in branches.items()
    }


def branch_names(folder: Path, steps: list[int], by: str) -> list[str]:
    """The branch of each checkpoint. Raises UserError where the run has not counted its words."""
    if by == "steps":
        return [f"step-{step}" for step in steps]
    run = RunFacts.read(folder).run
    train = (run.get("data") or {}).get("train") or {}
    if not train.get("words") or not train.get("rows") or not run.get("rows_per_step") or run.get("stages"):
        raise UserError(f"--trajectory words: {folder} does not say how many words its training text has; take steps")
    seen = [step * run["rows_per_step"] * train["words"] / train["rows"] for step in steps]
    for digits in range(3, 12):
        rounded = [f"{float(f'{number / 1e6:.{digits}g}'):f}" for number in seen]  # without an exponent
        names = [f"{number.rstrip('0').rstrip('.')}M-words" for number in rounded]
        if len(set(names)) == len(names):
            break
    return names


def of_step(facts: RunFacts, step: int) -> RunFacts:
    """The facts of a run after some steps, for the card: its recipe and data, and the validation at that step."""
    validation = next((each for each in facts.run.get("validations") or [] if each["step"] == step), {})
    metrics = {f"validation_{name}": value for name, value in validation.items() if name != "step"}
    run = {name: facts.run[name] for name in ("data", "versions", "seed", "world_size", "local") if name in facts.run}
    return RunFacts(facts.recipe_text, facts.recipe, run | {"steps": step, "metrics": metrics})
