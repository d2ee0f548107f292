"""Native models and ours with equal weights, their batches, and an optimizer step as a variant of a benchmark."""

import contextlib

import torch
import transformers

import anyformer


def common(hidden: int, layers: int, heads: int, **_) -> dict:
    """Fields of most configs."""
    return {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}


def decoder(vocab: int, hidden: int, length: int, **sizes) -> tuple:
    """Return (class, config) of LLaMA, untied. The functions below return those of other architectures."""
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(
        vocab_size=vocab,
        intermediate_size=-(-8 * hidden // (3 * 64)) * 64,
        max_position_embeddings=length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        **common(hidden, **sizes),
    )


def moe(vocab: int, heads: int, length: int, experts: int, channels: int, **sizes) -> tuple:
    """Mixtral with two experts a token. Its balance loss is left out, because its formula differs from ours."""
    return transformers.MixtralForCausalLM, transformers.MixtralConfig(
        vocab_size=vocab,
        intermediate_size=channels,
        num_key_value_heads=heads,
        num_local_experts=experts,
        num_experts_per_tok=2,
        max_position_embeddings=length,
        router_aux_loss_coef=0.0,
        **common(heads=heads, **sizes),
    )


def masked(vocab: int, hidden: int, **sizes) -> tuple:
    """BERT without dropout."""
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(
        vocab_size=vocab, intermediate_size=4 * hidden, **dropout, **common(hidden, **sizes)
    )
    return transformers.BertForMaskedLM, config


def seq2seq(vocab: int, hidden: int, layers: int, heads: int, channels: int, **_) -> tuple:
    """T5 v1.1."""
    return transformers.T5ForConditionalGeneration, transformers.T5Config(
        vocab_size=vocab,
        d_model=hidden,
        d_kv=hidden // heads,
        d_ff=channels,
        num_layers=layers,
        num_heads=heads,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )


def vit(hidden: int, image: int, **sizes) -> tuple:
    """Images in patches of 16 x 16 pixels, 1,000 classes."""
    config = transformers.ViTConfig(
        image_size=image, intermediate_size=4 * hidden, num_labels=1000, **common(hidden, **sizes)
    )
    return transformers.ViTForImageClassification, config


FAMILIES = {each.__name__: each for each in (decoder, moe, masked, seq2seq, vit)}


def model_of(family: str, variant: str, sizes: dict, device: str = "cpu"):
    """A model with fixed random weights, in fp32.

    variant: "ours", or "native" and the kind of attention (sdpa where none is named) or, in a moe, of experts (`loop`:
    one expert after the other).
    """
    torch.manual_seed(0)
    model_class, config = FAMILIES[family](**sizes)
    kind = variant.removeprefix("native").removesuffix("compiled").strip() if variant.startswith("native") else ""
    attention = "sdpa" if family == "moe" else kind or "sdpa"
    with torch.device(device):
        native = model_class._from_config(config, attn_implementation=attention)
    model = native if variant.startswith("native") else anyformer.from_native(native).to(device)
    if family == "moe" and kind:
        model.set_experts_implementation({"loop": "eager"}.get(kind, kind))
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    return model


def batch_of(family: str, sizes: dict, device: str = "cpu") -> dict:
    """Random inputs with labels. Masked: rows of 20 to 100 % of the longest, 15 % of their tokens labelled."""
    drawn, rows = torch.Generator().manual_seed(0), sizes["batch"]
    if family == "vit":
        images = torch.randn(rows, 3, sizes["image"], sizes["image"], generator=drawn)
        batch = {"pixel_values": images, "labels": torch.randint(1000, (rows,), generator=drawn)}
    else:
        vocab, length = sizes["vocab"], sizes["length"]
        ids = torch.randint(5, vocab, (rows, length), generator=drawn)
        batch = {"input_ids": ids, "labels": ids}
    if family == "masked":
        real = torch.arange(length) < torch.linspace(0.2, 1.0, rows)[:, None] * length
        chosen = (torch.rand(rows, length, generator=drawn) < 0.15) & real
        batch = {"input_ids": ids.where(real, torch.tensor(0)), "attention_mask": real.long()}
        batch["labels"] = ids.where(chosen, torch.tensor(-100))
    if family == "seq2seq":
        batch["labels"] = torch.randint(3, vocab, (rows, sizes["targets"]), generator=drawn)
    return {name: x.to(device) for name, x in batch.items()}


def autocast(dtype: str, device: str = "cpu"):
    """bf16 by autocast, or nothing."""
    return torch.autocast(device, torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext()


class Step:
    """A model with its optimizer, on a fixed batch. Calling it takes a step and returns the loss before it.

    A step is forward, backward, clipping, fused AdamW and clearing the gradients.
    """

    def __init__(self, model, batch: dict, dtype: str, is_compiled: bool = False, lr: float = 1e-4):
        self.model, self.batch, self.dtype = model.train(), batch, dtype
        self.device = next(iter(batch.values())).device.type
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
        self.forward = model
        if is_compiled and self.device == "cuda":  # layer by layer: compiling one graph of 24 layers takes minutes
            for layers in [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]:
                for layer in layers:
                    layer.compile(dynamic=False)
        elif is_compiled:
            self.forward = torch.compile(model, dynamic=False)

    def __call__(self) -> torch.Tensor:
        with autocast(self.dtype, self.device):
            loss = self.forward(**self.batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def forward_backward(model, batch: dict, dtype: str):
    """Return a function that computes the gradients from zero and returns the loss."""

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        with autocast(dtype, model.device.type):
            loss = model.train()(**batch).loss
        loss.backward()
        return loss.detach()

    return step
