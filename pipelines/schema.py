"""The recipe's sections as dataclasses: field names, types, defaults and the help text users read.

Standard library only: the command line checks a recipe with it before anything heavy is imported.
Two sections take more fields than stand here: `model` takes every field of the chosen family's config, and `training`
every field of transformers' TrainingArguments (recipe.py reads both from their source).
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal


def doc(help: str, default: Any = None, **kwargs) -> Any:
    """A dataclass field with the help text that `--help`, the README and errors share."""
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help}, **kwargs)
    return field(default=default, metadata={"help": help}, **kwargs)


@dataclass
class ModelSection:
    preset: str | None = doc("architecture: name of a file in configs/models, or a path to one")
    family: Literal["decoder", "encoder", "seq2seq"] | None = doc("model family, where no preset says it")
    name_or_path: str | None = doc("start from this checkpoint, ours or native, instead of fresh weights")
    fields: dict[str, Any] = doc("every other key of the section: fields of the family's config", {})


@dataclass
class TokenizerSection:
    type: Literal["byte_bpe", "wordpiece", "unigram", "char"] = doc(
        "algorithm of the tokenizer trained on the training text", "byte_bpe"
    )
    vocab_size: int | None = doc("entries, special tokens included; for char the default keeps every character", None)
    name_or_path: str | None = doc("take this pretrained tokenizer instead of training one")
    special_tokens: list[str] = doc("further special tokens, after <|endoftext|>, <|pad|> and <|unk|>", [])
    lowercase: bool = doc("lower-case the text first (wordpiece and unigram)", False)
    min_frequency: int = doc("pairs seen less often are not merged (byte_bpe and wordpiece)", 2)
    max_training_bytes: int = doc("the tokenizer is trained on the first so many bytes of text", 200_000_000)


@dataclass
class SourceSection:
    """One source of documents: exactly one of `source`, `files`, `dataset`."""

    source: Literal["stdlib"] | None = doc("the built-in corpus: Python's standard library, sources and documentation")
    files: str | list[str] | None = doc("local .txt, .jsonl, .parquet files (also .gz), globs allowed")
    dataset: str | None = doc("a data set on the Hub, or a folder that load_dataset reads")
    config_name: str | None = doc("configuration of the Hub data set")
    revision: str | None = doc("revision of the Hub data set")
    split: str = doc("split of the Hub data set", "train")
    text_field: str = doc("column or key that holds the text", "text")
    document: Literal["file", "line", "paragraph"] = doc("what one document is in a plain text file", "file")
    max_documents: int | None = doc("stop after this many documents")


@dataclass
class MixtureSource(SourceSection):
    weight: float = doc("share of the training tokens that comes from this source, relative to the other weights", 1.0)


@dataclass
class DataSection(SourceSection):
    mixture: list[MixtureSource] = doc("several sources with weights, instead of one", [])
    streaming: bool = doc("read a Hub data set as a stream: nothing is stored, training needs max_steps", False)
    validation_files: str | list[str] | None = doc("local files for validation")
    validation_split: str | None = doc("split of the Hub data set for validation")
    validation_fraction: float = doc("share of the documents held back where neither of the above is given", 0.05)
    test_files: str | list[str] | None = doc("local files for the final test")
    test_split: str | None = doc("split of the Hub data set for the final test")
    max_document_bytes: int = doc("longer documents are skipped and counted", 100_000_000)
    max_line_bytes: int = doc("documents with a longer line are skipped and counted", 10_000_000)
    cache_dir: str | None = doc("where tokenised data is kept; default: $ANYFORMER_CACHE or ~/.cache/anyformer")


@dataclass
class ObjectiveSection:
    name: Literal["causal"] = doc("what the model learns to predict", "causal")
    sequence_length: int = doc("tokens per row", 1024)
    tail: Literal["drop", "pad"] = doc("the last, unfilled training row; validation always pads", "drop")
    add_bos: bool = doc("begin each document with the beginning-of-text token", False)
    add_eos: bool = doc("end each document with the end-of-text token", True)


@dataclass
class TrainingSection:
    """The fields with a default or a meaning of our own; every other field of TrainingArguments is accepted, too."""

    output_dir: str = doc("folder of the run: checkpoints, metrics, final model")
    seed: int = doc("the one seed: weights, data order, dropout", 42)
    max_steps: int = doc("optimizer steps; -1: as num_train_epochs says", -1)
    num_train_epochs: float = doc("passes over the data, where max_steps does not say", 1.0)
    per_device_train_batch_size: int = doc("rows per device and forward pass", 8)
    gradient_accumulation_steps: int = doc("forward passes per optimizer step", 1)
    learning_rate: float = doc("peak learning rate", 1e-3)
    optim: str = doc(
        "adamw (fused), muon (matrices by torch.optim.Muon, the rest by AdamW), or a transformers optimizer name",
        "adamw",
    )
    muon_learning_rate: float = doc("peak learning rate of the matrices under optim: muon", 0.02)
    weight_decay: float = doc("decoupled weight decay on matrices", 0.1)
    adam_beta2: float = doc("AdamW's second beta", 0.95)
    max_grad_norm: float = doc("gradients are clipped to this norm; 0: not clipped", 1.0)
    lr_scheduler_type: str = doc("cosine, wsd, inverse_sqrt, or a name transformers knows", "cosine")
    lr_scheduler_kwargs: dict[str, Any] = doc("arguments of the schedule, such as {min_lr_rate: 0.1}", {})
    warmup_steps: float = doc("steps of linear warm-up; below 1: share of all steps", 0.02)
    decay_steps: float = doc("wsd: steps of the final decay; below 1: share of all steps", 0.2)
    bf16: bool | Literal["auto"] = doc("bfloat16 autocast; auto: where the device is faster in it", "auto")
    gradient_checkpointing: bool = doc("recompute activations in the backward pass to save memory", False)
    torch_compile: bool = doc("compile the model with torch.compile", False)
    logging_steps: int = doc("steps between two lines of metrics", 10)
    save_steps: int = doc("steps between two checkpoints", 500)
    save_total_limit: int = doc("complete checkpoints to keep, at least 2", 2)
    report_to: str | list[str] = doc("none, or any of wandb, trackio, tensorboard", "none")
    resume: bool = doc("go on from the newest complete checkpoint of this same run in output_dir", True)
    extra: dict[str, Any] = doc("every other key of the section: fields of TrainingArguments", {})


@dataclass
class EvaluationSection:
    every_steps: int | None = doc("steps between two validations; null: only at the end")
    max_rows: int | None = doc("validation rows used during training; the end always uses all")
    metrics: list[Literal["perplexity", "unigram_perplexity", "word_perplexity"]] = doc(
        "what is reported at the end beside the loss", ["perplexity"]
    )
    sample_prompts: list[str] = doc("texts the trained model continues at the end", [])
    sample_tokens: int = doc("new tokens per sample", 96)


@dataclass
class PublishSection:
    repo_id: str | None = doc("Hub repository the finished model is pushed to; null: not published")
    private: bool = doc("create the repository as private", False)
    license: str | None = doc("licence named in the model card")


@dataclass
class Recipe:
    """One run, from raw data to a published model."""

    name: str = doc("name of the recipe", "")
    description: str = doc("one line for `anyformer list`", "")
    model: ModelSection = field(default_factory=ModelSection)
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    data: DataSection = field(default_factory=DataSection)
    objective: ObjectiveSection = field(default_factory=ObjectiveSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    publish: PublishSection = field(default_factory=PublishSection)

    def to_dict(self) -> dict[str, Any]:
        """The whole recipe as plain data, every default spelled out; `recipe_from_dict` reads it back equal."""
        data = asdict(self)
        data["model"] |= data["model"].pop("fields")
        data["training"] |= data["training"].pop("extra")
        return data

    def to_yaml(self) -> str:
        """`to_dict` as YAML, which `anyformer train FILE` runs again."""
        from .yaml_text import format_yaml

        return format_yaml(self.to_dict())
