"""Pairs of segments with masked tokens: BERT's next-sentence (NSP) and ALBERT's sentence-order prediction (SOP)."""

import inspect
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..data.batch_keys import IGNORE_INDEX, pad, real_places, row_generators, row_ids
from ..data.documents import Corpus
from ..data.rows import Rows
from ..errors import UserError
from ..lazy import np, torch
from ..plugins import register_objective
from ..recipes.schema import doc
from ..words import counted
from .base import Planned
from .data import Data
from .masked import (
    HIDDEN,
    WORDS,
    FillsMasks,
    MaskingSettings,
    TokenHider,
    check_masking,
    frame_ids,
    need_mask,
    show_hidden,
    token_logits,
)
from .text import LearnsText, PerplexityScores, ReadsText, TextObjective
from .tokens import Tokens, need_tokens

AROUND = 3  # special tokens of a pair: [CLS] first [SEP] second [SEP]
WRONG = {"next_sentence": "from another document", "sentence_order": "what came before it"}


@dataclass
class SentencePairsSettings(MaskingSettings):
    pairs: Literal["next_sentence", "sentence_order"] = doc(
        "what half of the pairs are instead of a segment and the one after it: next_sentence: the second one is of "
        "another document (BERT's NSP); sentence_order: both are swapped (ALBERT's SOP)",
        "next_sentence",
    )
    sequence_length: int = doc(
        "tokens per pair, its three special tokens included", 512, at_least=AROUND + 2, at_most=2**24
    )


class ReadsPairs(ReadsText):
    """Pairs of segments with hidden tokens."""

    legend = (
        "a colour per segment, │ between them; predicted is whether the second one is right, and of the tokens "
        + HIDDEN
    )

    def _check(self, tokenizer: Any) -> None:
        need_mask(self.objective, tokenizer)
        need_tokens(self.objective, tokenizer, cls="a first (CLS)", sep="a separating (SEP)", pad="a padding")

    def _rows_of(self, data: Data, source: Corpus, split: str) -> Rows:
        from ..data.sentence_pair_rows import SentencePairRows
        from ..tokenizers.word_marks import WordMarks

        store, section = self._tokenization(data, source).store(), self.settings
        return SentencePairRows(store, WordMarks(data.tokenizer), section.sequence_length - AROUND, section.pairs)

    def _marks_around(self) -> dict[str, bool]:
        return {"add_bos": False, "add_eos": False}

    def collator(self, data: Data, packed: bool) -> "SentencePairCollator":
        return SentencePairCollator(data.tokenizer, self.settings, self.seed)

    def describe(self, data, rows):
        facts = rows.facts
        return (
            f"{counted(len(rows), 'pair')} of up to {self.settings.sequence_length} tokens, the second segment of half "
            f"of them {WRONG[rows.kind]}, from {counted(facts['documents'], 'document')} of {rows.name} "
            f"({counted(facts['tokens'], 'token')})"
        )

    def show(self, console, data, rows, number, row):
        rows, batch = row["rows"], self.collated(data, rows, number, row)
        pair = self.collator(data, False).pair_of({"row_ids": number, "epoch": 0} | row)
        labels = batch["labels"][0]
        true = torch.where(labels < 0, batch["input_ids"][0], labels)
        first = 2 + pair.first[1] - pair.first[0]
        of = [rows.document(place) for place, _ in (pair.first, pair.second)]
        relation = f"is {WRONG[rows.kind]}" if pair.label else "follows the first"
        title, note = f"pair {number}: {len(true)} tokens", f"label {pair.label}: the second segment {relation}"
        original = {"input_ids": true, "position_ids": torch.arange(len(true))}
        documents = [(of[0], pair.first[0], first), (of[1], pair.second[0], len(true) - first)]
        documents = [(document, start - int(rows.offsets[document]), size) for document, start, size in documents]
        show_hidden(console, data.tokenizer, title, original, batch, documents, note)


class LearnsPairs(LearnsText):
    """Hidden tokens, and whether the second segment is right."""

    def config_fields(self) -> dict[str, Any]:
        return frame_ids(self.tokenizer) | super().config_fields()

    def adapt(self, model: Any) -> None:
        super().adapt(model)
        if not {"next_sentence_label", "num_items_in_batch"} <= inspect.signature(model.forward).parameters.keys():
            raise UserError(
                f"model.name_or_path={self.recipe.model.name_or_path!r} is a {type(model).__name__}, and "
                f"{self.objective.setting} trains our encoders with a head for pairs; convert it first, with anyformer "
                f"convert, where it has a twin"
            )
        check_segments(self.objective, model.config.type_vocab_size, f"{type(model).__name__} with type_vocab_size")

    def loss_parts(self) -> "PairLosses":
        return PairLosses()


class PairScores(PerplexityScores):
    """Perplexity of the hidden tokens, both losses, and the share of the pairs that are told right."""

    def of_pass(self, metrics, result, rows, train):
        parts = {name: result[name] for name in (*PairLosses.losses, *metrics) if name in result}
        return parts | super().of_pass(metrics, result, rows, train)


