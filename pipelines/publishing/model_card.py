"""The model card: README.md of a model folder, written from the files in the folder and from nothing else.

What is not known is left out, so the card of a folder from plain `save_pretrained` is short, never invented.
"""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..recipes.strict_yaml import format_yaml, parse_yaml
from ..storage.checkpoints import RUN_FILE, write_atomically
from ..storage.model_folder import ModelFolder, open_model_folder

MARKER = "<!-- anyformer wrote this card and will write it again; delete this line to keep changes of yours -->"

PICTURE = "completions.png"  # of a model of pixels
# (label in the architecture table, how it is read from config.json); rows without a value are left out
ARCHITECTURE = [
    ("layers", lambda c: c.get("num_hidden_layers")),
    ("width", lambda c: c.get("hidden_size")),
    ("attention heads", lambda c: c.get("num_attention_heads")),
    ("key/value heads", lambda c: c.get("num_key_value_heads")),
    ("head size", lambda c: c.get("head_dim")),
    ("feed-forward", lambda c: _words(c.get("mlp_type"), c.get("hidden_act"), _number(c.get("intermediate_size")))),
    ("norm", lambda c: _words(c.get("norm_type"), c.get("norm_position") and f"{c['norm_position']}-norm")),
    ("positions", lambda c: c.get("position_encoding")),
    (
        "rotary",
        lambda c: _rotary(c.get("rope_parameters")) if c.get("position_encoding", "rotary") == "rotary" else None,
    ),
    ("images", lambda c: _words(_sides(c.get("image_size")), f"{c.get('num_channels')} channel(s)")),
    ("patches", lambda c: _sides(c.get("patch_size"))),
    ("context", lambda c: _number(c.get("max_position_embeddings"), " tokens")),
    ("vocabulary", lambda c: c.get("vocab_size")),
    ("tied embeddings", lambda c: {True: "yes", False: "no"}.get(c.get("tie_word_embeddings"))),
    (
        "classes",
        lambda c: ", ".join(c.get("id2label", {}).values()) if _kind(c).head.endswith("Classification") else None,
    ),
    ("stored as", lambda c: c.get("dtype")),
]


@dataclass(frozen=True)
class Kind:
    """What a model with this head is for. head: end of its class's name; task: the Hub's name of it."""

    head: str
    words: str
    auto_class: str = "AutoModel"
    task: str | None = None


KINDS = (
    Kind("ForCausalLM", "causal language model", "AutoModelForCausalLM", "text-generation"),
    Kind("LMHeadModel", "causal language model", "AutoModelForCausalLM", "text-generation"),
    Kind("ForMaskedLM", "masked language model", "AutoModelForMaskedLM", "fill-mask"),
    Kind("ForSequenceClassification", "text classifier", "AutoModelForSequenceClassification", "text-classification"),
    Kind("ForImageClassification", "image classifier", "AutoModelForImageClassification", "image-classification"),
    Kind("ForMaskedImageModeling", "masked image model", "AutoModelForMaskedImageModeling", "image-feature-extraction"),
    Kind("ForConditionalGeneration", "sequence-to-sequence model", "AutoModelForSeq2SeqLM"),
    Kind("MTModel", "sequence-to-sequence model", "AutoModelForSeq2SeqLM"),
)


PIXELS = Kind("ForCausalLM", "model of images as rows of pixels", "AutoModelForCausalLM")


def _kind(config: dict[str, Any]) -> Kind:
    names = config.get("architectures") or []
    if config.get("output_vocab_size") and any(name.endswith(PIXELS.head) for name in names):
        return PIXELS
    return next((kind for kind in KINDS if any(n.endswith(kind.head) for n in names)), Kind("", "transformer"))


@dataclass(frozen=True)
class RunFacts:
    """What is known of the run that made a model; empty for a folder that no run of ours wrote."""

    recipe_text: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "RunFacts":
        """Facts from recipe.yaml and run.json; a checkpoint has both in one file."""
        run = {}
        for name in ("run.json", RUN_FILE):
            if (folder / name).is_file():
                try:
                    run = json.loads((folder / name).read_text(encoding="utf-8"))
                except ValueError as error:
                    raise UserError(f"{folder / name} is not readable as JSON ({error}); delete it to go on") from error
                break
        run = run if isinstance(run, dict) else {}
        recipe_file, recipe = folder / "recipe.yaml", run.get("recipe") or {}
        text = format_yaml(recipe) if recipe else None
        if recipe_file.is_file():
            text = recipe_file.read_text(encoding="utf-8")
            recipe = parse_yaml(text, str(recipe_file))
        return cls(text, recipe if isinstance(recipe, dict) else {}, run)

    def section(self, name: str) -> dict[str, Any]:
        """A section of the recipe, empty where it is not there."""
        value = self.recipe.get(name)
        return value if isinstance(value, dict) else {}


