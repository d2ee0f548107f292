"""The model card: README.md of a model folder, written from the files in the folder and from nothing else.

The text is in model_card.md.jinja; this module gathers its values. What is not known is left out, so the card of a
folder from plain `save_pretrained` is short and nothing in it is invented.
"""

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anyformer.modeling.rules.serving import ENGINES, VLLM, refusal

from ..adapters import base_of
from ..lazy import hub
from ..recipes import introspection
from ..recipes.own_settings import own_settings
from ..recipes.strict_yaml import format_yaml
from ..storage.checkpoints import write_atomically
from ..storage.local_facts import names_only, path_name
from ..storage.model_folder import ModelFolder, open_model_folder
from ..words import counted
from .run_facts import SIZES, RunFacts, objective_facts, validated_on

MARKER = "<!-- anyformer wrote this card and will write it again; delete this line to keep changes of yours -->"
CURVE = "loss.png"  # of the run, where it was drawn (reporting/figures.py)
OF_THE_RUN = ("steps", "world_size", "wall_seconds", "resumed_at", "stages")  # facts in run.json that the card shows
TEMPLATE = Path(__file__).with_name("model_card.md.jinja")


@dataclass(frozen=True)
class Kind:
    """What a model with this head is for.

    head: suffix of the model's class name. task: the Hub's name of it. config_field: a config field that must be set.
    """

    head: str
    words: str
    auto_class: str = "AutoModel"
    task: str | None = None
    config_field: str | None = None

    @property
    def has_pipeline(self) -> bool:
        """Whether the card shows transformers' pipeline; text is generated without it, questions have none."""
        return self.task not in (None, "text-generation", "question-answering")

    def fits(self, config: dict[str, Any]) -> bool:
        """Whether a saved model of this config is of this kind."""
        heads = config.get("architectures") or []
        is_so = self.config_field is None or bool(config.get(self.config_field))
        return is_so and any(name.endswith(self.head) for name in heads)


# The first kind that fits a config counts.
KINDS = (
    Kind(
        "ForCausalLM", "A model of images as rows of pixels", "AutoModelForCausalLM", config_field="output_vocab_size"
    ),
    Kind("ForCausalLM", "A causal language model", "AutoModelForCausalLM", "text-generation"),
    Kind("LMHeadModel", "A causal language model", "AutoModelForCausalLM", "text-generation"),
    Kind("ForMaskedLM", "A masked language model", "AutoModelForMaskedLM", "fill-mask"),
    Kind("ForPreTraining", "A masked language model that knows pairs of texts", "AutoModelForMaskedLM", "fill-mask"),
    Kind("ForSequenceClassification", "A text classifier", "AutoModelForSequenceClassification", "text-classification"),
    Kind("ForTokenClassification", "A tagger of words", "AutoModelForTokenClassification", "token-classification"),
    Kind("ForQuestionAnswering", "A finder of answers", "AutoModelForQuestionAnswering", "question-answering"),
    Kind("ForMultipleChoice", "A chooser among texts", "AutoModelForMultipleChoice"),
    Kind("ForImageClassification", "An image classifier", "AutoModelForImageClassification", "image-classification"),
    Kind(
        "ForMaskedImageModeling", "A masked image model", "AutoModelForMaskedImageModeling", "image-feature-extraction"
    ),
    Kind("ForConditionalGeneration", "A sequence-to-sequence model", "AutoModelForSeq2SeqLM"),
    Kind("MTModel", "A sequence-to-sequence model", "AutoModelForSeq2SeqLM"),
)


def write_model_card(
    folder: Path | str, *, repo_id: str | None = None, license: str | None = None, name: str | None = None
) -> Path:
    """Write README.md of a saved model and return its path.

    A README.md that a person wrote or changed (one without our marker) is kept, and a line says so.

    Args:
        repo_id: repository the loading examples name; None: the folder.
        license: licence of the weights; None: the recipe's `publish.license`, else none is named.
        name: the model's; None: that of the repository or the folder.

    Raises UserError: `folder` holds no saved model, or a file in it is damaged.
    """
    model = open_model_folder(folder)
    card = model.path / "README.md"
    if is_own_card(card):
        facts = RunFacts.read(model.path)
        print(*facts.left_out, sep="\n", end="\n" * bool(facts.left_out))
        write_atomically(card, render_model_card(model, repo_id=repo_id, license=license, facts=facts, name=name))
    else:
        print(f"{card} was not written by anyformer, or changed by hand; it is kept as it is")
    return card


def is_own_card(card: Path) -> bool:
    """Whether we may write this file: it does not exist, or it is a card of ours."""
    return not card.exists() or MARKER in card.read_text(encoding="utf-8", errors="replace")


