"""The recipe's sections as dataclasses: field names, types, defaults and the help text users read.

It imports only the standard library, so that the command line can check a recipe before torch is loaded.
Two sections accept further fields: `model` every field of the chosen family's config, and `training` every field of
transformers' TrainingArguments (compose.py reads both from their source).
"""

from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal

from ..errors import UserError
from ..words import Epochs
from .data_section import DataSection
from .introspection import Frozen, doc, family_names
from .optimizer_rows import ROWS
from .secrets import without_signatures
from .tokenizer_section import TokenizerSection

LEARNED = ("objective", "task")  # the sections that say what the model learns
# The objective or task of a section that sets no `name`.
DEFAULT_NAMES = {"objective": "causal", "task": "sequence_classification"}


@dataclass(frozen=True)
class ModelSection:
    preset: str | None = doc("architecture: name of a file in configs/models, or a path to one")
    family: Literal[family_names()] | None = doc("model family, where no preset says it")
    name_or_path: str | None = doc("start from this checkpoint, ours or native, instead of fresh weights")
    attn_implementation: str = doc(
        "what computes attention: eager, sdpa, flex_attention, flash_attention_2 (3, 4) or a kernel of the Hub "
        "(owner/name); auto: on GPUs in half precision an installed flash kernel that can, for packed rows else "
        "flex_attention, else sdpa, else eager",
        "auto",
    )
    experts_implementation: str = doc(
        "what computes a mixture's experts: anyformer_grouped, grouped_mm, batched_mm or eager; auto: the first", "auto"
    )
    fields: dict[str, Any] = doc("every other key of the section: fields of the family's config", {})


@dataclass
class ObjectiveSettings(Frozen):
    """The settings of one objective or task; each Objective has a subclass with its own fields (objectives/).

    share_of_usual_rate: factor on the model's usual learning rate (usual_rates.py). enough_steps: where the usual
    epochs make fewer, there are more epochs. is_start_where_null: the setting whose null means the model from which the
    training starts; None: there is none. stratified_by: the column of the classes by which splits of the data can be
    stratified; None: there is none. weighs_by_train: whether the loss depends on the training rows, of which it counts
    the classes. fills_rows: whether each training row has sequence_length tokens.
    """

    share_of_usual_rate: ClassVar[float] = 1.0
    enough_steps: ClassVar[int] = 250
    is_start_where_null: ClassVar[str | None] = None
    stratified_by: ClassVar[str | None] = None
    weighs_by_train: ClassVar[bool] = False
    fills_rows: ClassVar[bool] = False

    name: str = doc("what the model learns; `anyformer list` shows the names")


@dataclass(frozen=True)
class TeacherSection:
    """Distillation: a trained model whose predictions are learned beside the labels (Hinton et al. 2015)."""

    name_or_path: str = doc("a trained model: the folder of a finished run, or a repository on the Hub", "")
    weight: float = doc("share of the teacher in the loss; the labels have the rest", 0.5, above=0, at_most=1)
    temperature: float = doc(
        "what the logits of both are divided by; the teacher's part of the loss is multiplied by its square",
        1.0,
        above=0,
        at_most=100,
    )
    stored: bool = doc(
        "of causal: the teacher answers all training rows before the training, into the cache, whence this run and "
        "later ones read; false: it answers beside the model in each step. What a teacher says of a labelled example "
        "is always stored",
        False,
    )
    files: str | list[str] | None = doc(
        "of sequence_classification, token_classification and sentence_similarity: further texts, in the columns that "
        "the task names, of which the model learns from the teacher alone"
    )
    top_k: int = doc("stored: so many likeliest tokens of a place are kept, beside the sum of the rest", 64, at_least=1)


@dataclass(frozen=True)
class LoraSettings:
    """LoRA (Hu et al. 2021): low-rank matrices are trained beside the frozen weights of a checkpoint."""

    r: int = doc("rank of the trained matrices", 16, at_least=1, at_most=2**16)
    alpha: float = doc("what they add is scaled by alpha / r", 32, above=0)
    dropout: float = doc(
        "dropout on their input, for which each adapter keeps a copy and a mask of it", 0.0, at_least=0, below=1
    )
    target_modules: str | list[str] | None = doc(
        "layers that get them: names, or all-linear; null: those that PEFT names for the architecture"
    )
    modules_to_save: list[str] | None = doc(
        "further modules that are trained and saved whole; new ones, such as a classifier's head, always are"
    )
    use_rslora: bool = doc("scale by alpha / sqrt(r) instead (Kalajdzievski 2023)", False)
    use_dora: bool = doc("train the lengths of the weights' rows beside their directions (Liu et al. 2024)", False)
    base: Literal["auto", "float32", "bfloat16", "nf4"] = doc(
        "what the frozen weights are kept in; nf4: 4 bits (Dettmers et al. 2023), by bitsandbytes (needs "
        "anyformer[quantization]); auto: bfloat16 for a causal model under bf16, else float32; a quantised checkpoint "
        "stays as it is. The adapter is float32",
        "auto",
    )
    merge: bool = doc("save the whole model with what was learned added to its weights, not the adapter alone", False)


