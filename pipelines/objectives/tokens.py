"""The tokenizer that an objective needs: how a trained one frames texts, and which tokens any one must have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..recipes.introspection import check_beside
from ..recipes.recipe_files import chat_template_of, shipped_yaml
from ..recipes.schema import TokenizerSection
from ..recipes.tokenizer_section import SENTINELS, WITHOUT_EFFECT, WRITES_EVERY_TEXT, special_tokens
from ..recipes.types import show

if TYPE_CHECKING:
    from .base import Objective


@dataclass(frozen=True)
class Tokens:
    """The special tokens that an objective needs. A tokenizer that is trained for it gets them.

    framing: what it puts around a text ("none", "cls_sep" or "eos"; see recipes/tokenizer_section.py). of_head: {Auto
    class that a family is pretrained with: what it puts around a text instead}. sentinels: the number of tokens
    <extra_id_N>. further: from an objective to the tokens that it needs beside these.
    """

    framing: str = "none"
    of_head: Mapping[str, str] = field(default_factory=dict)
    sentinels: int = 0
    further: Callable[["Objective"], Sequence[str]] = lambda objective: ()


def further_tokens(objective: "Objective") -> list[str]:
    """The tokens that the objective, or one of its parts, needs beside framing and sentinels."""
    learned = objective.parts.values() or [objective]
    return list(dict.fromkeys(token for one in learned for token in one.tokens.further(one)))


def needed_framing(objective: "Objective") -> str:
    """What the objective needs around a text; a mixture, what its first part needs."""
    first = next(iter(objective.parts.values()), objective)
    family = first.facts.family
    return first.tokens.of_head.get(family and family.pretraining, first.tokens.framing)


def tokenizer_section(objective: "Objective") -> TokenizerSection:
    """The tokenizer section with its framing, its further tokens and number of sentinels spelled out."""
    section = objective.recipe.tokenizer
    needed = max(one.tokens.sentinels for one in objective.parts.values() or [objective])
    sentinels = needed if section.sentinels is None else section.sentinels
    further = [token for token in further_tokens(objective) if token not in section.special_tokens]
    framing = section.framing or needed_framing(objective)
    return replace(section, framing=framing, sentinels=sentinels, special_tokens=[*section.special_tokens, *further])


def train_or_load(objective: "Objective", texts: Any, given: Any = None) -> Any:
    """The recipe's tokenizer, loaded, or trained on the corpus `texts`. given: replaces it, where there is one."""
    if given is not None:
        return given
    from ..manifest import cache_folder
    from ..tokenizers.load import train_or_load_tokenizer

    section, recipe = tokenizer_section(objective), objective.recipe
    cache, trust = cache_folder(recipe.data.cache_dir), recipe.trust_remote_code
    tokenizer = train_or_load_tokenizer(section, texts, cache, trust_remote_code=trust)
    if section.chat_template is not None:
        tokenizer.chat_template = chat_template_of(section.chat_template)
    if section.chat_template == "chatml_tools":  # of ours the one that writes calls: servers read them by it
        tokenizer.response_template = shipped_yaml("chat_templates", "chatml_tools")
    return tokenizer


