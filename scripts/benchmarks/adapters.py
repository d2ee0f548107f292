"""An adapter of a native LLaMA in bf16: a step of ours beside one of TRL's SFTTrainer."""

from importlib.util import find_spec

import attention
import torch
from anyformer.pipelines.accounting.lora import plain, with_lora
from anyformer.pipelines.likelihoods.without_logits import without_logits
from anyformer.pipelines.recipes.schema import LoraSettings
from models import autocast, decoder, forward_backward

LORA = LoraSettings(dropout=0.0, target_modules="all-linear")


def adapter(device, dtype: str, rows: str, checkpointed: bool, batch: int, length: int, vocab: int, **sizes) -> dict:
    """Gradients of LoRA on all linear layers: TRL (where it is installed), the class's own loss, ours.

    rows: those of TRL, "packed", which keeps documents apart, or "plain", which lets them see each other.
    """
    positions = torch.cat([attention.documents(length) for _ in range(batch)])
    ids = torch.randint(5, vocab, positions.shape, generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "labels": ids.masked_fill(positions == 0, -100), "position_ids": positions}

    def model(backend: str):
        torch.manual_seed(0)
        model_class, config = decoder(vocab, length=length, **sizes)
        base = model_class._from_config(config, attn_implementation=backend, dtype=torch.bfloat16)
        base.config.use_cache = False
        if checkpointed:
            base.gradient_checkpointing_enable()
            base.enable_input_require_grads()
        return with_lora(base, LORA, "AutoModelForCausalLM", [])

    ours = model("anyformer")
    without_logits(plain(ours))
    variants = {"trl": trl_step(model("sdpa"), inputs, rows == "packed", dtype)} if find_spec("trl") else {}
    variants["own loss"] = forward_backward(model("anyformer"), inputs, dtype)
    return variants | {"ours": forward_backward(ours, inputs, dtype)}


def trl_step(model, inputs: dict, packed: bool, dtype: str):
    """The same of TRL, on documents that it packs into one row, or on rows as they are."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    vocabulary = Tokenizer(models.WordLevel({"<end>": 0}, "<end>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, eos_token="<end>", pad_token="<end>")
    starts = inputs["position_ids"].flatten().eq(0).nonzero().flatten()[1:].tolist()
    texts = inputs["input_ids"].flatten().tensor_split(starts) if packed else inputs["input_ids"]
    rows, length = inputs["input_ids"].shape
    options = {"bf16": dtype == "bf16", "use_cpu": True, "packing": packed, "max_length": length, "report_to": "none"}
    options |= {"per_device_train_batch_size": rows, "gradient_checkpointing": plain(model).is_gradient_checkpointing}
    data = Dataset.from_dict({"input_ids": [text.tolist() for text in texts]})
    trainer = SFTTrainer(model, SFTConfig(**options), train_dataset=data, processing_class=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        with autocast(dtype):
            loss = trainer.compute_loss(trainer.model.train(), batch)
        loss.backward()
        return loss.detach()

    return step
