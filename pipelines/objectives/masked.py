"""Hidden tokens, predicted from those on both sides (Devlin et al. 2019): which are hidden, and who fills them in."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from ..data.batch_keys import IGNORE_INDEX, PREFIX_MASK, row_generators, row_ids
from ..data.cells import text_of
from ..errors import UserError
from ..lazy import np, torch
from ..plugins import WHOLE_MODEL, WHOLE_ROWS, register_objective
from ..recipes.row_words import Words
from ..recipes.schema import ObjectiveSettings, doc
from ..recipes.tokenizer_section import MASK
from ..recipes.types import show
from .answering import piped
from .base import SHARE, FamiliesWith, Objective, Planned
from .data import Data
from .showing import documents_line, is_label, masked_pieces, tokens_text
from .text import (
    Continues,
    LearnsText,
    ReadsText,
    TextObjective,
    TextSettings,
    check_ahead,
    is_our_decoder,
    shifts_labels,
)
from .tokens import Tokens

LITERAL_MASK = "[MASK]"  # how a recipe's author writes the mask, whatever the tokenizer calls it
PREDICTIONS = 5  # words that are shown for a mask
WORDS = Words(
    step="rows x {0.sequence_length} tokens",
    sample="predictions for {prompt!r}",
    answers=True,
    use="anyformer predict {folder} FILE",
    hub_task="fill-mask",
)
HIDDEN = (  # the end of a legend
    "[predicted][\\[word]][/]: the model sees the mask token, [predicted][\\[word→other]][/]: it sees another token, "
    "[predicted][\\[word=]][/]: it sees the word itself; as in the first epoch, others in each further one"
)


@dataclass
class MaskingSettings(ObjectiveSettings):
    """Which tokens are hidden, and what stands in their place."""

    mask_probability: float = doc("share of a row's tokens that is predicted", 0.15, above=0, below=1)
    mask_replace: float = doc("share of those that the mask token hides", 0.8, **SHARE)
    random_replace: float = doc("share of those that a random token replaces; the rest stays", 0.1, **SHARE)
    masking: Literal["token", "whole_word"] = doc("what is chosen at once: a token, or all tokens of a word", "token")


def check_masking(objective: Objective) -> None:
    """Raise UserError for shares that are more than all tokens, and for a prompt without a mask."""
    section, recipe = objective.settings, objective.recipe
    if section.mask_replace + section.random_replace > 1:
        raise UserError(
            f"objective.mask_replace={show(section.mask_replace)} and "
            f"objective.random_replace={show(section.random_replace)} are shares of the same tokens; "
            f"together they must be at most 1"
        )
    if recipe.tokenizer.name_or_path is None and recipe.model.name_or_path is None:
        prompts_with(objective, MASK)  # the mask of the tokenizer that will be trained


def need_mask(objective: Objective, tokenizer: Any) -> None:
    """Raise UserError for a tokenizer without a mask token, and for a prompt without it."""
    if tokenizer.mask_token_id is None:
        raise UserError(
            f"{objective.setting} needs a tokenizer with a mask token; this one has none: "
            "remove tokenizer.name_or_path to train one, or name that of an encoder"
        )
    prompts_with(objective, tokenizer.mask_token)


def prompts_with(objective: Objective, mask: str) -> list[str]:
    """The recipe's prompts with the tokenizer's `mask` for [MASK]. Raises UserError for a prompt without one."""
    prompts = []
    for number, prompt in enumerate(objective.recipe.evaluation.sample_prompts):
        text = prompt.replace(LITERAL_MASK, mask)
        if mask not in text:
            raise UserError(
                f"evaluation.sample_prompts.{number}={show(prompt)} has no mask for {objective.setting} to fill; write "
                f"{LITERAL_MASK} in place of a word"
            )
        prompts.append(text)
    return prompts


def frame_ids(tokenizer: Any) -> dict[str, int]:
    """Fields of an encoder's config: the ids of the tokens around a text, and of the mask."""
    return {name: getattr(tokenizer, name) for name in ("cls_token_id", "sep_token_id", "mask_token_id")}