def check_tokenizer(objective: "Objective") -> None:
    """Raise UserError for a tokenizer section that does not go with an objective."""
    recipe, section = objective.recipe, objective.recipe.tokenizer
    if objective.tokens is None:
        why = f"has no effect with {objective.setting}; images have no text"
        names = [name for name in vars(section) if name != "name_or_path"]
        is_other = section.name_or_path != recipe.model.name_or_path
        check_beside("tokenizer", section, [*((name, True, why) for name in names), ("name_or_path", is_other, why)])
        return
    if section.chat_template is not None:
        why = f"has no effect with {objective.setting}, whose model is asked nothing"
        check_beside("tokenizer", section, [("chat_template=", not objective.continues_prompts, why)])
        chat_template_of(section.chat_template)
    if section.name_or_path is not None:
        why = "has no effect with tokenizer.name_or_path; a pretrained tokenizer has its own"
        check_beside("tokenizer", section, [("framing=", True, why), ("sentinels=", True, why)])
        return
    for name, types in WITHOUT_EFFECT.items():
        default = show(getattr(TokenizerSection(), name))
        why = f"has no effect with tokenizer.type={section.type}; set it to {default}"
        check_beside("tokenizer", section, [(f"{name}=", section.type in types, why)])
    _check_framing(objective)
    if recipe.model.name_or_path is not None:
        raise UserError(
            "tokenizer is trained anew, but model.name_or_path brings its own; remove the tokenizer section"
        )
    size = section.vocab_size
    if size is None:
        if section.type != "char":
            raise UserError(f"tokenizer.vocab_size is not set; tokenizer.type={section.type} needs it, such as 8192")
        return
    entries, named = WRITES_EVERY_TEXT.get(section.type, (0, ""))
    smallest = entries + len(special_tokens(tokenizer_section(objective)))
    if entries and size < smallest:
        raise UserError(f"tokenizer.vocab_size={size} must be at least {smallest}: {named} and the special tokens")
    rows = recipe.model.fields.get("vocab_size")
    if rows is not None and rows < size:
        raise UserError(f"model.vocab_size={rows} is smaller than tokenizer.vocab_size={size}; remove model.vocab_size")


def _check_framing(objective: "Objective") -> None:
    """Raise UserError for a framing that an objective over plain text cannot work with."""
    if objective.parts:
        objective.of_each(_check_framing)
    if objective.parts or objective.section == "task":
        return
    needed, section = needed_framing(objective), objective.recipe.tokenizer
    framing = section.framing or needed
    if "none" not in (objective.tokens.framing, needed) and framing != needed:
        raise UserError(f"tokenizer.framing={framing} does not go with {objective.setting}; it takes {needed}")
    if objective.tokens.sentinels and section.sentinels == 0:
        raise UserError(f"tokenizer.sentinels=0 does not go with {objective.setting}; T5 has {SENTINELS}")


# ---- what a tokenizer that was made or loaded must have


def pad_token_id(tokenizer: Any) -> int:
    """The id that pads rows. Without a padding token it is 0: any id will do, as padding is masked."""
    return 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def padding_collator(tokenizer: Any, **options: bool) -> Any:
    """The PaddingCollator of rows that the tokenizer has made."""
    from ..data.length_batching import PaddingCollator

    return PaddingCollator(pad_token_id(tokenizer), tokenizer.padding_side == "left", **options)


def token_ids(objective: "Objective", tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    """Ids of special tokens by name; raise UserError for one that the tokenizer does not have."""
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in tokens if token not in vocabulary]
    if missing:
        raise UserError(
            f"{objective.setting} needs the token {missing[0]!r}, which the tokenizer does not have; add it by "
            f"tokenizer.special_tokens={show(missing)}, or name one that it has"
        )
    return [vocabulary[token] for token in tokens]


def need_tokens(objective: "Objective", tokenizer: Any, **words: str) -> None:
    """Raise UserError where the tokenizer lacks one of the tokens: need_tokens(..., eos="an end-of-text")."""
    for name, noun in words.items():
        if getattr(tokenizer, f"{name}_token_id") is None:
            raise UserError(f"{objective.setting} needs a tokenizer with {noun} token; this one has none")


def need_offsets(objective: "Objective", tokenizer: Any) -> None:
    """Raise UserError for a tokenizer that does not say where in the text its tokens stand."""
    if not tokenizer.is_fast:
        raise UserError(
            f"{objective.setting} needs to know where tokens stand in the text, which {type(tokenizer).__name__} "
            f"does not say; take a tokenizer with a tokenizer.json"
        )


def check_prompts(lengths: Sequence[int], most: int) -> None:
    """Raise UserError for one of evaluation.sample_prompts that leaves a model of `most` positions no room."""
    for number, tokens in enumerate(lengths):
        if tokens >= most:
            raise UserError(
                f"evaluation.sample_prompts.{number} has {tokens} tokens, but the model has {most} positions; "
                f"shorten it"
            )