def render_model_card(
    model: ModelFolder,
    *,
    repo_id: str | None = None,
    license: str | None = None,
    facts: RunFacts | None = None,
    name: str | None = None,
    checked: str | None = None,
) -> str:
    """Return the card's text; arguments as in `write_model_card`.

    facts: what is known of the run; None: read from the folder's recipe.yaml and run.json. checked: the result of
    `anyformer check` in a line.
    """
    facts = RunFacts.read(model.path) if facts is None else facts
    name = name or (repo_id or model.path.resolve().name).rsplit("/", 1)[-1]
    license = license or facts.section("publish").get("license")
    metadata = _metadata(model, facts, name, license)
    values = _values(model, facts) | {"name": name, "address": repo_id or f"path/to/{name}", "license": license}
    values |= {"marker": MARKER, "fence": fence, "python": python, "checked": checked}
    return _template().render(card_data=metadata.to_yaml(), **values)


@cache
def _template():
    """The card's template, compiled once: ModelCard.from_template compiles it for each card."""
    import jinja2

    return jinja2.Template(TEMPLATE.read_text(encoding="utf-8"))


def python(value: Any) -> str:
    """A text, a dictionary of texts or None as Python source, in double quotes."""
    return "None" if value is None else json.dumps(value)


def fence(text: str) -> str:
    """The line around a code block: more backticks than any run of them in the text, which may be generated."""
    return "`" * (max((len(ticks) for ticks in re.findall(r"`{3,}", text)), default=2) + 1)


def _values(model: ModelFolder, facts: RunFacts) -> dict[str, Any]:
    """What the template shows, as plain values."""
    objective = objective_facts(facts.recipe)
    example, options = objective.words.example(facts.section("task") or facts.section("objective"))
    picture, splits, run = objective.words.picture, facts.splits, facts.run
    teacher, public = facts.section("teacher").get("name_or_path"), names_only(facts.recipe)
    files = [source.get("files") or [] for source in facts.sources]
    files = [[of] if isinstance(of, str) else of for of in files]
    parameters = (model.is_adapter and run.get("parameters")) or model.parameter_count()
    return {
        "kind": _kind(model.config),
        "parameters": parameters,
        "architecture": _architecture(model.config, parameters) | {"base kept in": run.get("base_dtype")},
        "is_ours": model.is_ours,
        "engines": _engines(model),
        "has_code": bool(model.auto_map),
        "adapter_of": path_name(base_of(model.path)) if model.is_adapter else None,
        "num_labels": len(model.config.get("id2label") or {}) if _kind(model.config).head.endswith("tion") else None,
        "trained_parameters": run.get("trained_parameters"),
        "has_tokenizer": (model.path / "tokenizer_config.json").is_file(),
        "has_image_processor": (model.path / "preprocessor_config.json").is_file(),
        "recipe": {key: facts.recipe.get(key) for key in ("name", "description")},
        "own_recipe_text": format_yaml(own_settings(public)) if public else None,
        "recipe_text": facts.recipe_text if public == facts.recipe else format_yaml(public),
        "has_recipe": (model.path / "recipe.yaml").is_file(),
        "base_model": facts.base_model and path_name(facts.base_model),
        "teacher": teacher and path_name(teacher),
        "is_converted": "converted_from" in run,
        "to_family": run.get("to_family"),
        "local_files": [f"`{Path(file).name.replace('`', '')}`" for of in files for file in of],
        "objective": objective,
        "example_input": example,
        "call_options": "".join(f", {name}={python(value)}" for name, value in options.items()),
        "run": {key: run[key] for key in OF_THE_RUN if run.get(key) is not None},
        "restarts": facts.section("training").get("restarts") or [],
        "source_names": facts.source_names,
        "splits": splits,
        "sizes": [size for size in SIZES if any(size in of_split for of_split in splits.values())],
        "fingerprint": (run.get("data") or {}).get("fingerprint"),
        "metrics": facts.metrics,
        "validated_on": validated_on(run | {"recipe": facts.recipe}),
        "suite_metrics": facts.suite_metrics,
        "signatures": run.get("signatures") or {},
        "samples": facts.samples,
        "curve": CURVE if facts.is_of_its_model and (model.path / CURVE).is_file() else None,
        "picture": picture if picture and facts.is_of_its_model and (model.path / picture).is_file() else None,
        "environment": (run.get("versions") or {}) | ({"seed": run["seed"]} if "seed" in run else {}) | _backends(run),
    }


