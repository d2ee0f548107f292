"""Two steps of the run's own trainer, the second of which is counted: the first makes the optimizer's states."""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from transformers import TrainerCallback, modeling_utils

from ..accounting.activations import Batch
from ..accounting.collectives import Collective
from ..accounting.devices import Devices
from ..accounting.layers import freeze
from ..accounting.lora import plain, with_lora
from ..accounting.step_memory import counted_backend, planned_batch, planned_config, planned_dtype
from ..adapters import dtype_of_base
from ..backends import AUTO
from ..data.batch_keys import row_ids
from ..likelihoods.without_logits import without_logits
from ..objectives.base import Objective
from ..objectives.data import Data
from ..patches import replaced
from ..plugins import objective_of
from ..recipes.schema import Recipe
from ..training.arguments import training_arguments
from ..training.engines.asked import engine_for
from ..training.engines.engine import Engine
from ..training.engines.late_weights import built_late
from ..training.engines.mesh import local, mesh_of
from ..training.trainer import AnyformerTrainer
from .ledger import ACTIVATIONS, FORWARD, GRADIENTS, OPTIMIZER, STATES, WEIGHTS, Ledger, StepFunctions, bytes_of
from .rehearsed import Rehearsal

# Nothing reads values, and no other process reads rows, which are all the same.
QUIET = {"logging_strategy": "no", "logging_first_step": False, "save_strategy": "no"}
QUIET |= {"dataloader_num_workers": 0, "dataloader_persistent_workers": False, "dataloader_prefetch_factor": None}
DEPTH = 4  # names of the parts of a model that are told apart, such as model.layers.0.mlp, have so many words
NAMES = {"fsdp": "dp_shard"}  # transformers' names of a mesh's dimensions -> those of training.parallelism


