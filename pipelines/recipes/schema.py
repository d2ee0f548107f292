"""The recipe's sections as dataclasses: field names, types, defaults and the help text users read.

Standard library only: the command line checks a recipe with it before anything heavy is imported.
Two sections take more fields than stand here: `model` takes every field of the chosen family's config, and `training`
every field of transformers' TrainingArguments (compose.py reads both from their source).
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
    family: Literal["decoder", "moe", "encoder", "seq2seq", "vit"] | None = doc("model family, where no preset says it")
    name_or_path: str | None = doc("start from this checkpoint, ours or native, instead of fresh weights")
    fields: dict[str, Any] = doc("every other key of the section: fields of the family's config", {})


@dataclass
class TokenizerSection:
    type: Literal["byte_bpe", "wordpiece", "unigram", "char"] = doc(
        "algorithm of the tokenizer trained on the training text", "byte_bpe"
    )
    vocab_size: int | None = doc("entries, special tokens included; for char the default keeps every character", None)
    name_or_path: str | None = doc("take this pretrained tokenizer instead of training one")
    special_tokens: list[str] = doc("further special tokens, after those that the tokenizer has anyway", [])
    framing: Literal["none", "cls_sep", "eos"] | None = doc(
        "what stands around a text: cls_sep: <|cls|> text <|sep|>, and there is a <|mask|>; eos: text <|endoftext|>; "
        "null: what the objective or task needs"
    )
    sentinels: int | None = doc(
        "tokens <extra_id_0>, <extra_id_1>, ... that stand for left-out spans; null: 100 for span_corruption, else none"
    )
    lowercase: bool = doc("lower-case the text first (wordpiece and unigram)", False)
    min_frequency: int = doc("pairs seen less often are not merged (byte_bpe and wordpiece)", 2)
    max_training_bytes: int = doc("the tokenizer is trained on the first so many bytes of text", 200_000_000)


@dataclass
class SourceSection:
    """One source of documents: exactly one of `source`, `files`, `dataset`."""

    source: Literal["stdlib", "stdlib_code"] | None = doc(
        "a built-in corpus: stdlib, Python's standard library, sources and documentation; stdlib_code, the same "
        "without its tables of encodings, Unicode and locales"
    )
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
    name: Literal["causal", "masked", "span_corruption", "pixels", "masked_image"] = doc(
        "what the model learns to predict: the next token, hidden tokens, or left-out spans of text; the next pixel or "
        "hidden patches of images",
        "causal",
    )
    sequence_length: int = doc("tokens per row of text, for span_corruption of the encoder's input", 1024)
    tail: Literal["drop", "pad"] = doc("the last, unfilled training row; validation always pads", "drop")
    add_bos: bool | None = doc("begin each document with the beginning-of-text token; null: only for masked")
    add_eos: bool = doc("end each document with the end-of-text token", True)
    mask_probability: float = doc("masked: share of a row's tokens that is predicted", 0.15)
    mask_replace: float = doc("masked: share of those that the mask token hides", 0.8)
    random_replace: float = doc("masked: share of those that a random token replaces; the rest stays", 0.1)
    noise_density: float = doc("span_corruption: share of the tokens that is left out", 0.15)
    mean_span_length: float = doc("span_corruption: tokens per left-out span, on average", 3.0)
    image_field: str = doc("pixels, masked_image: column that holds the image", "image")
    label_field: str | None = doc("pixels: column that holds the class, for the metric linear_probe alone")
    image_size: int = doc("pixels: images are resized to so many pixels a side, each of them a token", 32)
    clusters: int = doc("pixels: colours, found by k-means over the pixels of the training images", 512)
    probe_layer: int | None = doc("pixels: layer before which linear_probe reads; null: the middle one")
    mask_ratio: float = doc("masked_image: share of an image's patches that is hidden", 0.6)
    image_mean: list[float] | None = doc(
        "masked_image: subtracted from each channel (values from 0 to 1); null: the training images' mean"
    )
    image_std: list[float] | None = doc(
        "masked_image: each channel is divided by it; null: the training images' standard deviation"
    )

    def __post_init__(self):
        if self.add_bos is None:
            self.add_bos = self.name == "masked"  # a text for an encoder begins with <|cls|>


@dataclass
class TaskSection:
    """Learning from labelled examples, instead of an objective."""

    name: Literal["sequence_classification", "translation", "image_classification"] = doc(
        "what the model learns from labelled examples", "sequence_classification"
    )
    text_field: str = doc("sequence_classification: column that holds the text", "text")
    text_pair_field: str | None = doc(
        "sequence_classification: column of a second text, judged together with the first"
    )
    image_field: str = doc("image_classification: column that holds the image", "image")
    label_field: str = doc("classification: column that holds the class, a number or a name", "label")
    label_names: list[str] | None = doc(
        "classification: names of the classes, in the order of their numbers; null: taken from the data"
    )
    source_field: str | None = doc("translation: column that holds the text to translate")
    target_field: str | None = doc("translation: column that holds its translation")
    max_length: int = doc("tokens per text, special ones included; longer texts are cut", 256)
    max_target_length: int | None = doc("translation: tokens per target text; null: as max_length")
    num_beams: int = doc("translation: beams of the search; 1: greedy", 5)
    length_penalty: float = doc("translation: above 0 the search prefers longer texts, below 0 shorter ones", 1.0)
    max_new_tokens: int | None = doc("translation: most tokens generated; null: as max_target_length")
    image_mean: list[float] | None = doc(
        "image_classification: subtracted from each channel (values from 0 to 1); null: the training images' mean"
    )
    image_std: list[float] | None = doc(
        "image_classification: each channel is divided by it; null: the training images' standard deviation"
    )
    crop_padding: int = doc("image_classification: training images are shifted at random by up to so many pixels", 0)
    horizontal_flip: float = doc("image_classification: probability that a training image is mirrored", 0.0)
    mixup_alpha: float = doc(
        "image_classification: each training image is blended with another, by shares of Beta(alpha, alpha); 0: off",
        0.0,
    )
    cutmix_alpha: float = doc(
        "image_classification: a box of each training image is taken from another, by Beta(alpha, alpha); 0: off; with "
        "mixup a coin decides",
        0.0,
    )


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
    metrics: list[str] | None = doc(
        "what is reported beside the loss; null: perplexity (bits_per_pixel for pixels, nothing for masked_image), or "
        "with a task accuracy (of classes) or bleu (translation)"
    )
    best_metric: str | None = doc(
        "loss, or one of `metrics` that compares classes: the final model is the one that was best by it in the "
        "validations during training; null: the last one"
    )
    average_checkpoints: int | None = doc(
        "the final model is the mean of the newest so many checkpoints; null: the last"
    )
    sample_prompts: list[str] = doc(
        "texts the trained model continues (a translation model: translates) at the end", []
    )
    sample_tokens: int = doc("new tokens per continued sample", 96)
    sample_top_p: float | None = doc(
        "continued samples: only the likeliest tokens whose probabilities sum to this are drawn; null: all tokens"
    )
    sample_images: int = doc("pixels: so many images are completed from their upper halves at the end, as a PNG", 8)


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
    # Exactly one of the two is not None; a recipe that names neither has the default objective.
    objective: ObjectiveSection | None = field(default_factory=ObjectiveSection)
    task: TaskSection | None = None
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
        from .strict_yaml import format_yaml

        return format_yaml(self.to_dict())
