"""Pipeline parallelism: a causal model in stages of layers, one per process, trained by torch's 1F1B schedule.

Each process keeps its stage of the model, with placeholders for the other stages, so that weights keep their names. A
stage alternates between the forward pass of one micro-batch and the backward pass of another (Narayanan et al. 2019),
so it holds the activations of few. transformers' own pipeline (pp_size) has no backward pass and returns no loss.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ...accounting.flops import FlopCount
from ...data.batch_keys import IGNORE_INDEX
from ...errors import UserError
from ...patches import write
from ...recipes.parallelism import FIELD, check_model_shares, words_of
from ..checkpoints.stored_weights import stored_weights
from .late_weights import fill
from .mesh import Mesh

PARTS_PER_STAGE = 4  # micro-batches; each of S stages idles for the time of S - 1 of them: a fifth of a step at 4 S


class Elsewhere(nn.Module):
    """Placeholder for a part of the model that another stage has: it returns hidden states unchanged."""

    def forward(self, hidden_states, *args, **kwargs):
        return hidden_states


class Stage(nn.Module):
    """The forward pass of one process: tokens (B, T) or hidden states (B, T, D) -> hidden states, or the loss (1,).

    labels_counted: the last stage divides its loss by it.
    """

    def __init__(self, model, is_first: bool, is_last: bool):
        super().__init__()
        self.model, self.is_first, self.is_last = model, is_first, is_last
        self.labels_counted: torch.Tensor | int = 1
        self.autocast: Callable[[], AbstractContextManager] = nullcontext

    def forward(self, x, labels=None, **context):
        inputs = {"input_ids" if self.is_first else "inputs_embeds": x} | context
        with self.autocast():
            if not self.is_last:
                return self.model.base_model(**inputs, use_cache=False).last_hidden_state
            outputs = self.model(**inputs, labels=labels, use_cache=False, num_items_in_batch=self.labels_counted)
            return outputs.loss.reshape(1)


class Stages(Mesh):
    """A mesh whose processes each have some of the layers; `model.pipeline` trains and evaluates the model."""

    repeats_weights = False
    clips_itself = True

    def share(self, model, device):
        """Reduce the model to the stage of this process, on its device.

        Raises UserError for a model without a plan of stages (`pp_plan`).
        """
        settings = self.parallelism
        check_model_shares(settings, model.config)
        plan = getattr(model, "pp_plan", None) or {}
        needed = {"embed_tokens", "layers", "norm", "lm_head"}
        if {name.rsplit(".", 1)[-1] for name in plan} != needed:
            raise UserError(f"{FIELD}={words_of(settings)}: {type(model).__name__} has no plan of stages; set pp to 1")
        model.pipeline = Pipeline(model, settings.pp, device)
        return model

    def parameters_of(self, model, trained: bool = False) -> int:
        return model.pipeline.parameters

    def active_parameters(self, model) -> int:
        return model.pipeline.parameters

    def running(self, wrapped) -> str:
        return f"Schedule1F1B(pp {self.parallelism.pp})"

    # ---- called by the trainer

    @contextmanager
    def entered(self, trainer_settings: dict):
        with super().entered(trainer_settings):
            yield
        trainer_settings["args"].max_grad_norm = 0  # Trainer would clip each stage alone; `clip` clips all

    def check_begun(self, trainer) -> None:
        """Nothing to check: `share` has split the model, or raised an error."""

    def check_losses(self, trainer) -> None:
        measures = trainer.scores is not None and bool(trainer.scores.predicts)
        has_parts = trainer.parts.told_apart_by is not None or trainer.parts.of_rows is not None
        if has_parts or measures or trainer.model_loss.function is not None:
            raise UserError(
                f"{FIELD}={words_of(self.parallelism)} trains the loss of a causal model alone, without metrics of its "
                f"answers and parts of its data; set pp to 1"
            )

    def load_weights(self, trainer, folder: Path) -> bool:
        weights = stored_weights(trainer.model, folder)  # those of all stages
        trainer.model.load_state_dict({name: weights[name] for name in trainer.model.state_dict()}, strict=True)
        return True

    def whole_state(self, trainer) -> dict:
        return trainer.model.pipeline.whole_state()

    def train_step(self, trainer, inputs: dict, labels_counted):
        trainer.model.train()
        inputs, last = trainer._prepare_inputs(inputs), trainer.accelerator.sync_gradients
        return trainer.model.pipeline.train_step(inputs, labels_counted, last, trainer.accelerator.autocast)

    def clip(self, trainer):
        return trainer.model.pipeline.clip_gradients(self.section.max_grad_norm)

    def summed_loss(self, trainer, inputs: dict):
        return trainer.model.pipeline.summed_loss(inputs, trainer.accelerator.autocast)

    def flop_count(self, model):
        return model.pipeline.flop_count


class Pipeline:
    """The pipeline of a model's stages, of which this process has one.

    Args:
        model: the whole model; it is reduced in place to this process's stage.
        stages: number of stages and of processes; all have equally many layers.
        device: of this process.
    """

    def __init__(self, model, stages: int, device: torch.device):
        self.stages, self.device, self.rank = stages, device, dist.get_rank()
        self.is_first, self.is_last = self.rank == 0, self.rank == stages - 1
        self.parameters = sum(p.numel() for p in model.parameters())
        self.flop_count = FlopCount(model)
        self.width, self.dtype = model.config.hidden_size, model.dtype
        base, head = model.base_model, model.get_output_embeddings()
        self.is_tied = head.weight is base.embed_tokens.weight
        of_each = len(base.layers) // stages
        for i in range(len(base.layers)):
            if i // of_each != self.rank:
                base.layers[i] = Elsewhere()
        if not self.is_first:
            base.embed_tokens = Elsewhere()
        if not self.is_last:
            base.norm, model.lm_head = nn.Identity(), Elsewhere()
        fill(model)
        model.to(device)
        write(model, "_is_distributed_loading_by_transformers", True)
        self.model, self.stage, self.schedules = model, Stage(model, self.is_first, self.is_last), {}
        self.ends = dist.new_group([0, stages - 1]) if self.is_tied else None  # all processes must call new_group

    def train_step(self, inputs: dict, labels_counted, is_last_of_step: bool, autocast=nullcontext) -> torch.Tensor:
        """Add the gradients of a batch, divided by labels_counted; return its loss, the same on all processes."""
        self.stage.labels_counted, self.stage.autocast = labels_counted, autocast
        parts = self.parts_of(len(inputs["input_ids"]))
        inputs = with_filled_rows(inputs, parts)
        tokens, labels = inputs["input_ids"], inputs["labels"]
        context = {name: x for name, x in inputs.items() if name not in ("input_ids", "labels")}
        schedule, losses = self._schedule(tokens.shape, parts), []
        if self.is_last:
            schedule.step(labels=labels, target=labels, losses=losses, return_outputs=False, **context)
        else:
            schedule.step(*([tokens] if self.is_first else []), return_outputs=False, **context)
        if is_last_of_step:
            self._add_tied_gradients()
        return self._told_by_last(torch.stack(losses).sum() if self.is_last else None)

    def parts_of(self, rows: int) -> int:
        """The number of micro-batches into which a batch is split: at least one for each stage."""
        most = max(self.stages, min(rows, PARTS_PER_STAGE * self.stages))
        return next((n for n in range(most, self.stages - 1, -1) if rows % n == 0), most)

    def _schedule(self, shape: torch.Size, parts: int):
        """The schedule for batches of a shape; stages have to know the shapes that they will receive."""
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        if (*shape, parts) not in self.schedules:
            rows, length = shape[0] // parts, shape[1]
            hidden = torch.empty(rows, length, self.width, dtype=self.dtype, device=self.device, requires_grad=True)
            tokens = torch.empty(rows, length, dtype=torch.int64, device=self.device)
            loss = torch.empty(1, device=self.device, requires_grad=True)
            stage = PipelineStage(
                self.stage,
                self.rank,
                self.stages,
                self.device,
                input_args=tokens if self.is_first else hidden,
                output_args=loss if self.is_last else hidden,
            )
            self.schedules[*shape, parts] = Schedule1F1B(
                stage, parts, loss_fn=lambda loss, labels: loss.sum(), scale_grads=False
            )
        return self.schedules[*shape, parts]

    def _add_tied_gradients(self) -> None:
        """Sum the gradients of a tied table, of which the first and the last stage have a copy and a part each."""
        if self.ends is not None and (self.is_first or self.is_last):
            gradient = (self.model.base_model.embed_tokens if self.is_first else self.model.lm_head).weight.grad
            dist.all_reduce(gradient, group=self.ends)

    def _told_by_last(self, value: torch.Tensor | None) -> torch.Tensor:
        result = torch.zeros((), device=self.device) if value is None else value.detach().float()
        dist.broadcast(result, self.stages - 1)
        return result

    @torch.no_grad()
    def summed_loss(self, inputs: dict, autocast=nullcontext) -> torch.Tensor:
        """The loss summed over a batch's labels, the same on all processes: one forward pass of the whole batch."""
        self.stage.labels_counted, self.stage.autocast = 1, autocast
        tokens, labels = inputs["input_ids"], inputs["labels"]
        context = {name: x for name, x in inputs.items() if name not in ("input_ids", "labels")}
        received = tokens
        if not self.is_first:
            received = torch.empty(*tokens.shape, self.width, dtype=self.dtype, device=self.device)
            dist.recv(received, self.rank - 1)
        outputs = self.stage(received, **({"labels": labels} if self.is_last else {}), **context)
        if not self.is_last:
            dist.send(outputs.to(self.dtype).contiguous(), self.rank + 1)
        return self._told_by_last(outputs.sum() if self.is_last else None)

    def clip_gradients(self, most: float) -> torch.Tensor:
        """Clip the gradients of all stages to one norm, `most` (0: not at all); return their norm before clipping."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        counted = gradients
        if self.is_tied and self.is_last and not self.is_first:  # the first stage counts the tied table
            counted = [g for g in gradients if g is not self.model.lm_head.weight.grad]
        squares = sum((g.float().square().sum() for g in counted), torch.zeros((), device=self.device))
        dist.all_reduce(squares)
        norm = squares.sqrt()
        if most > 0:
            scale = (most / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
            for gradient in gradients:
                gradient.mul_(scale)
        return norm

    def whole_state(self) -> dict[str, torch.Tensor]:
        """The whole weights on the first process, {} on the others; all processes must call this."""
        state = {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}
        states = [None] * self.stages if self.is_first else None
        dist.gather_object(state, states, 0)
        return {name: x for weights in states or [] for name, x in weights.items()}


def with_filled_rows(inputs: dict, parts: int) -> dict:
    """Add copies of the first row, without labels, until the rows of a batch divide into `parts`."""
    rows = len(inputs["input_ids"])
    missing = -rows % parts
    if missing == 0:
        return inputs

    def fill(name, x):
        more = x[:1].expand(missing, *x.shape[1:])
        return torch.cat((x, torch.full_like(more, IGNORE_INDEX) if name == "labels" else more))

    return {name: fill(name, x) for name, x in inputs.items()}