def write_model_card(
    folder: Path | str, *, repo_id: str | None = None, license: str | None = None, facts: RunFacts | None = None
) -> Path:
    """Write README.md of a saved model and return its path.

    A README.md that a person wrote or changed (one without our marker) is kept, and a line says so.

    Args:
        repo_id: repository the loading examples name; None: the folder.
        license: licence of the weights; None: the recipe's `publish.license`, else none is named.
        facts: what is known of the run; None: read from the folder's recipe.yaml and run.json.

    Raises:
        UserError: `folder` holds no saved model, or a file in it is damaged.
    """
    model = open_model_folder(folder)
    card = model.path / "README.md"
    if is_own_card(card):
        write_atomically(card, render_model_card(model, repo_id=repo_id, license=license, facts=facts))
    else:
        print(f"{card} was not written by anyformer, or changed by hand; it is kept as it is")
    return card


def is_own_card(card: Path) -> bool:
    """Whether we may write this file: it does not exist, or it is a card of ours."""
    return not card.exists() or MARKER in card.read_text(encoding="utf-8", errors="replace")


def render_model_card(
    model: ModelFolder, *, repo_id: str | None = None, license: str | None = None, facts: RunFacts | None = None
) -> str:
    """Return the card's text; arguments as in `write_model_card`."""
    facts = RunFacts.read(model.path) if facts is None else facts
    name = (repo_id or model.path.resolve().name).rsplit("/", 1)[-1]
    license = license or facts.section("publish").get("license")
    sections = [
        f"---\n{_front_matter(model, facts, name, license)}\n---\n\n{MARKER}",
        f"# {name}\n\n{_description(model, facts)}",
        _architecture(model),
        _recipe(facts),
        _data(facts),
        _results(facts),
        _samples(facts, PICTURE if (model.path / PICTURE).is_file() else None),
        _loading(model, repo_id),
        _environment(facts),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


# ---- sections


def _front_matter(model: ModelFolder, facts: RunFacts, name: str, license: str | None) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    source, task = _hub_dataset(facts), _hub_task(model, facts)
    scores = [
        EvalResult(
            task_type=task or "other",
            dataset_type=source or "custom",
            dataset_name=source or _source_names(facts) or "custom",
            dataset_split=split,
            metric_type=metric,
            metric_name=metric.replace("_", " "),
            metric_value=round(value, 6),
        )
        for split, metric, value in _metrics(facts)
        if math.isfinite(value) and not metric.startswith("unigram")
    ]
    family = [model.config["model_type"].removeprefix("anyformer_")] if "model_type" in model.config else []
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        license=license,
        datasets=_hub_datasets(facts) or None,
        metrics=sorted({score.metric_type for score in scores} - {"loss", "word_perplexity"}) or None,
        tags=["anyformer", *family],
        model_name=name if scores else None,
        eval_results=scores or None,
    )
    return data.to_yaml()


def _description(model: ModelFolder, facts: RunFacts) -> str:
    text = f"A {_kind(model.config).words} with {model.parameter_count():,} parameters"
    if facts.recipe.get("name"):
        text += f", trained with anyformer's recipe `{facts.recipe['name']}`"
    if facts.recipe.get("description"):
        text += f" ({facts.recipe['description']})"
    steps, seconds = facts.run.get("steps"), facts.run.get("wall_seconds")
    if steps is not None:
        text += f". {steps:,} optimizer steps"
        text += f" on {facts.run['world_size']} process(es)" if "world_size" in facts.run else ""
        text += f", {seconds:,.0f} seconds" if seconds is not None else ""
    return text + "."


def _architecture(model: ModelFolder) -> str:
    family = str(model.config.get("model_type", "unknown"))
    rows = [
        ("family", family.removeprefix("anyformer_")),
        ("class", ", ".join(model.config.get("architectures") or [])),
    ]
    rows.append(("parameters", model.parameter_count()))
    rows += [(label, read(model.config)) for label, read in ARCHITECTURE]
    return "## Architecture\n\n" + _table(("", ""), [row for row in rows if row[1] not in (None, "")])


def _recipe(facts: RunFacts) -> str:
    if not facts.recipe_text:
        return ""
    return (
        "## Training recipe\n\nEvery setting of the run. Saved as `recipe.yaml`, `anyformer train recipe.yaml` runs it "
        f"again.\n\n{_fenced(facts.recipe_text, 'yaml')}"
    )


