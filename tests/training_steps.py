"""Short trainings, batches and folders that laws about heads, adapters and pipelines share."""

import torch
from transformers import Trainer, TrainingArguments


def weights_after_a_step(model, rows: list[dict], batch_size: int, folder) -> dict:
    """The parameters of `model` after one plain gradient step on four rows, `batch_size` of them at a time."""
    sgd = {"optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "learning_rate": 0.5}
    sgd |= {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": 4 // batch_size}
    arguments = small_arguments(folder, max_steps=1, save_strategy="no", remove_unused_columns=True, **sgd)
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    return dict(model.named_parameters())


def small_arguments(folder, **own) -> TrainingArguments:
    """Of a training on the CPU that logs each step to its folder alone; keyword arguments override."""
    defaults = {"max_steps": 12, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "logging_steps": 1}
    defaults |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "dataloader_pin_memory": False}
    defaults |= {"remove_unused_columns": False, "prediction_loss_only": True, "logging_nan_inf_filter": False}
    return TrainingArguments(**{"output_dir": str(folder)} | defaults | own)


def fit(model, batch: dict, steps: int = 15, lr: float = 2e-2) -> list[float]:
    """The losses of some steps on one batch; the model is left in evaluation mode."""
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    losses = []
    for _ in range(steps):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return losses


def batch_of(tokenizer, texts: list[str]) -> dict:
    """Texts as a padded batch of a language model, with labels."""
    tokens = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    return {**tokens, "labels": tokens["input_ids"].masked_fill(tokens["attention_mask"] == 0, -100)}


def spread(model):
    """The model with matrices of large random weights: logits of a fresh one are all but equal."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(std=0.3)
    return model.eval()


def saved_with(tokenizer, model, folder) -> str:
    """The folder, in which both are saved."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