@dataclass(frozen=True)
class PartNorms:
    """The gradient norm to which each part of the model is clipped separately; 0: the part is not clipped."""

    embeddings: float = doc("tables of tokens and positions; of a tied head, too", 1.0, zero_or_at_least=1e-6)
    layers: float = doc("all layers together", 1.0, zero_or_at_least=1e-6)
    head: float = doc("what comes after the layers: the last norm, the head", 1.0, zero_or_at_least=1e-6)


@dataclass(frozen=True)
class TransferSettings:
    """Learning rates that transfer between widths and depths (Yang et al. 2022, muP; Dey et al. 2025, CompleteP)."""

    base: dict[str, int] = doc(
        "sizes of the model that the rates were chosen for: hidden_size, num_hidden_layers or both; what is not named "
        "follows, with heads of the same size"
    )


@dataclass(frozen=True)
class ParallelismSettings:
    """How the processes of a run share its model and rows; their number is the product of all sizes but ep."""

    dp_replicate: int = doc("groups of processes with a whole model each, and rows of their own (HSDP)", 1, at_least=1)
    dp_shard: int = doc(
        "processes that share weights, gradients and optimizer states, with rows of their own", 1, at_least=1
    )
    tp: int = doc("processes that share each matrix, and read the same rows (tensor parallelism)", 1, at_least=1)
    ep: int = doc(
        "processes with experts of their own, among those of dp_shard and tp: a multiple of tp, a divisor of both",
        1,
        at_least=1,
    )
    fsdp_cpu_offload: bool = doc(
        "dp_shard, dp_replicate: keep shards of weights, gradients and optimizer states in the memory of the CPU", False
    )
    pp: int = doc("stages of layers, through which parts of a batch travel (pipeline parallelism, 1F1B)", 1, at_least=1)
    sp: int = doc(
        "processes that share each row, and exchange it for heads in attention (Ulysses; with training.deepspeed)",
        1,
        at_least=1,
    )


