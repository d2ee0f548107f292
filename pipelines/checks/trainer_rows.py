"""transformers' plain Trainer and its data set, for the laws that train or evaluate with it."""


def rows_of(batch: dict) -> list[dict]:
    """A batch as a data set: a dict of CPU tensors for each row."""
    return [{name: x[row].cpu() for name, x in batch.items()} for row in range(len(batch["labels"]))]


def plain_trainer(model, folder: str, rows: list[dict] | None = None, **arguments):
    """transformers' own Trainer, silent, on the device of the model."""
    from transformers import Trainer, TrainingArguments

    fixed = {"report_to": [], "disable_tqdm": True, "use_cpu": model.device.type == "cpu", "logging_steps": 10**6}
    fixed |= {"save_strategy": "no", "seed": 5, "dataloader_pin_memory": False}
    return Trainer(model=model, args=TrainingArguments(output_dir=folder, **(fixed | arguments)), train_dataset=rows)
