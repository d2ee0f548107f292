"""Rows for a plain Trainer, and the Trainer."""

import torch


class Rows(torch.utils.data.Dataset):
    """The rows of a batch, one by one."""

    def __init__(self, batch: dict):
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch["labels"])

    def __getitem__(self, index: int) -> dict:
        return {name: x[index] for name, x in self.batch.items()}


def rows_of(batch: dict) -> Rows:
    """A data set of a labelled batch."""
    return Rows({name: x.cpu() for name, x in batch.items()})


def plain_trainer(model, folder: str, rows: Rows | None = None, **arguments):
    """transformers' own Trainer, silent, on the device of the model."""
    from transformers import Trainer, TrainingArguments

    fixed = {"report_to": [], "disable_tqdm": True, "use_cpu": model.device.type == "cpu", "logging_steps": 10**6}
    fixed |= {"save_strategy": "no", "seed": 5, "dataloader_pin_memory": False}
    return Trainer(model=model, args=TrainingArguments(output_dir=folder, **(fixed | arguments)), train_dataset=rows)