@dataclass(frozen=True)
class TrainingSection:
    """Settings whose default or meaning is anyformer's; `extra` takes every other field of TrainingArguments."""

    output_dir: str = doc("folder of the run: checkpoints, metrics, final model")
    seed: int = doc("the one seed: weights, data order, dropout", 42, at_least=0, at_most=2**32 - 1)
    max_steps: int = doc("optimizer steps; -1: as num_train_epochs says", -1, at_most=10**12)
    max_tokens: int | None = doc(
        "tokens of the training in place of max_steps, which becomes the least number of steps that reads so many, in "
        "the batches and row lengths of the stages; null: as max_steps says",
        at_least=1,
        at_most=10**18,
    )
    num_train_epochs: float | Literal["auto"] = doc(
        "passes over the data, where max_steps does not say; of a checkpoint, unless set, or auto: 3, of few rows more",
        1.0,
        above=0,
        at_most=1_000_000,
    )
    per_device_train_batch_size: int = doc("rows per device and forward pass", 8, at_least=1, at_most=2**20)
    gradient_accumulation_steps: int = doc("forward passes per optimizer step", 1, at_least=1, at_most=2**20)
    global_batch_size: int | None = doc(
        "rows per optimizer step over all processes, which gradient_accumulation_steps then follows from; null: as the "
        "two settings above and the number of processes say",
        at_least=1,
        at_most=2**30,
    )
    learning_rate: float = doc(
        "peak learning rate; unless set, or auto: 1e-3 for fresh weights, 2e-4 for an adapter, 5e-5 for a pretrained "
        "encoder or image model, 2e-5 for a pretrained decoder",
        1e-3,
        at_least=1e-12,
    )
    optim: str = doc(
        ", ".join(f"{row.name} ({row.meaning})" for row in ROWS.values() if row.meaning)
        + ", or a transformers optimizer name",
        "adamw",
    )
    muon_learning_rate: float = doc("peak learning rate of the matrices under optim: muon", 0.02, at_least=1e-12)
    weight_decay: float = doc("decoupled weight decay on matrices", 0.1, at_least=0, at_most=100)
    adam_beta2: float = doc("AdamW's second beta", 0.95, at_least=0, below=1)
    max_grad_norm: float | PartNorms = doc(
        "gradients are clipped to this norm, 0: not clipped; or a norm for each part of the model, such as "
        "{embeddings: 1.0, layers: 0.5, head: 1.0}",
        1.0,
        zero_or_at_least=1e-6,
    )
    lr_scheduler_type: str = doc("cosine, wsd, inverse_sqrt, or a name transformers knows", "cosine")
    lr_scheduler_kwargs: dict[str, Any] = doc("arguments of the schedule, such as {min_lr_rate: 0.1}", {})
    warmup_steps: float = doc("steps of linear warm-up; below 1: share of all steps", 0.02, at_least=0)
    decay_steps: float = doc("wsd: steps of the final decay; below 1: share of all steps", 0.2, above=0)
    restarts: list[int] = doc(
        "steps at which warm-up and decay begin anew, such as [1000]; `--extend` sets it where a finished run goes on",
        [],
    )
    bf16: bool | Literal["auto"] = doc(
        "bfloat16 autocast, and weights that dp_shard gathers in it; auto: where the device is faster in it",
        "auto",
    )
    gradient_checkpointing: bool = doc("recompute activations in the backward pass to save memory", False)
    torch_compile: bool = doc("compile the layers with torch.compile", False)
    parallelism: ParallelismSettings | None = doc(
        "how several processes share the model, such as {dp_shard: 2, tp: 2} (by --launch mesh, torchrun or accelerate "
        "launch); null: as the launcher's engine does"
    )
    lora: LoraSettings | None = doc(
        "train an adapter of low rank on the checkpoint model.name_or_path, and save it alone (needs anyformer[peft]); "
        "such as {r: 16}, or {} for the defaults"
    )
    freeze: list[str | int] = doc(
        "parts of the checkpoint model.name_or_path that stay as they are: embeddings, and layers such as 0-3 (of an "
        "encoder-decoder encoder.0-3)",
        [],
    )
    transfer: TransferSettings | None = doc(
        "the rates above are those of a smaller model of this shape, such as {base: {hidden_size: 128}}: new weights, "
        "multipliers of the model, AdamW's rates and weight decay follow from how much wider and deeper this one is; "
        "null: they are this model's own"
    )
    ema_decay: float | None = doc(
        "measure and save the exponential moving average of the weights, of which this share stays in a step, such as "
        "0.999; null: the weights themselves",
        at_least=0,
        below=1,
    )
    ema_warmup: bool = doc("ema_decay of step n is at most (1 + n) / (10 + n), to forget the beginning", True)
    bad_step: Literal["stop", "skip"] = doc(
        "what happens at a step whose loss or gradient norm is NaN or infinite, or a spike: stop: the run ends; skip: "
        "weights and optimizer stay as they are, and the run goes on",
        "stop",
    )
    max_bad_steps: int = doc("skip: one more bad step in a row than this ends the run", 10, at_least=1)
    loss_spike: float | None = doc("a loss above so many times the median of 128 steps is bad; null: none is", above=1)
    grad_norm_spike: float | None = doc("the same of the norm of the gradients", above=1)
    grad_norm_warning: float | None = doc(
        "a gradient norm of more than so many times the median of the last 128 steps is reported; null: none is",
        10.0,
        above=1,
    )
    router_warning: float | None = doc(
        "a layer that uses less than this share of its experts is reported; null: none is", 0.5, above=0, at_most=1
    )
    stall_minutes: float | None = doc(
        "without a step, a batch of an evaluation or a saved checkpoint for so long, the run writes down where it "
        "stands and ends, with exit code 75; null: it waits forever",
        60.0,
        above=0,
    )
    logging_steps: int = doc("steps between two lines of metrics", 10, at_least=1)
    save_steps: int | Epochs = doc(
        "steps between two checkpoints; or passes over the data: epoch, 0.5 epochs, 2 epochs", 500, at_least=1
    )
    save_total_limit: int = doc("complete checkpoints to keep, at least 2", 2, at_least=2)
    log_gradient_norms_per_layer: bool = doc(
        "write the norm of each layer's gradients, before clipping, into gradients.jsonl at each line of the log", False
    )
    audit_samples: bool = doc("write the rows and documents of each step into the folder samples of output_dir", False)
    report_to: str | list[str] = doc("none, or any of wandb, trackio, tensorboard, codecarbon", "none")
    resume: bool = doc("go on from the newest complete checkpoint of this same run in output_dir", True)
    extra: dict[str, Any] = doc("every other key of the section: fields of TrainingArguments", {})

    @property
    def evaluation_rows(self) -> int:
        """The rows of a validation's batch on a device, which teachers and references answer at once, too."""
        return self.extra.get("per_device_eval_batch_size") or self.per_device_train_batch_size