@register_objective
class SentencePairs(TextObjective):
    """Whether a segment follows another one, NSP (Devlin et al. 2019) or SOP (Lan et al. 2020), with masked tokens.

    Rows are <|cls|> first <|sep|> second <|sep|> with token_type_ids, made of whole sentences of documents
    (data/sentence_pair_rows.py); half of them are true pairs. Which ones, where a piece of text is cut in two and what
    replaces its second half is drawn anew in each epoch. The loss is the sum of `masked_loss`, the mean over masked
    tokens, and `pair_loss`, the mean over pairs; perplexity is of the masked tokens. Raises UserError for a
    tokenizer without the special tokens, and for NSP on a single document.
    """

    name = "sentence_pairs"
    auto_class, row_labels = "AutoModelForPreTraining", {"next_sentence_label": ()}
    tokens = Tokens("cls_sep")
    Settings = SentencePairsSettings
    Reads, Learns, Scores, Answers = ReadsPairs, LearnsPairs, PairScores, FillsMasks
    compares, also_compares = "pairs", ("tokens",)
    default_metrics = ("perplexity", "pair_accuracy")
    continues_prompts, unsmoothed = True, "a loss of two parts"
    words = replace(
        WORDS,
        row="pair",
        step="pairs of at most {0.sequence_length} tokens",
        loss="nats: per masked token and per pair, added",
    )

    def check(self) -> None:
        super().check()
        check_masking(self)
        recipe = self.recipe
        if recipe.data.streaming:
            raise UserError(
                f"data.streaming=true does not go with {self.setting}, whose second segments may be of any document; "
                f"set data.streaming=false"
            )
        check_segments(self, recipe.model.fields.get("type_vocab_size"), "model.type_vocab_size")

    def planned(self) -> Planned:
        model = self.recipe.model
        fields = {} if model.name_or_path or "type_vocab_size" in model.fields else {"type_vocab_size": 2}
        return replace(super().planned(), labelled=self.settings.mask_probability, fields=fields)


def check_segments(objective: SentencePairs, number: int | None, field: str) -> None:
    """Raise UserError for a model that does not tell two segments apart."""
    if number is not None and number < 2:
        raise UserError(f"{field}={number} must be at least 2 for {objective.setting}: a pair has two segments")


class SentencePairCollator:
    """Rows of SentencePairRows -> one batch, as long as its longest pair.

    input_ids (B, T) with hidden tokens, labels (B, T) that name them, next_sentence_label (B,): 0 for a true pair, else
    1 (transformers' convention for both kinds), -100 for rows that only fill up a batch; token_type_ids (B, T), 1 in
    the second segment and its end; attention_mask where something is padded. Pair and hidden tokens depend only on the
    seed, the epoch and the row's number (data/batch_keys.py).
    """

    def __init__(self, tokenizer, settings: MaskingSettings, seed: int):
        self.cls, self.sep, self.pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
        self.seed, self.hider = seed, TokenHider(tokenizer, settings)

    def pair_of(self, row: dict):
        """The pair drawn for a row, which holds its number and epoch."""
        return row["rows"].pair(row["piece"], row_generators([row], self.seed)[0])

    def __call__(self, rows: list[dict]) -> dict:
        texts, all_labels, types, answers = [], [], [], []
        for row, generator in zip(rows, row_generators(rows, self.seed)):
            pair = row["rows"].pair(row["piece"], generator)
            first, second = (row["rows"].segment(segment) for segment in (pair.first, pair.second))
            ids = np.concatenate([[self.cls], first, [self.sep], second, [self.sep]])
            labels, answer = np.full_like(ids, IGNORE_INDEX), IGNORE_INDEX
            if bool((row["labels"] != IGNORE_INDEX).any()):
                answer = pair.label
                self.hider.hide(ids, labels, ~self.hider.is_special[ids], generator)
            texts.append(ids)
            all_labels.append(labels)
            types.append(np.repeat([0, 1], [len(first) + 2, len(second) + 1]))
            answers.append(answer)
        batch = {"input_ids": pad(texts, self.pad), "labels": pad(all_labels, IGNORE_INDEX)}
        batch |= {"next_sentence_label": torch.tensor(answers), "token_type_ids": pad(types, 0)}
        inside = real_places(list(map(len, texts)), batch["input_ids"].shape[1])
        return batch | ({} if inside.all() else {"attention_mask": inside.long()}) | row_ids(rows)


class PairLosses:
    """The parts of the loss of AnyformerEncoderForPreTraining, as sums (see Learns.loss_parts)."""

    losses = ("masked_loss", "pair_loss")
    logits_of = staticmethod(token_logits)

    def sums(self, outputs, batch: dict, num_items_in_batch) -> dict[str, tuple]:
        """{"masked_loss": (sum over masked tokens, their number), "pair_loss": (sum over pairs, their number),
        "pair_accuracy": (right answers, pairs)}, tensors without gradients.

        num_items_in_batch: what the model has divided masked_lm_loss by; None: the number of masked tokens.
        """
        answers = batch["next_sentence_label"]
        masked, pairs = (batch["labels"] != IGNORE_INDEX).sum(), (answers != IGNORE_INDEX).sum()
        logits = outputs["seq_relationship_logits"].detach().float()
        pair_loss = torch.nn.functional.cross_entropy(logits, answers, ignore_index=IGNORE_INDEX, reduction="sum")
        divided_by = masked if num_items_in_batch is None else num_items_in_batch
        return {
            "masked_loss": (outputs["masked_lm_loss"].detach().float() * divided_by, masked),
            "pair_loss": (pair_loss, pairs),
            "pair_accuracy": ((logits.argmax(dim=-1) == answers).sum(), pairs),
        }
