"""What an objective's settings allow, and which models, tokenizers and metrics go with it."""

from dataclasses import fields

from ..errors import UserError
from ..tokenizers.special_tokens import NEEDED, framing_of, special_tokens, tokenizer_section
from .image_checks import FIELDS_OF as OF_IMAGES
from .schema import ObjectiveSection, Recipe
from .types import show

# The fields of the objective section that one objective alone reads.
FIELDS_OF = {
    "masked": ("mask_probability", "mask_replace", "random_replace"),
    "span_corruption": ("noise_density", "mean_span_length"),
}
FAMILIES = {"causal": ("decoder", "moe"), "masked": ("encoder",), "span_corruption": ("seq2seq",)}
# Metrics that mean something for one objective alone: the others predict a part of the tokens only.
CAUSAL_METRICS = ("unigram_perplexity", "word_perplexity")


def check_objective(recipe: Recipe) -> None:
    """Raise UserError for the first setting of the objective that has no effect or cannot be learned from."""
    section = recipe.objective
    _check_fields(section)
    family = recipe.model.family
    if family is not None and family not in FAMILIES[section.name]:
        raise UserError(
            f"model.family={family} does not go with objective.name={section.name}; it takes "
            f"{' or '.join(FAMILIES[section.name])}"
        )
    if section.name != "causal":
        for name in recipe.evaluation.metrics or []:
            if name in CAUSAL_METRICS:
                raise UserError(
                    f"evaluation.metrics: {name} counts every token, but objective.name={section.name} "
                    f"predicts only some; known: perplexity"
                )
        if recipe.evaluation.sample_prompts:
            raise UserError(
                f"evaluation.sample_prompts has no effect with objective.name={section.name}, which does not learn to "
                f"continue a text; remove it"
            )


def _check_fields(section: ObjectiveSection) -> None:
    read = FIELDS_OF.get(section.name, ())
    for field in fields(ObjectiveSection):
        owners = {name: own for name, own in (FIELDS_OF | OF_IMAGES).items()}
        owner = next((name for name, own in owners.items() if field.name in own), None)
        if owner is not None and field.name not in read and getattr(section, field.name) != field.default:
            raise UserError(
                f"objective.{field.name} has no effect with objective.name={section.name}; it belongs to {owner}"
            )
    smallest = section.noise_density / (1 - section.noise_density)
    if section.mean_span_length < smallest:
        raise UserError(
            f"objective.mean_span_length={show(section.mean_span_length)} must be at least {smallest:.3g} with "
            f"objective.noise_density={show(section.noise_density)}, so that a kept token stands between two spans"
        )
    if section.mask_replace + section.random_replace > 1:
        raise UserError(
            f"objective.mask_replace={show(section.mask_replace)} and "
            f"objective.random_replace={show(section.random_replace)} are shares of the same tokens; "
            f"together they must be at most 1"
        )


def check_framing(recipe: Recipe) -> None:
    """Raise UserError for a framing the objective cannot work with, or that a pretrained tokenizer would not have."""
    section = recipe.tokenizer
    if section.name_or_path is not None:
        for name in ("framing", "sentinels"):
            if getattr(section, name) is not None:
                raise UserError(
                    f"tokenizer.{name}={show(getattr(section, name))} has no effect with tokenizer.name_or_path; "
                    f"a pretrained tokenizer has its own"
                )
        return
    if recipe.task is None:
        objective = recipe.objective.name
        needed, found = NEEDED[objective], framing_of(recipe)
        if objective != "causal" and found != needed:
            raise UserError(f"tokenizer.framing={found} does not go with objective.name={objective}; it takes {needed}")
        if objective == "span_corruption" and section.sentinels == 0:
            raise UserError("tokenizer.sentinels=0 does not go with objective.name=span_corruption; T5 has 100")


def smallest_vocabulary(recipe: Recipe) -> int:
    """Entries that a byte_bpe tokenizer of this recipe has at least: the bytes and the special tokens."""
    return 256 + len(special_tokens(tokenizer_section(recipe)))
