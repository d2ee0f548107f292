"""The facts about a run in the files of its folder: recipe, data, metrics and samples."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..adapters import weights_identity
from ..manifest import read_json
from ..plugins import OBJECTIVES
from ..recipes.row_words import Words
from ..recipes.secrets import without_signatures
from ..recipes.strict_yaml import format_yaml, parse_yaml
from ..storage.checkpoints import RUN_FILE
from ..storage.local_facts import path_name
from ..storage.record import Record, data_identity, of_its_model

SIZES = ("documents", "examples", "tokens", "bytes")  # of a split, as run.json names them
BUILT_IN = {
    "stdlib": "the Python standard library, sources and documentation",
    "stdlib_code": "the Python standard library, sources and documentation, without its tables of data",
}
# The most common values, for a recipe that names no registered objective.
UNKNOWN = SimpleNamespace(words=Words(), unused_weights=())


@dataclass(frozen=True)
class RunFacts:
    """What is known of the run that made a model; empty for a folder that no run of ours wrote."""

    recipe_text: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    suites: list[dict[str, Any]] = field(default_factory=list)  # the contents of evaluation-SUITE.json files
    left_out: list[str] = field(default_factory=list)  # sentences on results that are not of the model in the folder
    is_of_its_model: bool = True  # whether that model is the run's, so that the run's curves and pictures are of it

    @classmethod
    def read(cls, folder: Path) -> "RunFacts":
        """Facts from recipe.yaml and run.json; a checkpoint has both in one file.

        Raises UserError: one of the files is damaged.
        """
        run = {}
        for name in ("run.json", RUN_FILE):
            if (folder / name).is_file():
                run = read_json(folder / name, "delete it to go on")
                break
        run, left_out = of_its_model(folder, without_signatures(run) if isinstance(run, dict) else {})
        recipe_file, recipe = folder / "recipe.yaml", run.get("recipe") or {}
        text = format_yaml(recipe) if recipe else None
        if recipe_file.is_file():
            text = recipe_file.read_text(encoding="utf-8")
            saved = parse_yaml(text, str(recipe_file))
            recipe = without_signatures(saved)
            text = text if recipe == saved else format_yaml(recipe)
        is_of_its_model, suites = not left_out, _suites(folder, left_out)
        return cls(text, recipe if isinstance(recipe, dict) else {}, run, suites, left_out, is_of_its_model)

    def section(self, name: str) -> dict[str, Any]:
        """A section of the recipe, empty if the recipe has none of this name."""
        value = self.recipe.get(name)
        return value if isinstance(value, dict) else {}

    @property
    def base_model(self) -> str | None:
        """What the model was fine-tuned or converted from: a repository's id, or a folder."""
        return self.run.get("converted_from") or self.section("model").get("name_or_path")

    def is_on_hub(self, name: str) -> bool:
        """Whether a name is that of a repository on the Hub, and not of a folder of the machine that trained.

        Where the run does not say which names were folders, those that exist here count.
        """
        local = self.run.get("local")
        is_id = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name)
        is_folder = Path(name).exists() if local is None else name in local
        return bool(is_id) and not is_folder and not name.startswith("runs/")

    @property
    def sources(self) -> list[dict[str, Any]]:
        """The data sources of the run; a mixture is replaced by its sources."""
        return [source for data in self.data_sections for source in data.get("mixture") or [data]]

    @property
    def data_sections(self) -> list[dict[str, Any]]:
        """The recipe's data section and those of its parts."""
        learned = self.section("task") or self.section("objective")
        parts = [part.get("data") for part in learned.get("parts") or [] if isinstance(part, dict)]
        sections = [data for data in parts if data]
        if not sections or None in parts:
            sections.insert(0, self.section("data"))
        return [data for data in sections if data]

    @property
    def source_names(self) -> str:
        """The data in words: the recipe's description, and the sources, such as `owner/corpus, split train`."""
        described = self.section("data").get("description")
        public = [source for source in self.sources if not source.get("files")]
        named = [described] if described else ["local data"] if len(public) < len(self.sources) else []
        names = "; ".join([*named, *filter(None, map(_source_name, public))])
        derived = dict.fromkeys(data["derive"] for data in self.data_sections if data.get("derive"))
        return f"{names} ({', '.join(derived)})" if derived else names

    @property
    def splits(self) -> dict[str, dict[str, Any]]:
        """The known sizes of each split: {"train": {"documents": 12, "tokens": 3456}}."""
        data = {split: of for split, of in (self.run.get("data") or {}).items() if isinstance(of, dict)}
        sizes = {split: {size: of[size] for size in SIZES if size in of} for split, of in data.items()}
        return {split: of for split, of in sizes.items() if of}

    @property
    def metrics(self) -> list[tuple[str, str, float]]:
        """run.json's {"validation_loss": 1.2} as rows (split, metric, value)."""
        rows = []
        for name, value in (self.run.get("metrics") or {}).items():
            split, _, metric = name.partition("_")
            if isinstance(value, int | float) and metric:
                rows.append((split, metric, float(value)))
        return rows

    @property
    def suite_metrics(self) -> list[tuple[str, str, str, float]]:
        """The results of suites as rows (task, split, metric, value); for a task in two suites the last one counts."""
        rows = {}
        for suite in self.suites:
            for task, result in suite["tasks"].items():
                for metric, value in result["metrics"].items():
                    if value is not None:  # undefined, as the recall of a class without examples
                        rows[task, result["split"], metric] = float(value)
        return [(*key, value) for key, value in rows.items()]

    @property
    def samples(self) -> list[dict[str, str]]:
        return [s for s in self.run.get("samples") or [] if isinstance(s, dict) and s.get("text")]


