"""Texts that an encoder-decoder writes from other texts: settings, token ids of both, generation, metrics of texts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.account import Account
from ..data.documents import in_batches
from ..data.rows import Rows
from ..lazy import torch
from ..open_tokenizer import has_languages
from ..positions import UNLIMITED
from ..recipes.row_words import Words
from ..recipes.schema import ObjectiveSettings, doc
from ..tokenizers.control_tokens import text_tokenizer
from ..words import at_limit, counted, say, watched
from .answering import count_cut
from .answers import SAMPLES, Answers, FinishedModel
from .base import TOKENS, Objective, Planned, refuse_idle
from .data import Data
from .example_reads import ReadsExamples, stored
from .learns import Learns
from .scores import Scored, Scores
from .showing import show_source_and_target
from .tokens import Tokens, need_tokens, padding_collator, train_or_load


@dataclass
class WritingSettings(ObjectiveSettings):
    """Lengths of the texts that are read and written, and how the finished model searches for an answer."""

    max_length: int = doc("tokens per text, special ones included; longer texts are cut", 256, **TOKENS)
    max_target_length: int | None = doc("tokens per answer; null: as max_length", **TOKENS)
    num_beams: int = doc("beams of the search; 1: greedy", 1, at_least=1, at_most=1000)
    length_penalty: float = doc(
        "above 0 the search prefers longer texts, below 0 shorter ones", 1.0, at_least=-100, at_most=100
    )
    max_new_tokens: int | None = doc("most tokens generated; null: as max_target_length", at_least=1, at_most=2**20)

    @property
    def most_written(self) -> int:
        """Most tokens of an answer in the data."""
        return self.max_target_length or self.max_length


class WritingTask(Objective):
    """Base of tasks whose model writes a text from a text (Vaswani et al. 2017)."""

    section = "task"
    auto_class = "AutoModelForSeq2SeqLM"
    tokens = Tokens("eos")
    compares = "texts"
    continues_prompts = True
    words = Words(row="example", answers=True, use='anyformer generate {folder} "your text"')

    # ---- an example

    def sources(self) -> dict[str, str]:
        """{setting: column} of what is read."""
        return {"source_field": self.settings.source_field}

    def read(self, reads: ReadsExamples, row: dict, place: str) -> str:
        """The text that the encoder reads for an example. Raises UserError."""
        return reads.text_in(row, self.settings.source_field, "source_field", place)

    def answer(
        self, reads: ReadsExamples, row: dict, place: str, labels: Any, account: Account | None = None
    ) -> tuple[str, str]:
        """(text to write for an example, text that the model's answer is compared with). Raises UserError."""
        text = reads.text_in(row, self.settings.target_field, "target_field", place)
        return text, text

    def find_classes(self, reads: ReadsExamples, sources: dict) -> Any:
        """The classes where answers are classes (Data.labels). Raises UserError."""
        return None

    def encoding_key(self, labels: Any) -> list:
        """Further settings that the texts and the encoded examples depend on, as JSON."""
        return []

    # ---- the recipe

    def check_search(self) -> None:
        """Raise UserError for a setting of beams that has no effect on greedy search."""
        if self.settings.num_beams == 1:
            refuse_idle(self, ["length_penalty"], "task.num_beams=1", "task.num_beams above 1")

    def metrics_of_answers(self) -> list[str]:
        return list(self.metrics)

    def lengths(self) -> dict[str, int | None]:
        return super().lengths() | {"max_new_tokens": self.settings.max_new_tokens}

    def planned(self) -> Planned:
        return Planned((self.settings.max_length, self.settings.most_written))


class Pairs:
    """Sources and targets as token ids.

    Args:
        settings: lengths. tokenizer: the model's, of which a copy reads texts in which control tokens are spelled out.
    """

    def __init__(self, settings: WritingSettings, tokenizer):
        self.settings, self.tokenizer, self._plain = settings, tokenizer, text_tokenizer(tokenizer)

    def inputs(self, texts: list[str]) -> list[list[int]]:
        """The ids that the encoder reads of each text."""
        longest = self.settings.max_length
        inputs = self._plain(texts, truncation=True, max_length=longest)
        return [self._ended(ids, longest) for ids in inputs["input_ids"]]

    def labels(self, texts: list[str]) -> list[list[int]]:
        """The ids that the decoder has to write for each text."""
        longest = self.settings.most_written
        labels = self._plain(text_target=texts, truncation=True, max_length=longest)
        return [self._ended(ids, longest) for ids in labels["input_ids"]]

    def _ended(self, ids: list[int], longest: int) -> list[int]:
        """`ids` with an end-of-text token: without one a model would never learn to stop."""
        end = self.tokenizer.eos_token_id
        return ids if end in ids[-2:] else [*ids[: longest - 1], end]  # a language's token may follow the end

    def cut(self, texts: list[str], ids: list[list[int]]) -> int:
        """How many of the texts, whose `inputs` are `ids`, are longer than what is read."""
        longest, end = self.settings.max_length, self.tokenizer.eos_token_id
        full = [text for text, row in zip(texts, ids, strict=True) if len(row) >= longest]
        whole = self._plain(full, verbose=False)["input_ids"] if full else []
        return sum(len(row) + (end not in row[-2:]) > longest for row in whole)

    def starts(self) -> dict[str, int | None]:
        """Where answers in the tokenizer's target language begin; {} for a tokenizer without languages.

        mBART shifts labels in a circle, so that their last token, the language's or the end's, is the first that the
        decoder reads. A language's token before the text is written first (mBART-50, NLLB).
        """
        if not has_languages(self.tokenizer):
            return {}
        first, *_, last = self.labels([""])[0]
        forced = None if first == self.tokenizer.eos_token_id else first
        return {"decoder_start_token_id": last, "forced_bos_token_id": forced}


# ---- reading


SOURCE_AND_TARGET = (
    "source: what the encoder reads; target: what the decoder has to write (without colours in [[ ]])"  # a legend
)


def check_writer(objective: Objective, tokenizer) -> None:
    """Raise UserError for a tokenizer without eos or padding; say where targets get the sources' language."""
    need_tokens(objective, tokenizer, eos="an end-of-text", pad="a padding")
    if has_languages(tokenizer) and not tokenizer.tgt_lang:
        source = tokenizer.src_lang
        say([f"targets are marked as {source}, as sources are; tgt_lang in tokenizer_config.json can say another"])


class ReadsToWrite(ReadsExamples):
    """Texts to read, and texts to write; the row says what they are in an example."""

    legend = SOURCE_AND_TARGET

    def columns(self) -> dict[str, str]:
        return self.objective.sources() | {"target_field": self.settings.target_field}

    def asked_columns(self, there=None) -> dict[str, str]:
        return self.objective.sources()

    def texts(self, source, labels: Any = None):
        from ..data.examples import ExampleTexts

        task = self.objective

        def render(place: str, row: dict) -> list[str]:
            return [task.read(self, row, place), task.answer(self, row, place, labels)[0]]

        key = task.encoding_key(labels)
        return ExampleTexts(source, render, {"texts": self.columns()} | ({"encoding": key} if key else {}))

    def prepare(self, sources: dict, tokenizer: Any = None) -> Data:
        """Raises UserError for an answer that is no class, and for a tokenizer that cannot write one."""
        labels = self.objective.find_classes(self, sources)
        tokenizer = train_or_load(self.objective, self.texts(sources["train"], labels), tokenizer)
        if tokenizer.model_max_length > UNLIMITED:
            tokenizer.model_max_length = self.settings.max_length
        check_writer(self.objective, tokenizer)
        labels = labels and labels.written_by(tokenizer, self.settings)
        return Data(self.objective, self, tokenizer, labels, sources=sources)

    def rows(self, data: Data, source, split: str) -> Rows:
        """The examples as input_ids and labels (unshifted); for measuring also the raw texts."""
        settings, tokenizer, columns = self.settings, data.tokenizer, {"input_ids": "int32[]", "labels": "int32[]"}
        if split != "train":
            columns |= {"source": "string", "target": "string"}
        depends = [settings.max_length, settings.most_written, list(columns)]
        depends += self.objective.encoding_key(data.labels)
        depends += [getattr(tokenizer, "tgt_lang", None), "ends once"] if has_languages(tokenizer) else []
        return stored(self, data, source, columns, depends)

    def _batches(self, data: Data, examples, account: Account) -> Iterator[dict[str, list]]:
        pairs, task, settings = Pairs(self.settings, data.tokenizer), self.objective, self.settings
        for batch in in_batches(examples):
            answers = [task.answer(self, row, place, data.labels, account) for place, row in batch]
            source = [task.read(self, row, place) for place, row in batch]
            target, reference = (list(texts) for texts in zip(*answers))
            ids, labels = pairs.inputs(source), pairs.labels(target)
            sizes = [(len(read), len(written)) for read, written in zip(ids, labels, strict=True)]
            facts = {
                "examples": len(batch),
                "tokens": sum(map(sum, sizes)),
                "target_tokens": sum(written for _, written in sizes),
                "at_max_length": sum(a >= settings.max_length or b >= settings.most_written for a, b in sizes),
            }
            yield {"input_ids": ids, "labels": labels, "source": source, "target": reference, "facts": facts}

    def describe(self, data: Data, rows: Rows) -> str:
        facts = rows.facts
        number, target = facts["examples"], facts["target_tokens"]
        return (
            f"{counted(number, 'example')} of {rows.name}, {(facts['tokens'] - target) / number:.1f} source and "
            f"{target / number:.1f} target tokens each, "
            f"{at_limit(facts['at_max_length'], number, 'their maximum length')}"
        )

    show = show_source_and_target


# ---- the model


class LearnsToWrite(Learns):
    """Where the decoder begins, and how `generate` searches."""

    def config_fields(self) -> dict[str, Any]:
        """Each target begins with the padding token, as in T5 and Marian, or as `Pairs.starts` says."""
        starts = Pairs(self.settings, self.tokenizer).starts()
        start = starts.get("decoder_start_token_id", self.tokenizer.pad_token_id)
        return {"decoder_start_token_id": start, "is_encoder_decoder": True}

    def adapt(self, model) -> None:
        """Let `generate` search as the recipe says; saved as generation_config.json."""
        config, section, tokenizer = model.generation_config, self.settings, self.tokenizer
        config.update(
            num_beams=section.num_beams,
            max_new_tokens=section.max_new_tokens or section.most_written,
            max_length=None,  # some checkpoints set it, and it would compete with max_new_tokens
            length_penalty=section.length_penalty if section.num_beams > 1 else None,
            early_stopping=section.num_beams > 1,
            do_sample=False,
        )
        starts = Pairs(section, tokenizer).starts() if getattr(tokenizer, "tgt_lang", None) else {}
        if starts:  # a checkpoint's own may be of another language
            model.config.decoder_start_token_id = starts["decoder_start_token_id"]
        elif config.decoder_start_token_id is None:
            starts = {"decoder_start_token_id": getattr(model.config, "decoder_start_token_id", None)}
        config.update(**starts)


class WritesTexts(Answers):
    """Texts that the model writes by its generation config."""

    head = WritingTask.auto_class
    finishes_on = "all"

    def asked(self, row: dict, place: str) -> str:
        """The text that the encoder reads."""
        return self.objective.read(self.data.reads, row, place)

    def predict(self, finished: FinishedModel, asked: list[str]) -> list[dict[str, Any]]:
        pairs = Pairs(self.settings, self.tokenizer)
        ids = pairs.inputs(asked)
        count_cut(self.account, pairs.cut(asked, ids))
        return [{"prediction": text} for text in self.written(finished, ids)]

    def written(self, finished: FinishedModel, ids: list, watch: Callable = list) -> list[str]:
        """The texts that the model writes for `ids`, token ids of texts, in their order, by its generation config."""
        from ..data.length_batching import batches_by_tokens

        model, collate, texts = finished.model, padding_collator(self.tokenizer), {}
        for batch in watch(batches_by_tokens(range(len(ids)), finished.batch_size, lambda number: len(ids[number]))):
            inputs = collate([{"input_ids": torch.as_tensor(ids[number])} for number in batch])
            with torch.inference_mode():
                output = model.generate(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
            texts |= zip(batch, self.tokenizer.batch_decode(output, skip_special_tokens=True))
        return [texts[number] for number in range(len(ids))]

    def of_rows(self, finished: FinishedModel, rows: Rows, numbers: Sequence[int]) -> list[str]:
        """The texts written for the rows `numbers`, in that order; every process answers for a share of them."""

        def answer(mine: list[int]) -> list[str]:
            ids = [rows[number]["input_ids"] for number in mine]
            return self.written(finished, ids, lambda batches: watched(batches, "translating, batch"))

        return finished.shared(numbers, answer)

    def samples(self, finished: FinishedModel, splits: dict[str, Rows], scored: Scored | None) -> list[dict]:
        """Answers to evaluation.sample_prompts; without prompts the first answers that were measured."""
        prompts = self.recipe.evaluation.sample_prompts
        if not prompts:
            return super().samples(finished, splits, scored)
        answers = self.predict(finished, prompts)
        return [{"prompt": prompt, "text": answer["prediction"]} for prompt, answer in zip(prompts, answers)]


class TextScores(Scores):
    """Metrics of written texts."""

    def of_answers(self, finished: FinishedModel, rows: Rows, numbers: Sequence[int]) -> Scored:
        """Metrics of answers; without metrics only as many rows are answered as are shown."""
        numbers = numbers if self.objective.metrics else numbers[:SAMPLES]
        texts = self.data.answers().of_rows(finished, rows, numbers)
        sources, references = map(rows.texts, ("source", "target"))
        shown = [
            {"prompt": sources[number], "reference": references[number], "text": text}
            for number, text in zip(numbers[:SAMPLES], texts)
        ]
        return self._compare(*self.meant(texts, [references[number] for number in numbers]), samples=shown)

    def meant(self, predictions: list[str], references: list[str]) -> tuple[list, list]:
        """What the metrics compare: (predicted, true), of written and right texts."""
        return predictions, references