def _data(facts: RunFacts) -> str:
    data = facts.run.get("data") or {}
    sizes = [name for name in ("documents", "examples", "tokens", "bytes") if any(name in of for of in data_of(data))]
    splits = {split: of for split, of in data.items() if isinstance(of, dict)}
    rows = [(split, *(of.get(size) for size in sizes)) for split, of in splits.items() if any(s in of for s in sizes)]
    parts = []
    if _source_names(facts):
        parts.append(f"Source: {_source_names(facts)}.")
    if rows:
        parts.append(_table(("split", *sizes), rows))
    if "fingerprint" in data:
        parts.append(f"Fingerprint of the data: `{data['fingerprint']}`.")
    return "\n\n".join(["## Data", *parts]) if parts else ""


def data_of(data: dict) -> list[dict]:
    """What is known of each split."""
    return [of for of in data.values() if isinstance(of, dict)]


def _results(facts: RunFacts) -> str:
    rows = [(split, metric.replace("_", " "), _score(value)) for split, metric, value in _metrics(facts)]
    if not rows:
        return ""
    unit = "example" if "classification" in facts.section("task").get("name", "") else "token"
    signatures = facts.run.get("signatures") or {}
    notes = "".join(f"\n\n{name}: `{signature}`" for name, signature in signatures.items())
    return f"## Results\n\nLoss in nats per {unit}.\n\n{_table(('split', 'metric', 'value'), rows)}{notes}"


def _samples(facts: RunFacts, picture: str | None) -> str:
    if picture is not None:
        words = "Upper half, completion by this model, original:"
        return f"## Samples\n\n{words}\n\n![completed images]({picture})"
    samples = [s for s in facts.run.get("samples") or [] if isinstance(s, dict) and s.get("text")]
    texts = [f"{s['prompt']}\n=> {s['text']}" if facts.section("task") else s["text"] for s in samples]
    return "\n\n".join(["## Samples", *(_fenced(text, "text") for text in texts)]) if samples else ""


def _loading(model: ModelFolder, repo_id: str | None) -> str:
    auto_class = _kind(model.config).auto_class
    tokenizer = (model.path / "tokenizer_config.json").is_file()
    if (model.path / "preprocessor_config.json").is_file():
        return _loading_of_images(model, auto_class, repo_id)
    name = repo_id or f"path/to/{model.path.resolve().name}"
    if not model.is_ours:
        return f"## How to load\n\n{_fenced(_example(auto_class, name, tokenizer, model.auto_map), 'python')}"
    remote = _fenced(_example(auto_class, name, tokenizer, True), "python")
    local = _fenced(_example(auto_class, name, tokenizer, False, first="import anyformer"), "python")
    return (
        f"## How to load\n\nWithout anyformer, with the code in this repository:\n\n{remote}\n\n"
        f"With anyformer installed, nothing but its own code runs:\n\n{local}"
    )


def _loading_of_images(model: ModelFolder, auto_class: str, repo_id: str | None) -> str:
    name, task = repo_id or f"path/to/{model.path.resolve().name}", _kind(model.config).task

    def example(trusted: str, first: list[str]) -> str:
        if task == "image-classification":
            lines = ["from transformers import pipeline", "", f'classifier = pipeline("{task}", "{name}"{trusted})']
            lines.append('print(classifier("your_image.png"))')
        else:
            lines = [f"from transformers import AutoImageProcessor, {auto_class}", ""]
            lines.append(f'model = {auto_class}.from_pretrained("{name}"{trusted})')
            lines.append(f'processor = AutoImageProcessor.from_pretrained("{name}"{trusted})')
        return _fenced("\n".join(first + lines), "python")

    if not model.is_ours:
        return f"## How to load\n\n{example('', [])}"
    return (
        f"## How to load\n\nWithout anyformer, with the code in this repository:\n\n"
        f"{example(', trust_remote_code=True', [])}\n\nWith anyformer installed, nothing but its own code runs:\n\n"
        f"{example('', ['import anyformer'])}"
    )