def objective_facts(recipe: dict[str, Any]) -> Any:
    """The class of a saved recipe's objective or task, whose attributes are the facts; else UNKNOWN."""
    section = recipe.get("task") or recipe.get("objective")
    return (OBJECTIVES.get(section.get("name")) if isinstance(section, dict) else None) or UNKNOWN


def validated_on(run: dict[str, Any]) -> str:
    """`on 32 of 1,821 rows`: the rows that validations during training used; empty if all, or not known.

    run: the contents of run.json.
    """
    facts = (run.get("data") or {}).get("validation") or {}
    rows, used = facts.get("rows", facts.get("examples")), (run["recipe"].get("evaluation") or {}).get("max_rows")
    return f"on {used:,} of {rows:,} rows" if rows and used and used < rows else ""


def _suites(folder: Path, left_out: list[str]) -> list[dict[str, Any]]:
    """The results of suites that `anyformer evaluate` has written into a model's folder.

    left_out: gets a sentence for each suite with results of other weights or data than those of now, without which it
    is returned.
    """
    suites = []
    for file in sorted(folder.glob("evaluation-*.json")):
        result = read_json(file, "delete it to go on")
        if isinstance(result, dict) and "suite" in result and "models" not in result:  # of one model, not a comparison
            is_of = {name: _is_of(folder, task) for name, task in result["tasks"].items()}
            suites.append(result | {"tasks": {name: task for name, task in result["tasks"].items() if is_of[name]}})
            others = [name for name, is_so in is_of.items() if not is_so]
            if others:
                left_out.append(
                    f"{file.name}: {', '.join(others)} left out, measured on another model or other data than now; "
                    f"anyformer evaluate {folder} {result['suite']} measures again"
                )
    return suites


def _is_of(folder: Path, result: dict[str, Any]) -> bool:
    """Whether a result is of the model in a folder, and of the data that its recipe names now."""
    now = Record(weights_identity(folder), data_identity(result.get("recipe") or {}))
    return Record.of(result).differs_from(now) is None


def _source_name(source: dict[str, Any]) -> str | None:
    if source.get("source"):
        return BUILT_IN.get(source["source"], source["source"])
    if source.get("dataset"):
        words = (path_name(source["dataset"]), source.get("config_name"), f"split {source.get('split', 'train')}")
        return ", ".join(filter(None, words))
    return None
