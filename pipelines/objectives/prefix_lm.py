"""Prefix language modelling (Raffel et al. 2020, section 3.2.1): the rest of a text from its beginning."""

from dataclasses import dataclass
from functools import cached_property

from ..adapters import load_config
from ..data.batch_keys import IGNORE_INDEX, document_parts, row_generators
from ..errors import UserError, loading
from ..plugins import register_objective
from ..recipes.schema import doc
from ..recipes.types import show
from .base import FamiliesWith
from .causal import Causal, CausalCollator
from .reconstruction import Reconstruction, SourceTargetCollator
from .text import TextObjective, TextSettings


@dataclass
class PrefixLMSettings(TextSettings):
    shortest_prefix: float = doc("least share of a text that is its prefix", 0.0, at_least=0, below=1)
    longest_prefix: float = doc("largest share; what lies between is equally likely", 1.0, above=0, at_most=1)


@register_objective
class PrefixLM(Reconstruction):
    """Prefix language modelling (Raffel et al. 2020, section 3.2.1): the rest of a text from its beginning.

    A text is cut at a random place; its prefix is read, and the rest predicted. An encoder-decoder's encoder reads a
    row's prefix, each token seeing all of it, and the decoder writes the rest (rows as in reconstruction.py). A decoder
    reads each document of a packed row, and the loss counts the rest of it alone; its attention stays causal in the
    prefix, too, so that it is `causal` with fewer labels and not the paper's fully visible prefix. Which of the two
    follows from the model's family, or from the config of the checkpoint. At least one token is read and one predicted.
    """

    name = "prefix_lm"
    families = FamiliesWith(Causal.auto_class, Reconstruction.auto_class)
    special_tokens = "none"
    continues_prompts = True
    Settings = PrefixLMSettings
    use = Causal.use

    def check(self) -> None:
        super().check()
        section = self.settings
        if section.shortest_prefix > section.longest_prefix:
            raise UserError(
                f"objective.shortest_prefix={show(section.shortest_prefix)} is more than "
                f"objective.longest_prefix={show(section.longest_prefix)}; exchange them"
            )

    @cached_property
    def has_encoder(self) -> bool:
        """Whether an encoder reads the prefix; raises UserError for a checkpoint that cannot be loaded."""
        section = self.recipe.model
        if section.name_or_path is None:
            return self.family.has_decoder
        import anyformer

        anyformer.register()
        with loading(f"model.name_or_path={section.name_or_path!r}"):
            config = load_config(section.name_or_path, trust_remote_code=self.recipe.trust_remote_code)
        return bool(config.is_encoder_decoder)

    @property
    def auto_class(self) -> str:
        return Reconstruction.auto_class if self.has_encoder else Causal.auto_class

    @property
    def shifts_labels(self) -> bool:
        return not self.has_encoder

    def framing(self) -> str:
        fresh = self.family is not None and self.family.has_decoder
        return self.recipe.tokenizer.framing or (Reconstruction.special_tokens if fresh else "none")

    def use_tokenizer(self, tokenizer) -> None:
        if self.has_encoder:
            super().use_tokenizer(tokenizer)
        else:
            TextObjective.use_tokenizer(self, tokenizer)

    def config_fields(self) -> dict:
        return super().config_fields() if self.has_encoder else {}

    def collator(self, packed: bool):
        shares = (self.settings.shortest_prefix, self.settings.longest_prefix)
        if not self.has_encoder:
            return PrefixCollator(packed, shares, self.seed)
        return PrefixAndRestCollator(self.tokenizer, shares, self.seed, self.batch_lengths())

    @property
    def legend_words(self) -> str:
        if self.has_encoder:
            return "source: the prefix that the encoder reads; target: the rest; other cuts in each further epoch"
        return (
            "a colour per document, [unpredicted]underlined[/]: its prefix, not predicted, │ where it ends: no "
            "attention across, [padding]struck through[/]: padding; as in the first epoch, other cuts in each further "
            "one"
        )

    def show(self, console, rows, number: int, row: dict) -> None:
        if self.has_encoder:
            super().show(console, rows, number, row)
        else:
            Causal.show(self, console, rows, number, row | {"labels": self.collated(rows, number, row)["labels"][0]})


class PrefixAndRestCollator(SourceTargetCollator):
    """Inputs are a row's prefix, then eos; labels the rest of it, then eos.

    shares: the least and largest share of a row that is its prefix.
    """

    def __init__(self, tokenizer, shares: tuple[float, float], seed: int, lengths=(None, None)):
        super().__init__(tokenizer, seed, lengths)
        self.shares = shares

    def corrupt(self, tokens, starts, generator) -> tuple:
        cut = prefix_length(len(tokens), self.shares, generator)
        return tokens[:cut], tokens[cut:]


class PrefixCollator(CausalCollator):
    """As CausalCollator, with the labels of a prefix of each document's part of a row left out.

    shares: the least and largest share of a part that is its prefix.
    """

    def __init__(self, packed: bool, shares: tuple[float, float], seed: int):
        super().__init__(packed)
        self.shares, self.seed = shares, seed

    def __call__(self, rows: list[dict]) -> dict:
        batch = super().__call__(rows)
        for labels, row, generator in zip(batch["labels"], rows, row_generators(rows, self.seed)):
            for begin, end in document_parts(row["position_ids"].numpy()):
                labels[begin : begin + prefix_length(end - begin, self.shares, generator)] = IGNORE_INDEX
        return batch


def prefix_length(length: int, shares: tuple[float, float], generator) -> int:
    """Tokens of a random prefix of a text of `length` tokens: at least one, and one less than all."""
    least, most = (round(share * length) for share in shares)
    least = min(max(least, 1), max(length - 1, 1))
    return int(generator.integers(least, max(min(most, length - 1), least) + 1))
