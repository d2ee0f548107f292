"""Planted bugs of how a model is trained, saved, adapted and compiled."""

import torch
from planting import bug
from torch.nn.functional import dropout, linear

# ------------------------------------------------------------------------------------------ evaluation and dropout


@bug("llama", "evaluation")
class LogitsHiddenFromPredict:
    def plant(self):
        self.config.keys_to_ignore_at_inference = ["logits", "cache", "past_key_values"]


@bug("llama", "evaluation")
class ALossInTrainingAlone:
    def forward(self, labels=None, **inputs):
        return super().forward(labels=labels if self.training else None, **inputs)


@bug("gpt2", "randomness", part=r".*drop(out)?")
class DropoutInEvaluation:
    def forward(self, x):
        return dropout(x, self.p, training=True)


@bug("bert:masked", "randomness", part=r".*(dropout|attention\.self)")
class DropoutNeverDrawn:
    def forward(self, *args, **inputs):
        self.training = False
        return super().forward(*args, **inputs)


# ---------------------------------------------------------------------------------- accumulation and several processes


@bug("llama", "accumulation")
class AMeanOfMeans:
    def forward(self, num_items_in_batch=None, **inputs):
        return super().forward(**inputs)


@bug("llama", "accumulation")
class AnAuxiliaryLossInEveryPart:
    def forward(self, **inputs):
        out = super().forward(**inputs)
        if out.loss is not None:
            out.loss = out.loss + out.logits.square().mean() / 10
        return out


@bug("llama", "processes")
class AWeightBypassesTheProcesses:
    _ddp_params_and_buffers_to_ignore = ("lm_head.weight",)


# --------------------------------------------------------------------------------------- checkpointing and resuming


@bug("llama", "checkpointing")
class CheckpointingWithoutEffect:
    def _set_gradient_checkpointing(self, *args, **kwargs):
        pass


@bug("bert:masked", "checkpointing")
class CheckpointingDrawsAnotherDropout:
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        super().gradient_checkpointing_enable((gradient_checkpointing_kwargs or {}) | {"preserve_rng_state": False})


@bug("llama", "checkpointing", part=r"model\.layers\.1")
class CheckpointingLosesAGradient:
    def forward(self, hidden_states, *args, **inputs):
        if self.gradient_checkpointing:
            hidden_states = hidden_states.detach().requires_grad_()
        return super().forward(hidden_states, *args, **inputs)


@bug("llama", "resume")
class ACounterIsNotResumed:
    def plant(self):
        self.steps = 0

    def forward(self, **inputs):
        out = super().forward(**inputs)
        if self.training:
            self.steps += 1
            out.loss = out.loss / self.steps
        return out


# ------------------------------------------------------------------------------------------------ weights and configs


@bug("llama", "saving")
class AKeyRenamedAtSaving:
    def save_pretrained(self, folder, **how):
        weights = {name.replace("up_proj", "w3"): x for name, x in self.state_dict().items()}
        super().save_pretrained(folder, state_dict=weights, **how)


@bug("llama", "saving")
class ABufferNeitherSavedNorRebuilt:
    def plant(self):
        self.register_buffer("scales", torch.linspace(1, 2, self.config.vocab_size), persistent=False)

    def forward(self, **inputs):
        out = super().forward(**inputs)
        out.logits = out.logits * self.scales
        return out


@bug("llama", "config")
class AFieldMissingFromTheFile:
    def plant(self):
        become_config(self.config, DropsAField)


class DropsAField:
    def to_dict(self):
        fields = super().to_dict()
        del fields["rms_norm_eps"]
        return fields


def become_config(config, mixin: type) -> None:
    """Put a mixin before the class of a config that differs from its defaults."""
    config.rms_norm_eps = 1e-4
    if not isinstance(config, mixin):
        native = type(config)
        config.__class__ = type(native.__name__, (mixin, native), {"__module__": native.__module__})


@bug("llama", "resizing")
class OutputsNotResized:
    def get_output_embeddings(self):
        return None


@bug("gpt2", "resizing")
class ATieLostByResizing:
    def resize_token_embeddings(self, *args, **how):
        super().resize_token_embeddings(*args, **how)
        self.lm_head.weight = torch.nn.Parameter(self.lm_head.weight.clone())


@bug("llama", "initialisation")
class AWeightLeftAsTheMemoryWas:
    def plant(self):
        self.gate = torch.nn.Parameter(torch.ones(8))

    def forward(self, **inputs):
        out = super().forward(**inputs)
        out.logits = out.logits * self.gate.mean()
        return out


@bug("llama", "initialisation", part="model")
class ASpreadOfItsOwn:
    def _init_weights(self, module):
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=0.2)
        else:
            super()._init_weights(module)


@bug("llama", "dtypes", part=r".*\.mlp")
class AnOverflowInFp16:
    def forward(self, x):
        return super().forward(x).mul(1e7).div(1e7)


@bug("llama", "dtypes")
class AWeightKeptInFp32CastDown:
    _keep_in_fp32_modules_strict = ("norm",)

    @classmethod
    def from_pretrained(cls, *args, dtype, **how):
        return super().from_pretrained(*args, dtype=dtype, **how).to(dtype)


# -------------------------------------------------------------------------------------------- adapters and compilers


@bug("llama", "adapters", part=r".*\.mlp")
class AdaptersBypassed:
    def forward(self, x):
        inner = self.act_fn(linear(x, self.gate_proj.weight)) * linear(x, self.up_proj.weight)
        return linear(inner, self.down_proj.weight)


@bug("opt", "compiled")
class ABreakInTheGraph:
    def forward(self, **inputs):
        out = super().forward(**inputs)
        if inputs.get("labels") is not None and out.loss.item() > 1e6:
            print("the loss is large")
        return out


@bug("opt", "compiled")
class ANumberReadInExport:
    def forward(self, **inputs):
        if inputs["input_ids"].max() >= self.config.vocab_size:
            raise ValueError("no such token")
        return super().forward(**inputs)


@bug("opt", "compiled")
class AnotherResultWhereCompiled:
    def forward(self, **inputs):
        out = super().forward(**inputs)
        if torch.compiler.is_compiling() and out.loss is not None:
            out.loss = out.loss * 1.01
        return out
