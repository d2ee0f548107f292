"""FSDP2 as launchers ask for it: `--launch fsdp2` and accelerate's variables become training.parallelism (mesh.py)."""

import os
from dataclasses import replace

from ...errors import UserError
from ...recipes.checks import check_recipe
from ...recipes.parallelism import FIELD
from ...recipes.schema import ParallelismSettings, Recipe
from .engine import is_true

BY_BLOCKS = f"with {FIELD} each block of the model is split by itself; leave it out"
# {variable of `accelerate launch`: (values that mean what is done anyway, what to do in place of others)}. Those that
# accelerate itself reads for FSDP1 alone are left out.
TAKEN = {
    "FSDP_VERSION": (("2",), "FSDP1 is not wired; set it to 2"),
    "FSDP_SHARDING_STRATEGY": (("FULL_SHARD",), "this key is of FSDP1; set parallelism_config_dp_replicate_size"),
    "FSDP_RESHARD_AFTER_FORWARD": (("true",), "weights are freed after the forward pass of a block; set it to true"),
    "FSDP_AUTO_WRAP_POLICY": (("TRANSFORMER_BASED_WRAP",), BY_BLOCKS),
    "FSDP_TRANSFORMER_CLS_TO_WRAP": ((), BY_BLOCKS),
    "FSDP_IGNORED_MODULES": ((), "all weights are split; leave it out"),
    "FSDP_STATE_DICT_TYPE": (("FULL_STATE_DICT",), "weights are saved whole, and states in shards; leave it out"),
    "FSDP_ACTIVATION_CHECKPOINTING": (("false",), "write training.gradient_checkpointing=true in its place"),
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": (("false",), "it is not wired; set it to false"),
    "PARALLELISM_CONFIG_CP_SIZE": (("1",), "context parallelism is not wired; set it to 1"),
    "PARALLELISM_CONFIG_SP_SIZE": (("1",), "sp runs by --launch zero3; set it to 1"),
}
SIZES = ("dp_replicate", "dp_shard", "tp")


def with_shards(recipe: Recipe, **settings) -> Recipe:
    """The recipe with this training.parallelism; raises UserError where it does not go with the rest."""
    shared = replace(recipe, training=replace(recipe.training, parallelism=ParallelismSettings(**settings)))
    check_recipe(shared)
    return shared


def as_accelerate_asks(recipe: Recipe) -> Recipe:
    """The recipe with the training.parallelism of `accelerate launch --use_fsdp`; itself under other launchers.

    The launcher's variables are removed, since accelerate would split the model by them. Raises UserError for one that
    cannot be honoured.
    """
    if not is_true("ACCELERATE_USE_FSDP") or recipe.training.parallelism is not None:
        return recipe
    for variable, (taken, otherwise) in TAKEN.items():
        value = os.environ.get(variable)
        if value is not None and value not in taken:
            raise UserError(f"{variable.lower()}={value}, for accelerate launch: {otherwise}")
    sizes = {name: int(os.environ.get(f"PARALLELISM_CONFIG_{name.upper()}_SIZE", 1)) for name in SIZES}
    if not is_true("ACCELERATE_USE_PARALLELISM_CONFIG"):
        sizes = {"dp_shard": int(os.environ.get("WORLD_SIZE", 1))}
    shared = with_shards(recipe, **sizes, fsdp_cpu_offload=is_true("FSDP_OFFLOAD_PARAMS"))
    for variable in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_PARALLELISM_CONFIG"):
        os.environ.pop(variable, None)
    return shared
