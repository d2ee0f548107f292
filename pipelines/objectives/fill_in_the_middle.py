"""Fill in the middle (Bavarian et al. 2022): a decoder learns to write what belongs between two texts."""

from dataclasses import dataclass, replace
from typing import Any

from ..data.batch_keys import EPOCH, IGNORE_INDEX, ROW_IDS, document_parts, pad, row_generators, row_ids
from ..errors import UserError
from ..lazy import np, torch
from ..plugins import WHOLE_ROWS, register_objective
from ..recipes.schema import doc
from .base import SHARE
from .data import Data
from .showing import is_label
from .text import ReadsText, TextObjective, TextSettings, show_packed
from .tokens import Tokens, need_tokens, pad_token_id, token_ids

ADDED = 4  # tokens by which rearranging may lengthen a document: three sentinels and an end-of-text


@dataclass
class FillInTheMiddleSettings(TextSettings):
    fills_rows = False
    fim_rate: float = doc("share of the documents that are rearranged; the rest is read as it is", 0.5, **SHARE)
    spm_rate: float = doc("share of those with the suffix first; the others begin with the prefix", 0.5, **SHARE)
    shortest: int = doc("documents, or parts of them in a row, with fewer tokens stay as they are", 16, at_least=2)
    prefix_token: str = doc("special token before the text's beginning", "<|fim_prefix|>")
    middle_token: str = doc("special token before what is to be filled in", "<|fim_middle|>")
    suffix_token: str = doc("special token before the text's end", "<|fim_suffix|>")

    @property
    def sentinels(self) -> list[str]:
        """The tokens before prefix, middle and suffix."""
        return [self.prefix_token, self.middle_token, self.suffix_token]


