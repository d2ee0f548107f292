"""Bounds of settings that are transformers' own: fields of TrainingArguments, and arguments of its schedules."""

from .schema import bounds_of

# Bounds of the fields of TrainingArguments that a recipe may set, and that stand in no section above. transformers
# looks at few of them, and at those after the data has been prepared.
ARGUMENT_BOUNDS = {
    "adam_beta1": bounds_of(at_least=0, below=1),
    "adam_epsilon": bounds_of(above=0, at_most=1),
    "label_smoothing_factor": bounds_of(at_least=0, below=1),
    "neftune_noise_alpha": bounds_of(at_least=0, at_most=1000),
    "torch_empty_cache_steps": bounds_of(at_least=1),
    "per_device_eval_batch_size": bounds_of(at_least=1, at_most=2**20),
    "eval_accumulation_steps": bounds_of(at_least=1),
    "dataloader_num_workers": bounds_of(at_least=0, at_most=1024),
    "dataloader_prefetch_factor": bounds_of(at_least=1, at_most=10_000),
    "ddp_bucket_cap_mb": bounds_of(at_least=1, at_most=100_000),
    "ddp_timeout": bounds_of(at_least=1, at_most=10**8),
}
# The same of training.lr_scheduler_kwargs, of whatever schedule of transformers reads them.
SCHEDULE_BOUNDS = {
    **dict.fromkeys(("min_lr_rate", "min_lr_ratio", "warmup_lr_rate"), bounds_of(at_least=0, at_most=1)),
    **dict.fromkeys(("min_lr", "lr_end", "num_stable_steps", "patience", "cooldown"), bounds_of(at_least=0)),
    "power": bounds_of(at_least=0.01, at_most=100),
    "num_cycles": bounds_of(above=0, at_most=100_000),
    "timescale": bounds_of(at_least=1),
    "factor": bounds_of(above=0, below=1),
}
# Arguments that transformers leaves unread without another setting.
READ_WITH = {
    "dataloader_prefetch_factor": "dataloader_num_workers",
    "dataloader_persistent_workers": "dataloader_num_workers",
    "fsdp_config": "fsdp",
    "gradient_checkpointing_kwargs": "gradient_checkpointing",
    "liger_kernel_config": "use_liger_kernel",
    "torch_compile_backend": "torch_compile",
    "torch_compile_mode": "torch_compile",
}