def made_step(
    recipe: Recipe, devices: Devices, fake: FakeTensorMode | None, documents: int = 1, around: Callable = nullcontext
) -> Rehearsal:
    """Make two steps of training in this process, and count the second.

    fake: of the weights; None: everything is real, and a launcher has started the process group. documents: in each row
    of text. around: makes a block in which the second step is made.
    """
    objective, notes = objective_of(recipe), []
    engine, half = engine_for(recipe.training), planned_dtype(recipe.training, devices) != torch.float32
    with TemporaryDirectory(prefix="anyformer-rehearsal-") as folder, ExitStack() as during:
        recipe = recipe.with_(training={"output_dir": folder})
        arguments = training_arguments(recipe, engine)
        micro_batches = arguments.gradient_accumulation_steps
        arguments.gradient_accumulation_steps = min(2, micro_batches)
        for name, value in QUIET.items():
            setattr(arguments, name, value)
        ledger = Ledger(fake, devices)
        if fake is not None:
            during.enter_context(replaced(modeling_utils, _tied_params_are_equal=lambda *pair: True))
            during.enter_context(replaced(torch.nn.Module, to=lambda module, *ignored, **options: module))
        engine.start(arguments)
        model = built(recipe, objective, devices, engine, arguments.device, ledger, notes)
        batch, mesh = planned_batch(recipe, objective, plain(model)), mesh_of(model)
        ledger.dimensions = dimensions_of(model)
        ledger.vocabulary = (batch.vocabulary, batch.vocabulary // mesh.get("tp", 1))
        ledger.recomputes = recipe.training.gradient_checkpointing
        follow(plain(model), ledger)
        row = row_of(batch, plain(model), objective, documents)
        rows = [row] * (8 * arguments.train_batch_size * arguments.world_size)
        collate = partial(together, objective)
        learns = objective.Learns(Data(objective, objective.Reads(objective)))
        parts = {"section": recipe.training, "engine": engine, "learns": learns}
        trainer = AnyformerTrainer(model=model, args=arguments, train_dataset=rows, data_collator=collate, **parts)
        watch = SecondStep(ledger, micro_batches, around, lambda: trainer.model_wrapped)
        trainer.add_callback(watch)
        with ledger(), StepFunctions(ledger, of_gpus=not devices.is_cpu), suppress(Done):
            trainer.train()
        calls = ledger.calls
        return Rehearsal(
            model=type(plain(model)).__name__.removeprefix("FSDP"),
            parameters=engine.parameters_of(model),
            devices=devices,
            mesh={NAMES.get(name, name): size for name, size in mesh.items()},
            rows=arguments.per_device_train_batch_size,
            tokens=batch.tokens + batch.targets,
            accumulation=micro_batches,
            half=half,
            peak_bytes=ledger.peak,
            peak_in=ledger.peak_in,
            alive={kind: size for kind, size in ledger.peak_alive.items() if size},
            weights_bytes=watch.weights,
            gradients_bytes=watch.gradients,
            states_bytes=watch.states,
            flops_of=dict(ledger.flops),
            seconds_of=dict(ledger.seconds),
            collectives=[Collective(*key[:2], calls[key], ledger.sizes[key], key[2]) for key in calls if calls[key]],
            notes=notes,
        )


def reduced(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook of DDP that sums a bucket of gradients: the fake process group's own answer is none that DDP reads."""
    dist.all_reduce(bucket.buffer())
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


class Done(Exception):
    """The second step has been made."""


class SecondStep(TrainerCallback):
    """Lets a ledger count the second step of a training, and ends the training after it.

    micro_batches: of a step of the run, of which two are made at most: what the first does counts for all but the last.
    around: makes a block for the step. wrapped: gives the model as the trainer has wrapped it.
    """

    def __init__(self, ledger: Ledger, micro_batches: int, around: Callable, wrapped: Callable):
        self.ledger, self.micro_batches, self.around, self.wrapped = ledger, micro_batches, around, wrapped
        self.weights = self.gradients = self.states = 0
        self.block = ExitStack()

    def on_train_begin(self, args, state, control, **kwargs):
        if self.ledger.fake is not None and isinstance(self.wrapped(), DistributedDataParallel):
            self.wrapped().register_comm_hook(None, reduced)

    def on_step_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        self.ledger.phase, self.ledger.place = FORWARD, ""
        if state.global_step == 1:
            weights = [local(p) for p in model.parameters()]
            states = [local(x) for x in tree_leaves([*optimizer.state.values()]) if isinstance(x, torch.Tensor)]
            self.weights, self.states = bytes_of(weights), bytes_of(states)
            self.ledger.begin({WEIGHTS: weights, STATES: states}, max(1, self.micro_batches - 1))
            self.block.enter_context(self.around())

    def on_substep_end(self, args, state, control, **kwargs):
        self.ledger.times = min(1, self.ledger.times)
        self.ledger.rename((ACTIVATIONS,), GRADIENTS)  # what a micro-batch leaves

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        gradients = [local(p.grad) for p in model.parameters() if p.grad is not None]
        self.gradients = bytes_of(gradients)
        self.ledger.tell(gradients, GRADIENTS)
        self.ledger.phase, self.ledger.place = OPTIMIZER, ""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.block.close()
            raise Done


# --------------------------------------------------------------------------------------------------- what is trained


def built(
    recipe: Recipe, objective: Objective, devices: Devices, engine: Engine, device, ledger: Ledger, notes: list[str]
):
    """The recipe's model as a run builds it, without the weights of a checkpoint; notes are added to `notes`."""
    config, lora = planned_config(recipe, objective, notes), recipe.training.lora
    computed, experts = planned_dtype(recipe.training, devices), recipe.model.experts_implementation
    backends = counted_backend(recipe, config, devices.is_cpu)
    backends |= {} if experts == AUTO else {"experts_implementation": experts}
    build = partial(
        getattr(transformers, objective.auto_class).from_config,
        config,
        dtype=torch.float32 if lora is None else dtype_of_base(lora.base, computed),
        trust_remote_code=recipe.trust_remote_code,
        **backends,
    )
    if ledger.fake is None:
        model = built_late(build) if engine.builds_late else build()
    else:
        with torch.device("meta"):  # where initial values are not even drawn
            model = build()
        with ledger.fake:
            model.to_empty(device="cpu")
            model.tie_weights()
    with ledger():
        model = engine.share(model, device)
        freeze(model, recipe.training.freeze)
        if lora is not None:
            is_whole = type(model).__name__.removeprefix("FSDP") in (config.architectures or ())
            inside = f"{model.base_model_prefix}."
            fresh = [] if is_whole else [name for name, _ in model.named_parameters() if not name.startswith(inside)]
            model.name_or_path = recipe.model.name_or_path or recipe.name
            model = with_lora(model, lora, objective.auto_class, fresh, objective.unused_weights)
    if (why := without_logits(plain(model))) is not None:
        notes.append(why)
    return model


def row_of(batch: Batch, model, objective: Objective, documents: int) -> dict[str, torch.Tensor]:
    """A row of a batch, of several documents of equal length."""
    inputs = batch.inputs(model)
    row = {name: torch.zeros(x.shape[1:], dtype=x.dtype) for name, x in inputs.items() if name != "labels"}
    row["labels"] = inputs["labels"][0]
    for name, shape in objective.row_labels.items():
        sizes = [getattr(model.config, size) if isinstance(size, str) else size for size in shape]
        row[name] = torch.zeros(sizes, dtype=torch.long)
    if documents > 1:
        row["position_ids"] = torch.arange(batch.tokens) % -(-batch.tokens // documents)
    return row


def together(objective: Objective, rows: list[dict]) -> dict:
    """A batch of rows, of each as many sequences as the objective's rows have."""
    names = [name for name, x in rows[0].items() if isinstance(x, torch.Tensor)]
    batch, sequences = {name: torch.stack([row[name] for row in rows]) for name in names}, objective.planned().sequences
    for name in batch.keys() - objective.row_labels.keys():
        is_of_choices = name == "input_ids" and batch[name].dim() == 3
        batch[name] = batch[name].repeat_interleave(sequences, dim=1 if is_of_choices else 0)
    return batch | row_ids(rows)


# ------------------------------------------------------------------------------------------------- where a step is


def dimensions_of(model) -> dict[str, str]:
    """{name of a process group: of the mesh's dimension that it is}."""
    meshes = {p.device_mesh for p in model.parameters() if isinstance(p, DTensor)}
    names = [(mesh, name) for mesh in meshes for name in mesh.mesh_dim_names or ()]
    return {mesh.get_group(name).group_name: NAMES.get(name, name) for mesh, name in names}


def follow(model, ledger: Ledger) -> None:
    """Tell a ledger which part of the model is being computed, or its backward pass, and which bytes are gradients."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: ledger.tell([local(p.grad)], GRADIENTS))
    for name, module in model.named_modules():
        if 0 < len(name.split(".")) <= DEPTH:
            module.register_forward_pre_hook(partial(at, ledger, name), prepend=True)
            module.register_forward_hook(partial(left, ledger, name))


def at(ledger: Ledger, name: str, *ignored) -> None:
    ledger.place = name


def left(ledger: Ledger, name: str, module, args, outputs) -> None:
    ledger.place = name.rpartition(".")[0]
    made = (x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.requires_grad)
    if (first := next(made, None)) is not None:
        first.register_hook(partial(at, ledger, name))