def _metadata(model: ModelFolder, facts: RunFacts, name: str, license: str | None):
    """The card's YAML header, as the Hub reads it."""
    words, base = objective_facts(facts.recipe).words, facts.base_model
    task = words.hub_task or _kind(model.config).task
    datasets = sorted(filter(facts.is_on_hub, {source.get("dataset") or "" for source in facts.sources}))
    source = datasets[0] if len(facts.sources) == 1 and datasets else None  # the Hub data set that all text is from
    # (type and name of the data, split, metric, value); the Hub distinguishes results by type and split.
    rows = [
        (source or "custom", source or facts.source_names or "custom", *row)
        for row in facts.metrics
        if not row[1].startswith("unigram")
    ]
    rows += [(suite_task, suite_task, *row) for suite_task, *row in facts.suite_metrics]
    scores = [
        hub.EvalResult(
            task_type=task or "other",
            dataset_type=kind,
            dataset_name=data,
            dataset_split=split,
            metric_type=metric,
            metric_name=metric.replace("_", " "),
            metric_value=round(value, 6),
        )
        for kind, data, split, metric, value in rows
        if math.isfinite(value)
    ]
    family = [model.config["model_type"].removeprefix(introspection.OURS)] if "model_type" in model.config else []
    return hub.ModelCardData(
        library_name="peft" if model.is_adapter else "transformers",
        pipeline_tag=task,
        license=license,
        base_model=base if base and facts.is_on_hub(base) else None,
        datasets=datasets or None,
        metrics=sorted({score.metric_type for score in scores} - {"loss", "word_perplexity"}) or None,
        tags=["anyformer", *family, *words.hub_tags, *(["lora"] if model.is_adapter else [])],
        model_name=name if scores else None,
        eval_results=scores or None,
    )


def _kind(config: dict[str, Any]) -> Kind:
    return next((kind for kind in KINDS if kind.fits(config)), Kind("", "A transformer"))


def _norm_positions(form: str | dict[str, str] | None) -> str | None:
    """`pre-norm`; for several kinds of attention `pre-norm (linear_attention), inside-norm (full_attention)`."""
    if isinstance(form, dict):
        return ", ".join(f"{each}-norm ({kind})" for kind, each in form.items())
    return form and f"{form}-norm"


def _architecture(config: dict[str, Any], parameters: int) -> dict[str, Any]:
    """The rows of the architecture table; the template leaves out those without a value."""
    get, positions, channels = config.get, config.get("position_encoding"), config.get("num_channels")
    is_classifier = _kind(config).head.endswith("Classification")
    return {
        "family": str(get("model_type", "unknown")).removeprefix(introspection.OURS),
        "class": ", ".join(get("architectures") or []),
        "parameters": parameters,
        "layers": get("num_hidden_layers"),
        "width": get("hidden_size"),
        "attention heads": get("num_attention_heads"),
        "key/value heads": get("num_key_value_heads"),
        "head size": get("head_dim"),
        "feed-forward": _words(get("mlp_type"), get("hidden_act"), _number(get("intermediate_size"))),
        "norm": _words(get("norm_type"), _norm_positions(get("norm_position"))),
        "positions": positions,
        "rotary": _rotary(get("rope_parameters")) if positions in (None, "rotary") else None,
        "images": _words(_sides(get("image_size")), channels and counted(channels, "channel")),
        "patches": _sides(get("patch_size")),
        "context": _number(get("max_position_embeddings"), " tokens"),
        "vocabulary": get("vocab_size"),
        "tied embeddings": {True: "yes", False: "no"}.get(get("tie_word_embeddings")),
        "classes": ", ".join((get("id2label") or {}).values()) if is_classifier else None,
        "stored as": get("dtype"),
    }


def _backends(run: dict[str, Any]) -> dict[str, str]:
    """{what the training computed: by which backend}, and the engine of several processes."""
    backends = {f"{what} by": name for what, name in (run.get("backends") or {}).items()}
    engine = run.get("engine") if (run.get("world_size") or 1) > 1 else None
    return backends | ({"engine": engine} if engine else {})


def _engines(model: ModelFolder) -> dict[str, str]:
    """{engine for serving: how it runs this model, or why it does not}; only for causal language models of ours."""
    if not model.is_ours or _kind(model.config).task != "text-generation":
        return {}
    config = introspection.family_config(model.config["model_type"].removeprefix(introspection.OURS), model.config)
    how = dict.fromkeys(ENGINES, "yes") | {VLLM: "`--model-impl transformers --trust-remote-code`"}
    refused = {engine: reason for engine in ENGINES if (reason := refusal(config, engine)) is not None}
    return how | {engine: f"no: {reason}" for engine, reason in refused.items()}


def _rotary(rope: dict | None) -> str | None:
    if not rope or "rope_type" not in rope:
        return None
    return ", ".join([rope["rope_type"], *(f"{k}={v:g}" for k, v in rope.items() if isinstance(v, int | float))])


def _words(*parts: str | None) -> str | None:
    """The parts that are known, joined by commas; None if the first is not known."""
    return ", ".join(str(part) for part in parts if part is not None) if parts[0] is not None else None


def _sides(size: int | list[int] | None) -> str | None:
    """`28 x 28 pixels` of a number or a pair; None of None."""
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    return f"{height} x {width} pixels"


def _number(value: Any, unit: str = "") -> str | None:
    return f"{value:,}{unit}" if isinstance(value, int) and not isinstance(value, bool) else None
