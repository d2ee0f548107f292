"""Short trainings that laws about heads and adapters share."""

import torch
from transformers import Trainer, TrainingArguments


def weights_after_a_step(model, rows: list[dict], batch_size: int, folder) -> dict:
    """The parameters of `model` after one plain gradient step on four rows, `batch_size` of them at a time."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=4 // batch_size,
        max_steps=1,
        learning_rate=0.5,
        optim="sgd",
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    return dict(model.named_parameters())


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