MINIMAL_PAIRS = "minimal_pairs"  # the name of the setting, of a suite's section, and of the metric


@dataclass(frozen=True)
class MinimalPairsSettings:
    """Pairs of texts, a good one and a bad one, of which a model should find the good one likelier."""

    files: str | list[str] | None = doc("files with a pair in each row, as data.files takes them")
    dataset: str | None = doc("a data set on the Hub in their place, such as nyu-mll/blimp, or a folder")
    config_names: list[str] | None = doc("configurations of the data set; null: all that it has")
    split: str = doc("split of the data set", "train")
    good_field: str | None = doc("column of the good text; null: sentence_good or good")
    bad_field: str | None = doc("column of the bad text; null: sentence_bad or bad")
    group_fields: list[str] | None = doc(
        "columns by whose values shares are told apart, the first in the table; null: those of phenomenon, "
        "linguistics_term, paradigm and UID that there are"
    )
    before: str = doc("written before each text; a space, as lm-eval has it", " ")
    add_bos: bool = doc(
        "a decoder reads its beginning-of-text token (else its end-of-text token) before a text, as in lm-eval; false: "
        "the first token is not counted, as in documents that were trained without one",
        True,
    )
    score: Literal["auto", "log_probability", "pseudo_log_likelihood", "pseudo_log_likelihood_l2r"] = doc(
        "what is compared: the log-probability of the text, or the sum of those of each token where it alone is hidden "
        "(Salazar et al. 2020; l2r: with the later tokens of its word, Kauf and Ivanova 2023); auto: the first of "
        "models that write, the second of encoders",
        "auto",
    )
    max_pairs: int | None = doc("at most so many pairs, spread over all", at_least=1)

    def check(self, where: str) -> None:
        """Raise UserError unless exactly one of files and dataset is set. where: the section's name in the error."""
        if (self.files is None) == (self.dataset is None):
            raise UserError(f"{where} needs files or dataset, one of the two; such as {where}.files=pairs.jsonl")


@dataclass(frozen=True)
class EvaluationSection:
    every_steps: int | Epochs | None = doc(
        "steps between two validations, or passes over the data: epoch, 0.5 epochs; null: only at the end", at_least=1
    )
    at_start: bool | None = doc(
        "a validation before the first step, as step 0; null: where model.name_or_path is set and there is such data"
    )
    max_rows: int | None = doc("validation rows used during training; the end always uses all", at_least=1)
    metrics: list[str] | None = doc(
        "what is reported beside the loss; null: the objective's or task's own, such as perplexity, accuracy or bleu"
    )
    bleu_tokenize: Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"] = doc(
        "how bleu finds words (sacrebleu's tokenizers): 13a and intl by spaces and punctuation, zh each Chinese "
        "character, char each character, as scripts without spaces need; ja-mecab, ko-mecab need sacrebleu[ja], [ko]",
        "13a",
    )
    best_metric: str | None = doc(
        "loss, or one of `metrics`: the final model is the one that was best by it in validations; null: the last one. "
        "One of written answers, such as bleu, makes each validation write them"
    )
    patience: int | Epochs | None = doc(
        "training ends after so many validations, or 2 epochs of them, in which best_metric was no better; null: it "
        "goes on to the last step",
        at_least=1,
    )
    average_checkpoints: int | None = doc(
        "the final model is the mean of the newest so many checkpoints; null: the last",
        at_least=2,
    )
    minimal_pairs: MinimalPairsSettings | None = doc(
        "pairs of a good and a bad text, such as {files: pairs.jsonl, max_pairs: 2000}: each validation measures the "
        "share whose good text is likelier, which best_metric may name as minimal_pairs; null: none"
    )
    bootstrap: int = doc(
        "resamples of the examples for the 95 % intervals of `anyformer evaluate`; 0: only intervals with a formula",
        1000,
        at_least=0,
        at_most=1_000_000,
    )
    sample_prompts: list[str] = doc(
        "texts the trained model continues at the end (a translation model: translates; a masked one: fills in [MASK])",
        [],
    )
    sample_tokens: int = doc("new tokens per continued sample", 96, at_least=1, at_most=2**20)
    sample_top_p: float | None = doc(
        "continued samples: only the likeliest tokens whose probabilities sum to this are drawn; null: all tokens",
        above=0,
        at_most=1,
    )
    sample_images: int = doc(
        "pixels: so many images are completed from their upper halves at the end, as a PNG", 8, at_least=0, at_most=1000
    )