class ReadsMiddles(ReadsText):
    """Packed rows with rearranged documents."""

    def _check(self, tokenizer: Any) -> None:
        need_tokens(self.objective, tokenizer, eos="an end-of-text")
        token_ids(self.objective, tokenizer, self.settings.sentinels)

    @property
    def _row_length(self) -> int:
        """Short enough that a row of one document has sequence_length tokens once it is rearranged."""
        return self.settings.sequence_length - ADDED

    def _widths(self) -> tuple[int, int]:
        length = self._row_length + ADDED * max(1, self._row_length // self.settings.shortest)
        return length, length

    def collator(self, data: Data, packed: bool) -> "FillInTheMiddleCollator":
        length = self._widths()[0] if self._has_one_width else None
        sentinels = token_ids(self.objective, data.tokenizer, self.settings.sentinels)
        return FillInTheMiddleCollator(data.tokenizer, sentinels, self.settings, packed, self.seed, length)

    def show(self, console, data, rows, number, row):
        collate = self.collator(data, packed=True)
        batch = collate([{ROW_IDS: number, EPOCH: 0} | row])
        changed = {name: batch[name][0] for name in ("input_ids", "labels", "position_ids")}
        parts = document_parts(changed["position_ids"].numpy())
        if not is_label(changed["labels"][parts[-1][0] :]).any():
            parts.pop()  # padding
        pairs = zip(rows.documents(number, row), parts)
        documents = [(document, start, end - begin) for (document, start, _), (begin, end) in pairs]
        show_packed(console, data.tokenizer, number, changed, documents, collate.sentinels)


@register_objective
class FillInTheMiddle(TextObjective):
    """Fill in the middle (Bavarian et al. 2022): next-token prediction with the middle of some documents at their ends.

    A document of a packed row is cut at two random places between tokens into prefix, middle and suffix, and becomes
    PREFIX prefix SUFFIX suffix MIDDLE middle END (PSM) or PREFIX SUFFIX suffix MIDDLE prefix middle END (SPM, appendix
    D), PREFIX, SUFFIX and MIDDLE being special tokens. The cuts are drawn anew in each epoch; where a row's end cuts a
    document, each part is treated as a document (section 4.2, context level). Cuts between tokens, unlike the paper's
    between characters, never divide a word's token: prompts should end where tokens do. All tokens are predicted as in
    `causal`, sentinels included. Raises UserError for a tokenizer without end-of-text token or sentinels.
    """

    name = "fill_in_the_middle"
    auto_class = "AutoModelForCausalLM"
    continues_prompts = True
    needs = frozenset({WHOLE_ROWS})
    tokens = Tokens(further=lambda objective: objective.settings.sentinels)
    words = replace(
        TextObjective.words,
        hub_task="text-generation",
        use='anyformer generate {folder} "{0.prefix_token}the beginning{0.suffix_token}the end{0.middle_token}"',
    )
    Settings = FillInTheMiddleSettings
    Reads = ReadsMiddles

    def check(self) -> None:
        super().check()
        section = self.settings
        if len(set(section.sentinels)) < 3 or "" in section.sentinels:
            words = ", ".join(section.sentinels)
            raise UserError(f"objective.prefix_token, middle_token and suffix_token must be three tokens, not {words}")
        if section.sequence_length < ADDED + 2:
            raise UserError(
                f"objective.sequence_length={section.sequence_length} must be at least {ADDED + 2}, so that a row has "
                f"room for three sentinels and an end-of-text"
            )


class FillInTheMiddleCollator:
    """Rows -> one batch: input_ids, labels (B, T), and position_ids where rows hold several documents.

    Each token keeps its label (the first of a document's part has none), so that every token of the text is predicted
    as often as in `causal`; MIDDLE, SUFFIX and END have labels, too, but not PREFIX, before which there is nothing. T
    is `length` or, if None, the longest row's; padding is a document of its own, and there is never an attention_mask.
    """

    def __init__(self, tokenizer, sentinels: list[int], settings, packed: bool, seed: int, length: int | None = None):
        self.eos, self.sentinels, self.settings = tokenizer.eos_token_id, sentinels, settings
        self.pad = pad_token_id(tokenizer)
        self.packed, self.seed, self.length = packed, seed, length

    def __call__(self, rows: list[dict]) -> dict:
        changed = []
        for row, generator in zip(rows, row_generators(rows, self.seed)):
            pair = np.stack([row["input_ids"].numpy(), row["labels"].numpy()])
            parts = [pair[:, begin:end] for begin, end in document_parts(row["position_ids"].numpy())]
            if len(parts) > 1 and (parts[-1][1] == IGNORE_INDEX).all():
                parts.pop()  # padding, or a single token that neither predicts nor is predicted
            changed.append([self.rearrange(part, generator) for part in parts])
        ids, labels = zip(*(np.concatenate(parts, axis=1) for parts in changed))
        batch = {"input_ids": pad(ids, self.pad, width=self.length)}
        batch["labels"] = pad(labels, IGNORE_INDEX, width=self.length)
        if self.packed:
            width, lengths = batch["labels"].shape[1], [[part.shape[1] for part in parts] for parts in changed]
            positions = [np.concatenate([np.arange(n) for n in (*sizes, width - sum(sizes))]) for sizes in lengths]
            batch["position_ids"] = torch.from_numpy(np.stack(positions))
        return batch | row_ids(rows)

    def rearrange(self, part, generator):
        """A document's part (2, T), tokens above their labels, as it is or with its middle at the end."""
        draw, by_suffix = generator.random(2)
        content = part[:, :-1] if part[0, -1] == self.eos else part
        size = content.shape[1]
        cuts = np.sort(generator.integers(size + 1, size=2))  # a part may be empty, as where nothing follows a cursor
        predicts = (part[1] != IGNORE_INDEX).any()
        if draw >= self.settings.fim_rate or part.shape[1] < self.settings.shortest or not predicts:
            return part
        prefix, middle, suffix = np.split(content, cuts, axis=1)
        begin, fill, after = (np.array([[token], [token]]) for token in self.sentinels)
        begin[1] = IGNORE_INDEX
        end = np.array([[self.eos], [self.eos]])
        if by_suffix < self.settings.spm_rate:
            pieces = [begin, after, suffix, fill, prefix, middle, end]
        else:
            pieces = [begin, prefix, after, suffix, fill, middle, end]
        return np.concatenate(pieces, axis=1)