class FillsMasks(Continues):
    """Prompts and rows whose masks the model fills."""

    head = "AutoModelForMaskedLM"

    def samples(self, finished, splits, scored):
        """Each prompt with the likeliest tokens for its masks and their probabilities, a line per mask."""
        return [
            {"prompt": prompt, "text": self._fill(finished.model, prompt)}
            for prompt in prompts_with(self.objective, self.tokenizer.mask_token)
        ]

    def _fill(self, model: Any, prompt: str) -> str:
        """`train 31.2 %, car 10.0 %, ...`: what `model` predicts for each mask of a prompt."""
        tokenizer = self.tokenizer
        inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
        with torch.no_grad():
            logits = self._token_logits(model, inputs)[0]
        shares = logits[inputs["input_ids"][0] == tokenizer.mask_token_id].float().softmax(dim=-1)
        lines = []
        for best, ids in zip(*(tensor.tolist() for tensor in shares.topk(min(PREDICTIONS, shares.shape[-1])))):
            words = (tokenizer.decode([number]).strip() or repr(tokenizer.decode([number])) for number in ids)
            lines.append(", ".join(f"{word} {share:.1%}" for word, share in zip(words, best)))
        return "\n".join(lines)

    def _token_logits(self, model: Any, inputs: Any) -> Any:
        """(B, T, V): the logits of `model` for each token of a tokenizer's `inputs`."""
        if not shifts_labels(self.objective):
            return token_logits(model(**inputs))
        return model(**inputs, **{PREFIX_MASK: torch.ones_like(inputs["input_ids"])}).logits.roll(1, dims=1)

    def asked(self, row: dict, place: str) -> str:
        column, mask = self.recipe.data.text_field, self.tokenizer.mask_token
        text = text_of(row, column, "text_field", place).replace(LITERAL_MASK, mask)
        if mask not in text:
            raise UserError(f"{place} has no mask in {column!r}; write {LITERAL_MASK} in place of a word")
        return text

    def predict(self, finished, asked):
        """The likeliest word for each mask, and the likeliest ones with their scores."""
        results, answers = piped(self, finished, "FillMask", asked, tokenizer_kwargs={"truncation": True}), []
        for masks in results:
            masks = [masks] if isinstance(masks[0], dict) else masks  # for a single mask the pipeline gives no list
            scores = [[{"word": word["token_str"], "score": word["score"]} for word in words] for words in masks]
            answers.append({"prediction": [words[0]["token_str"] for words in masks], "scores": scores})
        return answers


def show_hidden(
    console: Any, tokenizer: Any, title: str, row: dict, batch: dict, documents: list, note: str = ""
) -> None:
    """Print a row with its hidden tokens. row: before hiding. batch: the row's. documents: as Rows has them."""
    predicted = is_label(batch["labels"][0])
    seen, true = batch["input_ids"][0][predicted], row["input_ids"][predicted]
    hidden, same = int((seen == tokenizer.mask_token_id).sum()), int((seen == true).sum())
    console.rule(
        f"{title}, {len(seen)} predicted: {hidden} masked, {len(seen) - hidden - same} replaced, {same} kept",
        align="left",
    )
    if note:
        console.print(note, markup=False)
    console.print(documents_line(documents), markup=False)
    console.print(tokens_text(console, masked_pieces(row, batch, documents, tokenizer)))


def token_logits(outputs) -> Any:
    """The logits of tokens (B, T, V), also of a model with a second head, for pairs; None where they were left out."""
    return outputs.get("prediction_logits", outputs.get("logits"))


