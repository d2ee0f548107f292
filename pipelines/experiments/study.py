"""A study: several runs that answer one question, each made unless it is finished, then one table and one page.

Seeds (seeds.py) vary the seed; a ladder (ladder.py) varies width and steps, and scaling.py fits a law to its runs; a
step of a story (story.py) comes after another; a sweep (sweep.py) is of combinations of settings.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..plugins import loaded_plugins
from ..recipes.schema import Recipe
from ..recipes.usual_rates import settled
from ..storage.checkpoints import set_aside
from ..storage.record import Record, data_identity

READ = ("fingerprint", "validated_on")  # of the facts of a run's data: what it trains on, what its validations measure


@dataclass
class Member:
    """A run of a study, or the measurement of a saved `model`, where nothing is trained.

    settings: what it adds to the study's recipe. values: what it varies, for tables. recipe: what is trained, or with
    which the model is measured; None where a command of its own composes it. after: the member from whose model it
    begins; planned: its recipe as long as that model does not exist. result: the file of a measurement, of at most
    `most` examples. state: waiting, running, finished, or why it failed.
    """

    name: str
    folder: Path = Path()
    settings: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    recipe: Recipe | None = None
    after: "Member | None" = None
    planned: Recipe | None = None
    model: str | None = None
    result: Path | None = None
    most: int | None = None
    state: str = "waiting"
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """What it leaves when it is finished."""
        return self.result or self.folder / "run.json"

    @property
    def log(self) -> Path:
        """The output of its command, where it has a process of its own."""
        return self.folder.parent / f"{self.folder.name}.log"

    def read(self) -> None:
        """Read what it has come to."""
        result = json.loads(self.file.read_text(encoding="utf-8"))
        self.state = "finished"
        self.metrics = {name: value for name, value in result["metrics"].items() if value is not None}
        if self.model is None:
            self.facts = {name: result.get(name) for name in ("steps", "wall_seconds", "parameters")}
        else:
            self.facts = {"examples": result["examples"], "wall_seconds": result["seconds"]}


def kept(member: Member, read: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The result of a member that is finished and of its recipe, data, weights and code; None: it is to be made.

    read: facts of the data that a run must have read; None: their files are compared, the rest is left to `train`.
    """
    try:
        result = json.loads(member.file.read_text(encoding="utf-8"))
        settings = member.recipe.to_dict()
        if member.model is None:
            is_of = result["status"] == "finished" and is_run_of(member, result, read)
            now = Record.of_run(member.folder, data_identity(settings))
        else:
            is_of = result["max_examples"] == member.most
            now = Record.now(member.model, settings | {"settings": None})
    except (OSError, ValueError, KeyError, TypeError, UserError):  # missing or damaged; its command says what is wrong
        return None
    return result if is_of and Record.of(result).differs_from(now) is None else None


def is_run_of(member: Member, run: dict[str, Any], read: dict[str, Any] | None) -> bool:
    """Whether a run began as this member would: with its recipe, the weights it begins from, and these plug-ins."""
    from ..accounting.lora import with_base
    from ..data.rows import steps_of_epoch
    from ..training.checkpoints.same_run import resume_difference

    data = run["data"]["train"]
    per_epoch = steps_of_epoch(data.get("rows", data.get("examples", math.inf)), run["rows_per_step"])
    if resume_difference(run["recipe"], settled(with_base(member.recipe), per_epoch).to_dict()) is not None:
        return False
    if read is not None and any(run["data"].get(name) != read.get(name) for name in READ):
        return False
    if begins_from_others(member, run):
        return False
    code = {plugin.get("sha256") for plugin in loaded_plugins()}
    return all(plugin.get("sha256") in code for plugin in run.get("plugins", []))


def begins_from_others(member: Member, run: dict[str, Any]) -> bool:
    """Whether the model that a member begins from has other weights now than its run began from."""
    base = member.recipe.model.name_or_path
    if base is None or not Path(base).expanduser().is_dir():
        return False
    return Record(run["data"].get("base_weights")).differs_from(Record.of_run(Path(base))) is not None


def set_stale_aside(member: Member) -> None:
    """Rename the folder of a member that began from other weights than those that the one before it has now."""
    from ..training.checkpoints.run_folder import stored_run

    run = stored_run(member.folder)
    if run is not None and begins_from_others(member, run):
        print(
            f"step {member.name} began from other weights than {member.recipe.model.name_or_path} has now and is made "
            f"again; what was made is in {set_aside(member.folder)}"
        )


@dataclass
class Study:
    """Runs that answer one question.

    folder: of theirs, their table and their page. noun: what a run is called in the line before it; "": there is none.
    quiet: as of `train`. page: written of those made so far after each run. report: called with the study in the end.
    """

    folder: Path
    members: list[Member]
    noun: str = ""
    quiet: bool = False
    page: str | None = None
    report: "Callable[[Study], None]" = lambda study: None

    def make(self, runner) -> int:
        """Make the members; returns 0, or the exit code of the one that was stopped, 128 + n of signal n.

        runner: Here, which raises the error of a member, or Workers, which report it and make the others.
        """
        members = self.to_make()
        while runner.has_room() and (member := next(members, None)) is not None:
            runner.start(member)
        return runner.end()

    def to_make(self) -> Iterator[Member]:
        """The members in their order, the next one asked for when there is room for it."""
        return iter(self.members)

    def train(self, *, dry_run: bool = False) -> int:
        """Train the members in this process, or go on, and report; returns and raises as `train`."""
        runner = Here(self, dry_run)
        code = self.make(runner)
        if runner.writes and not code:
            self.report(self)
        return code


class Here:
    """Trains members one after the other in this process, and in those that a launcher has started with it.

    dry_run: each is tried, as `train` does it, by its `planned` recipe where it has one.
    """

    def __init__(self, study: Study, dry_run: bool):
        self.study, self.dry_run, self.code = study, dry_run, 0
        self.is_main = os.environ.get("RANK", "0") == "0"
        self.writes = self.is_main and not dry_run
        self.made: list[Member] = []

    def has_room(self) -> bool:
        return not self.code

    def start(self, member: Member) -> None:
        """Train the member, or go on; raises UserError as `train`."""
        from ..reporting.comparison import compare_runs
        from ..training.run import train

        study = self.study
        if self.writes and member.after is not None:
            set_stale_aside(member)
        is_done = self.writes and bool(study.noun) and kept(member) is not None
        self.made.append(member)
        if self.is_main and study.noun:
            line = f"{study.noun} {len(self.made)} of {len(study.members)}: {member.name}, in {member.folder}"
            print(f"{line}: finished before" if is_done else line, flush=True)
        recipe = member.planned if self.dry_run and member.planned is not None else member.recipe
        self.code = train(recipe, dry_run=self.dry_run, quiet=study.quiet or is_done)
        if self.writes and not self.code:
            member.read()
            if study.page is not None:
                compare_runs([one.folder for one in self.made], study.folder / study.page)

    def end(self) -> int:
        return self.code
