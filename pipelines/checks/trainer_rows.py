"""Rows for a plain Trainer, and the Trainer."""


def rows_of(batch: dict) -> list[dict]:
    """The rows of a batch, one by one, as a data set."""
    return [{name: x[row].cpu() for name, x in batch.items()} for row in range(len(batch["labels"]))]


def plain_trainer(model, folder: str, rows: list[dict] | None = None, **arguments):
    """transformers' own Trainer, silent, on the device of the model."""
    from transformers import Trainer, TrainingArguments

    fixed = {"report_to": [], "disable_tqdm": True, "use_cpu": model.device.type == "cpu", "logging_steps": 10**6}
    fixed |= {"save_strategy": "no", "seed": 5, "dataloader_pin_memory": False}
    return Trainer(model=model, args=TrainingArguments(output_dir=folder, **(fixed | arguments)), train_dataset=rows)