class TokenHider:
    """Chooses tokens of a row, writes their labels and changes the ids.

    Of n tokens that may be hidden, number = max(1, round(mask_probability * n)) are, with masking=token exactly so
    many. So rows of equal length have equally much to predict, and short ones always something; BERT draws per token.

    masking=whole_word (Devlin et al. 2019, the whole-word models released later): words are taken in random order, each
    with all its tokens; one that would exceed `number` is skipped, so that fewer tokens are hidden only where no
    further word fits. If not even the shortest word fits, it alone is hidden.

    A chosen token becomes the mask token with probability mask_replace, a random entry of the vocabulary that is not
    special with probability random_replace, and stays as it is otherwise.
    """

    def __init__(self, tokenizer, settings: MaskingSettings):
        self.mask_id, self.marks, self.settings = tokenizer.mask_token_id, None, settings
        special = np.array(tokenizer.all_special_ids)
        ids = np.array(sorted(tokenizer.get_vocab().values()))
        self.ordinary_ids = ids[~np.isin(ids, special)]
        self.is_special = np.zeros(ids[-1] + 1, dtype=bool)
        self.is_special[special] = True
        if settings.masking != "token":
            from ..tokenizers.word_marks import WordMarks

            self.marks = WordMarks(tokenizer)

    def hide(self, ids, labels, choosable, generator, begins=None) -> None:
        """Hide tokens of one row in place.

        ids, labels: int arrays (T,). choosable: bool (T,), the tokens that may be hidden. generator: numpy's, for this
        row. begins: bool (T,), where documents begin, which no word crosses.
        """
        places = np.flatnonzero(choosable)
        if not len(places):
            return
        number = max(1, round(self.settings.mask_probability * len(places)))
        if self.marks is None:
            chosen = generator.permutation(places)[:number]
        else:
            chosen = self.whole_words(ids, choosable, number, generator, begins)
        lot = generator.random(len(chosen))
        labels[chosen] = ids[chosen]
        random_ids = self.ordinary_ids[generator.integers(len(self.ordinary_ids), size=len(chosen))]
        masked = lot < self.settings.mask_replace
        replaced = ~masked & (lot < self.settings.mask_replace + self.settings.random_replace)
        ids[chosen] = np.where(masked, self.mask_id, np.where(replaced, random_ids, ids[chosen]))

    def whole_words(self, ids, choosable, number: int, generator, begins=None):
        """The places of the tokens of random words: at most `number`, or one word where each is longer than that."""
        breaks = np.zeros(len(ids), dtype=bool) if begins is None else begins
        after_other = np.concatenate([[True], ~choosable[:-1]])
        starts = choosable & (self.marks.word_starts(ids) | breaks | after_other)
        stops = np.append(np.flatnonzero(starts | ~choosable), len(ids))
        firsts = np.flatnonzero(starts)
        ends = stops[np.searchsorted(stops, firsts, side="right")]
        order, words = generator.permutation(len(firsts)).tolist(), []
        for word in order:
            if ends[word] - firsts[word] <= number:
                words.append(word)
                number -= ends[word] - firsts[word]
        if not words:
            words = [min(order, key=lambda word: ends[word] - firsts[word])]
        return np.concatenate([np.arange(firsts[word], ends[word]) for word in words])


@dataclass
class MaskedSettings(MaskingSettings, TextSettings):
    begins_documents = True  # a text for an encoder begins with <|cls|>


class ReadsMasked(ReadsText):
    """Packed rows with hidden tokens."""

    legend = (
        "what each token really is; a colour per document, │ where one ends: no attention across; predicted are "
        + HIDDEN
    )

    def open(self):
        check_ahead(self.objective)
        return super().open()

    def _check(self, tokenizer: Any) -> None:
        need_mask(self.objective, tokenizer)

    def collator(self, data: Data, packed: bool) -> "MaskedCollator":
        return MaskedCollator(data.tokenizer, self.settings, self.seed, packed, shifts_labels(self.objective))

    def show(self, console, data, rows, number, row):
        title, documents = f"row {number}: {len(row['input_ids'])} tokens", rows.documents(number, row)
        show_hidden(console, data.tokenizer, title, row, self.collated(data, rows, number, row), documents)


class LearnsMasked(LearnsText):
    """Hidden tokens: labels stand beside them, also a decoder's, which predicts them at the token before."""

    def config_fields(self) -> dict[str, Any]:
        if self.shifts_labels:
            return {"mask_token_id": self.tokenizer.mask_token_id}
        return frame_ids(self.tokenizer)