def _example(auto_class: str, name: str, tokenizer: bool, trust: bool, first: str | None = None) -> str:
    lines = [first] if first else []
    lines.append(f"from transformers import {auto_class}" + (", AutoTokenizer" if tokenizer else ""))
    trusted = ", trust_remote_code=True" if trust else ""
    lines += ["", f'model = {auto_class}.from_pretrained("{name}"{trusted})']
    if tokenizer:
        lines.append(f'tokenizer = AutoTokenizer.from_pretrained("{name}"{trusted})')
    if tokenizer and auto_class == "AutoModelForCausalLM":
        lines += [
            'inputs = tokenizer("Once upon a time", return_tensors="pt")',
            "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=32)[0]))",
        ]
    if tokenizer and auto_class == "AutoModelForSeq2SeqLM":
        lines += [
            'inputs = tokenizer("your text", return_tensors="pt")',
            "print(tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True))",
        ]
    tasks = {kind.auto_class: kind.task for kind in KINDS if kind.task not in (None, "text-generation")}
    if tokenizer and auto_class in tasks:
        mask = " {tokenizer.mask_token}" if auto_class == "AutoModelForMaskedLM" else ""
        lines[0 if not first else 1] += ", pipeline"
        text = f'f"your{mask} text"' if mask else '"your text"'
        lines.append(f'print(pipeline("{tasks[auto_class]}", model=model, tokenizer=tokenizer)({text}))')
    return "\n".join(lines)


def _environment(facts: RunFacts) -> str:
    rows = list((facts.run.get("versions") or {}).items())
    if "seed" in facts.run:
        rows.append(("seed", str(facts.run["seed"])))
    return f"## Environment\n\n{_table(('', ''), rows)}" if rows else ""


# ---- facts


def _hub_task(model: ModelFolder, facts: RunFacts) -> str | None:
    """The Hub's name of what the model is for: a head of texts from texts does not say, the recipe does."""
    return "translation" if facts.section("task").get("name") == "translation" else _kind(model.config).task


def _sources(facts: RunFacts) -> list[dict[str, Any]]:
    data = facts.section("data")
    return data.get("mixture") or ([data] if data else [])


def _hub_datasets(facts: RunFacts) -> list[str]:
    """Data sets with a Hub id; a folder that `load_dataset` reads is none."""
    named = [source.get("dataset") for source in _sources(facts)]
    return sorted({n for n in named if n and re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", n) and not Path(n).exists()})


def _hub_dataset(facts: RunFacts) -> str | None:
    """The Hub data set, where the run read exactly one source."""
    datasets = _hub_datasets(facts)
    return datasets[0] if len(_sources(facts)) == 1 and datasets else None


def _source_names(facts: RunFacts) -> str:
    return "; ".join(filter(None, (_source_name(source) for source in _sources(facts))))


def _source_name(source: dict[str, Any]) -> str | None:
    if source.get("source") == "stdlib":
        return "the Python standard library, sources and documentation"
    if source.get("dataset"):
        return _words(source["dataset"], source.get("config_name"), f"split {source.get('split', 'train')}")
    files = source.get("files")
    files = [files] if isinstance(files, str) else files or []
    return "local files " + ", ".join(Path(file).name for file in files) if files else None


def _metrics(facts: RunFacts) -> list[tuple[str, str, float]]:
    """run.json's {"validation_loss": 1.2} as rows (split, metric, value)."""
    rows = []
    for name, value in (facts.run.get("metrics") or {}).items():
        split, _, metric = name.partition("_")
        if isinstance(value, int | float) and metric:
            rows.append((split, metric, float(value)))
    return rows


# ---- text


def _rotary(rope: dict | None) -> str | None:
    if not rope or "rope_type" not in rope:
        return None
    return ", ".join([rope["rope_type"], *(f"{k}={v:g}" for k, v in rope.items() if isinstance(v, int | float))])


def _words(*parts: Any) -> str | None:
    """The parts that are known, in one line; None if the first is not."""
    return ", ".join(str(p) for p in parts if p is not None) if parts[0] is not None else None


def _sides(size: Any) -> str | None:
    """`28 x 28 pixels` of a number or a pair; None of None."""
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    return f"{height} x {width} pixels"


def _number(value: Any, unit: str = "") -> str | None:
    return f"{value:,}{unit}" if isinstance(value, int) and not isinstance(value, bool) else None


def _score(value: float) -> str:
    return f"{value:.4f}" if value < 100 else f"{value:,.1f}"


def _table(header: tuple[str, ...], rows: list[tuple]) -> str:
    def line(cells):
        # A bar inside a cell would end it.
        texts = ("" if c is None else _number(c) or str(c).replace("|", "\\|").replace("\n", " ") for c in cells)
        return "| " + " | ".join(texts) + " |"

    return "\n".join([line(header), "|" + " --- |" * len(header), *map(line, rows)])


def _fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any inside the text: a model may well generate one."""
    longest = max((len(ticks) for ticks in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
