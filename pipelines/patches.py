"""What we replace in torch's, transformers' and PEFT's modules, classes and objects, each with its reason.

Nothing else in modeling/, pipelines/ and scripts/ writes private attributes of objects that are not its own. Tests see
to it, and look up each name where it is read. Trainer's private methods, which a subclass may override, are listed
below.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Patch:
    """An attribute that we replace. read_by: the module that reads it. why: we do, and where."""

    name: str
    read_by: str
    why: str


PATCHES = (
    Patch("_initialize_weights", "transformers.modeling_utils", "weights are recorded, and drawn later: late_weights"),
    Patch("empty", "torch", "memory that no weight was written into shows as nan: saving_law"),
    Patch("empty_like", "torch", "as empty"),
    Patch("resize_", "torch.distributed.fsdp._fully_shard._fsdp_param", "FSDP2 frees weights so: rehearsal/ledger"),
    Patch("_tied_params_are_equal", "transformers.modeling_utils", "fake weights have no values: rehearsal/step"),
    Patch(
        "to", "torch.nn.modules.module", "fake weights are where they are to be, and torch moves none: rehearsal/step"
    ),
    Patch("save", "torch.export", "its writer aborts the process where the disk is full: serving/export_model"),
    Patch("save_only_model", "transformers.trainer", "Trainer refuses to save states of split models; Mesh saves them"),
    Patch("_tp_size", "transformers.modeling_utils", "accelerate would share rows by it; Mesh.share_rows does"),
    Patch("distributed_config", "transformers.modeling_utils", "Mesh has gathered the weights that are saved"),
    Patch(
        "apply_fully_sharded_data_parallelism",
        "transformers.distributed.mixin",
        "a tied head is split together with the embeddings: mesh",
    ),
    Patch(
        "_is_distributed_loading_by_transformers",
        "transformers.distributed.mixin",
        "Trainer would wrap a stage in DDP, which is for processes with the same weights: pipeline",
    ),
    Patch("__class__", "transformers.modeling_utils", "causal models and heads that give losses: without_logits"),
    # transformers < 5.23
    Patch("_setup_devices", "transformers.training_args", "cpu:0 and cpu:1 are devices that torch loads nothing onto"),
    Patch("_n_gpu", "transformers.training_args", "nn.DataParallel's replicas return no sum over labels: evaluate"),
    Patch("_keys_to_ignore_on_save", "transformers.modeling_utils", "ZeRO and FSDP hand a tied head over as a copy"),
    Patch("_is_hf_initialized", "transformers.modeling_utils", "weights are drawn, or are to be drawn anew"),
    Patch("_last_lr", "torch.optim.lr_scheduler", "the schedule's functions are replaced: learning_rate"),
    Patch("_attn_implementation", "transformers.modeling_utils", "the backend of each config as before a block"),
    Patch("_tokenizer", "transformers.tokenization_utils_tokenizers", "texts are read without control tokens"),
    Patch(
        "_compile_all_devices",
        "transformers.generation.configuration_utils",
        "benchmarks compile on CPUs, too",
    ),
    Patch("is_quantized", "transformers.trainer_utils", "Trainer would not even measure weights of few bits: evaluate"),
    Patch("create_or_update_model_card", "peft.peft_model", "our model card is README.md, too: lora"),
)
# What modeling/registration.py replaces, which imports nothing of this folder: {attribute: row}.
OF_REGISTRATION = (
    Patch(
        "_extra_content",
        "transformers.models.auto.auto_factory",
        "what `register` of an Auto class writes to; LateEntries hold our classes by name until somebody asks for one",
    ),
    Patch(
        "exec_module",
        "importlib._bootstrap",
        "of the loaders of transformers' modules with such tables: they are filled once the module has been run",
    ),
)
NAMES = {patch.name for patch in PATCHES}

# Private methods of Trainer, and one that is public but undocumented, that are overridden because it has no hook there.
OVERRIDDEN = (
    "_get_train_sampler",
    "_run_epoch",
    "_get_grad_norm",
    "_save_checkpoint",
    "_save_optimizer_and_scheduler",
    "_load_optimizer_and_scheduler",
    "_load_from_checkpoint",
    "_sync_replicated_trainable_parameters",
)
OVERRIDDEN_BY_STAGES = ("_init_training_state", "_run_epoch", "_get_train_sampler", "set_initial_training_values")
# Private attributes of Trainer that our trainers read or set, and methods that they and the engines call.
USED_OF_TRAINER = (
    "_tr_loss",
    "_loss_shifts_labels",
    "_train_batch_size",
    "_prepare_inputs",
    "_load_rng_state",
    "_load_best_model",
    "_issue_warnings_after_load",
    "_push_from_checkpoint",
    "_save",
)


def write(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute that is listed above."""
    assert name in NAMES, f"{name} is no row of patches.py"
    try:
        setattr(owner, name, value)
    except AttributeError:  # a cached property
        vars(owner)[name] = value


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """In the block, attributes that are listed above have these values; one that the owner lacks becomes None."""
    with ExitStack() as after:
        for name, value in values.items():
            after.callback(setattr, owner, name, getattr(owner, name, None))
            write(owner, name, value)
        yield