@register_objective
class Masked(TextObjective):
    """Masked language modelling over packed rows (Devlin et al. 2019, section 3.1).

    Some tokens of each row are hidden, single ones or whole words (TokenHider), and predicted from those on both sides.
    Documents follow each other in a row, each attending only to itself; where a row's end cuts one, the next row goes
    on with its next token. Raises UserError for a tokenizer without a mask token.

    One of our decoders can learn it, too, as GPT-BERT does (Charpentier and Samuel 2024): tokens of a document see each
    other, and a hidden token is predicted at the token before it, so that `causal` rows can share the batches. A
    document's first token is then never hidden. AutoModelForMaskedLM loads such a decoder to fill in masks.
    """

    name = "masked"
    gives = ("prediction", "scores")
    taught = "tokens"
    families = FamiliesWith("AutoModelForMaskedLM")
    tokens = Tokens(
        "cls_sep",
        {"AutoModelForCausalLM": "none"},
        further=lambda objective: [MASK] if shifts_labels(objective) else [],  # other families have one
    )
    needs = frozenset({WHOLE_MODEL, WHOLE_ROWS})
    Settings = MaskedSettings
    Reads, Learns, Answers = ReadsMasked, LearnsMasked, FillsMasks
    continues_prompts = True
    words = replace(WORDS, loss="nats per masked token")

    @property
    def auto_class(self) -> str:
        return "AutoModelForCausalLM" if is_our_decoder(self.facts) else "AutoModelForMaskedLM"

    def check(self) -> None:
        super().check()
        check_masking(self)
        if self.facts.family is not None:
            check_ahead(self)

    def planned(self) -> Planned:
        return replace(super().planned(), labelled=self.settings.mask_probability)


class MaskedCollator:
    """Rows -> one batch: input_ids with hidden tokens, labels (B, T) that name them (-100 elsewhere).

    A TokenHider hides some of the tokens that are neither special nor padding. Which ones depends on the seed, the
    epoch and the row's number alone (data/batch_keys.py).

    packed: position_ids restart with each document and with padding, so that padding is a document of its own and no
    attention_mask is needed. Otherwise there is an attention_mask in batches with a padded row, and only there.
    by_decoder: rows are a decoder's, with a prefix_mask of all tokens but padding in place of an attention_mask.
    """

    def __init__(self, tokenizer, settings: MaskingSettings, seed: int, packed: bool, by_decoder: bool = False):
        self.packed, self.by_decoder, self.seed = packed, by_decoder, seed
        self.hider = TokenHider(tokenizer, settings)

    def __call__(self, rows: list[dict]) -> dict:
        input_ids = np.stack([row["input_ids"].numpy() for row in rows])
        tokens = np.stack([row["labels"].numpy() for row in rows])  # -100: padding
        labels = np.full_like(tokens, IGNORE_INDEX)
        choosable = (tokens != IGNORE_INDEX) & ~self.hider.is_special[input_ids]
        for place, (row, generator) in enumerate(zip(rows, row_generators(rows, self.seed))):
            begins = row["position_ids"].numpy() == 0
            self.hider.hide(input_ids[place], labels[place], choosable[place], generator, begins)
        batch = {"input_ids": torch.from_numpy(input_ids), "labels": torch.from_numpy(labels)}
        if self.packed:
            batch["position_ids"] = torch.stack([row["position_ids"] for row in rows])
        if self.by_decoder:
            # True up to the row's last real token, also at tokens without a label before it.
            real = np.flip(np.logical_or.accumulate(np.flip(tokens != IGNORE_INDEX, 1), axis=1), 1)
            batch[PREFIX_MASK] = torch.from_numpy(real.astype(np.int64))
        elif not self.packed:
            # A row without any label only fills up a batch: none of its tokens counts as padding.
            padding = (tokens == IGNORE_INDEX) & (tokens != IGNORE_INDEX).any(axis=1, keepdims=True)
            if padding.any():
                batch["attention_mask"] = torch.from_numpy((~padding).astype(np.int64))
        return batch | row_ids(rows)