@dataclass(frozen=True)
class StageSection:
    """A range of training steps with its own settings (stage_plan.py); null: the recipe's setting applies."""

    until: float | None = doc("the step after which the stage ends; at most 1: a share of training.max_steps", above=0)
    sequence_length: int | None = doc("tokens per row", at_least=2, at_most=2**24)
    global_batch_size: int | None = doc("rows per optimizer step over all processes", at_least=1, at_most=2**30)
    per_device_train_batch_size: int | None = doc("rows per device and forward pass", at_least=1, at_most=2**20)
    learning_rate: Literal["constant", "decay", "cosine"] | None = doc(
        "constant, decay (linear) or cosine, from where the stage before ended; null in all stages: "
        "training.lr_scheduler_type over the whole run"
    )
    min_lr_rate: float = doc("share of the peak at which decay and cosine end", 0.0, at_least=0, at_most=1)
    warmup_steps: float | None = doc(
        "steps of linear warm-up to the peak; below 1: share of the stage's; null: in the first stage as "
        "training.warmup_steps, in others none",
        at_least=0,
    )
    peak: float | None = doc(
        "share of the peak learning rate at which the stage begins, after its warm-up; null: where the one before "
        "ended, after a warm-up 1",
        above=0,
        at_most=100,
    )
    weight_decay: float | None = doc("decoupled weight decay on matrices", at_least=0, at_most=100)
    mixture: dict[str, float] | None = doc(
        "weights of the sources of data.mixture by their names, such as {web: 0.7, code: 0.3}; others are not read"
    )


@dataclass(frozen=True)
class PublishSection:
    repo_id: str | None = doc("Hub repository the finished model is pushed to; null: not published")
    private: bool = doc("create the repository as private", False)
    license: str | None = doc("licence named in the model card")


@dataclass(frozen=True)
class Recipe:
    """One run, from raw data to a published model."""

    name: str = doc("name of the recipe", "")
    description: str = doc("one line for `anyformer list`", "")
    model: ModelSection = field(default_factory=ModelSection)
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    data: DataSection = field(default_factory=DataSection)
    # Exactly one of the two is not None; a recipe that names neither has the default objective.
    objective: ObjectiveSettings | None = field(default_factory=lambda: default_objective())
    task: ObjectiveSettings | None = None
    teacher: TeacherSection | None = None
    training: TrainingSection = field(default_factory=TrainingSection)
    stages: list[StageSection] = doc(
        "stretches of the training's steps with settings of their own, such as [{until: 0.8, sequence_length: 512}, "
        "{until: 1.0, sequence_length: 2048}]",
        [],
    )
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    publish: PublishSection = field(default_factory=PublishSection)

    # Whether code that comes with a checkpoint may run. It is not a setting: --trust-remote-code or the Python API sets
    # it, and a recipe file cannot, because the file may come from a stranger.
    trust_remote_code: bool = field(default=False, repr=False, compare=False)
    # {dotted setting: reason} of the values that anyformer chose or converted; the recipe's own values are not in it.
    chosen: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def learned(self) -> ObjectiveSettings:
        """The settings of the task, or of the objective if there is no task."""
        return self.objective if self.task is None else self.task

    @property
    def learned_section(self) -> str:
        """The section of `learned`: "objective" or "task"."""
        return "objective" if self.task is None else "task"

    def with_(self, **changes: Any) -> "Recipe":
        """A copy with other values; a mapping changes settings of its section, such as training={"max_steps": 50}."""
        for name, value in changes.items():
            if isinstance(value, dict) and is_dataclass(section := getattr(self, name)):
                changes[name] = replace(section, **value)
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The whole recipe as plain data, every default spelled out; `recipe_from_dict` reads it back equal.

        URLs lose their signatures and tokens, because the result is saved, compared and published.
        """
        data = asdict(self)
        del data["trust_remote_code"], data["chosen"]
        data["model"] |= data["model"].pop("fields")
        data["training"] |= data["training"].pop("extra")
        return without_signatures(data)

    def to_yaml(self) -> str:
        """`to_dict` as YAML, which `anyformer train FILE` runs again."""
        from .strict_yaml import format_yaml

        return format_yaml(self.to_dict())


def parts_of_recipe() -> list[Field]:
    """The sections and settings that a recipe file may have at its top level."""
    return [part for part in fields(Recipe) if part.name not in ("trust_remote_code", "chosen")]


def default_objective() -> ObjectiveSettings:
    """The settings of a recipe that names neither objective nor task."""
    from ..plugins import OBJECTIVES

    return OBJECTIVES[DEFAULT_NAMES["objective"]].Settings()
