from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.documents import in_batches
from ..data.rows import Rows
from ..errors import UserError
from ..lazy import torch
from ..open_tokenizer import has_languages
from ..plugins import register_objective
from ..recipes.schema import ObjectiveSettings, doc
from ..tokenizers.control_tokens import text_tokenizer
from ..words import at_limit, counted, say, watched
from .base import TOKENS
from .finished_model import SAMPLES, FinishedModel
from .showing import show_source_and_target
from .text_task import TextTask


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


@dataclass
class TranslationSettings(WritingSettings):
    source_field: str | None = doc("column that holds the text to translate")
    target_field: str | None = doc("column that holds its translation")
    num_beams: int = doc("beams of the search; 1: greedy", 5, at_least=1, at_most=1000)


@register_objective
class Translation(TextTask):
    """A text in one language from a text in another, or any other text from a text.

    Source texts and their translations (Vaswani et al. 2017), with one tokenizer for both languages. `prepare` raises
    UserError for a tokenizer without padding or end-of-text token.
    """

    name = "translation"
    auto_class = "AutoModelForSeq2SeqLM"
    special_tokens = "eos"
    Settings = TranslationSettings
    compares = "texts"
    default_metrics = ("bleu",)
    continues_prompts = True
    hub_task = "translation"
    loss_unit = "nats per token"
    finishes_on = "all"
    samples_are_answers = True
    sample_words = "translation of"
    legend_words = "source: what the encoder reads; target: what the decoder has to write"
    use = 'anyformer generate {folder} "your text"'

    def check(self) -> None:
        for name in ("source_field", "target_field"):
            if not getattr(self.settings, name):
                raise UserError(f"task.{name} is not set; translation needs the column of each language, such as en")
        self.check_search()
        super().check()

    def check_search(self) -> None:
        """Raise UserError for a setting of beams that has no effect on greedy search."""
        if self.settings.num_beams == 1:
            self.refuse_idle(["length_penalty"], "task.num_beams=1", "task.num_beams above 1")

    def columns(self) -> dict[str, str]:
        return {"source_field": self.settings.source_field, "target_field": self.settings.target_field}

    def lengths(self) -> dict[str, int | None]:
        section = self.settings
        return {name: getattr(section, name) for name in ("max_length", "max_target_length", "max_new_tokens")}

    def row_lengths(self) -> tuple[int, int]:
        return self.settings.max_length, self.settings.max_target_length or self.settings.max_length

    # ---- data

    def corpus(self, source):
        texts, settings = super().corpus(source), self.encoding_key()
        texts.key |= {"encoding": settings} if settings else {}
        return texts

    def prepare(self, splits, cache: Path, progress: bool) -> None:
        super().prepare(splits, cache, progress)
        self.settle()

    def settle(self) -> None:
        """Set lengths that are null in the recipe. Raises UserError for a tokenizer without eos or padding."""
        self.need_tokens(eos="an end-of-text", pad="a padding")
        if has_languages(self.tokenizer) and not self.tokenizer.tgt_lang:
            source = self.tokenizer.src_lang
            say([f"targets are marked as {source}, as sources are; tgt_lang in tokenizer_config.json can say another"])
        section = self.settings
        self.max_target_length = section.max_target_length or section.max_length
        self.max_new_tokens = section.max_new_tokens or self.max_target_length

    def collator(self, packed: bool) -> Callable[[list[dict]], dict]:
        from ..data.length_batching import PaddingCollator

        return PaddingCollator(self.tokenizer.pad_token_id)

    def rows(self, source, split: str, cache: Path, progress: bool = False) -> Rows:
        """The examples as input_ids and labels (unshifted); for measuring also the raw texts."""
        columns = {"input_ids": "int32[]", "labels": "int32[]"}
        if split != "train":
            columns |= {"source": "string", "target": "string"}
        settings = [self.settings.max_length, self.max_target_length, list(columns), *self.encoding_key()]
        settings += [getattr(self.tokenizer, "tgt_lang", None), "ends once"] if has_languages(self.tokenizer) else []
        return self.stored(source, cache, columns, settings)

    def encoding_key(self) -> list:
        """Further settings that the texts and the encoded examples depend on, as JSON."""
        return []

    def _batches(self, examples) -> Iterator[dict[str, list]]:
        tokenizer = text_tokenizer(self.tokenizer)
        for batch in in_batches(examples):
            source, target, reference = self.texts_of(batch)
            yield {
                "input_ids": self._inputs_of(source, tokenizer),
                "labels": self.labels_of(target, tokenizer),
                "source": source,
                "target": reference,
            }

    def _inputs_of(self, texts: list[str], tokenizer) -> list[list[int]]:
        """The ids that the encoder reads of each text. tokenizer: a copy of the model's, as text_tokenizer makes it."""
        longest = self.settings.max_length
        inputs = tokenizer(texts, truncation=True, max_length=longest)
        return [self._ended(ids, longest) for ids in inputs["input_ids"]]

    def labels_of(self, texts: list[str], tokenizer=None) -> list[list[int]]:
        """The ids that the decoder has to write for each text. tokenizer: a copy of the model's, where one exists."""
        tokenizer = text_tokenizer(self.tokenizer) if tokenizer is None else tokenizer
        labels = tokenizer(text_target=texts, truncation=True, max_length=self.max_target_length)
        return [self._ended(ids, self.max_target_length) for ids in labels["input_ids"]]

    def texts_of(self, batch: list) -> tuple[list[str], list[str], list[str]]:
        """(texts to read, texts to write, texts that answers are compared with) of examples (place, row)."""
        source, target = (
            [self.text_in(row, column, field, place) for place, row in batch]
            for field, column in self.columns().items()
        )
        return source, target, target

    def _ended(self, ids: list[int], longest: int) -> list[int]:
        """`ids` with an end-of-text token: without one a model would never learn to stop."""
        end = self.tokenizer.eos_token_id
        return ids if end in ids[-2:] else [*ids[: longest - 1], end]  # a language's token may follow the end

    def _facts(self, batch: dict[str, list]) -> dict:
        inputs, labels = ([len(ids) for ids in batch[name]] for name in ("input_ids", "labels"))
        full = sum(
            a >= self.settings.max_length or b >= self.max_target_length for a, b in zip(inputs, labels, strict=True)
        )
        return {
            "examples": len(inputs),
            "tokens": sum(inputs) + sum(labels),
            "target_tokens": sum(labels),
            "at_max_length": full,
        }

    def describe(self, rows) -> str:
        facts = rows.facts
        number, target = facts["examples"], facts["target_tokens"]
        return (
            f"{counted(number, 'example')} of {rows.name}, {(facts['tokens'] - target) / number:.1f} source and "
            f"{target / number:.1f} target tokens each, "
            f"{at_limit(facts['at_max_length'], number, 'their maximum length')}"
        )

    # ---- the model

    def config_fields(self) -> dict:
        """Each target begins with the padding token, as in T5 and Marian, or as `language_starts` says."""
        start = self.language_starts().get("decoder_start_token_id", self.tokenizer.pad_token_id)
        return {"decoder_start_token_id": start, "is_encoder_decoder": True}

    def language_starts(self) -> dict[str, int | None]:
        """Where answers in the tokenizer's target language begin; {} for a tokenizer without languages.

        mBART shifts labels in a circle, so that their last token, the language's or the end's, is the first that the
        decoder reads. A language's token before the text is written first (mBART-50, NLLB).
        """
        if not has_languages(self.tokenizer):
            return {}
        first, *_, last = self.labels_of([""])[0]
        forced = None if first == self.tokenizer.eos_token_id else first
        return {"decoder_start_token_id": last, "forced_bos_token_id": forced}

    def prepare_model(self, model) -> None:
        """Let `generate` search as the recipe says; saved as generation_config.json."""
        config, section = model.generation_config, self.settings
        config.update(
            num_beams=section.num_beams,
            max_new_tokens=self.max_new_tokens,
            max_length=None,  # some checkpoints set it, and it would compete with max_new_tokens
            length_penalty=section.length_penalty if section.num_beams > 1 else None,
            early_stopping=section.num_beams > 1,
            do_sample=False,
        )
        starts = self.language_starts() if getattr(self.tokenizer, "tgt_lang", None) else {}
        if starts:  # a checkpoint's own may be of another language
            model.config.decoder_start_token_id = starts["decoder_start_token_id"]
        elif config.decoder_start_token_id is None:
            starts = {"decoder_start_token_id": getattr(model.config, "decoder_start_token_id", None)}
        config.update(**starts)

    # ---- measuring

    def metrics_of_answers(self) -> list[str]:
        return list(self.metrics)

    def measure(self, finished: FinishedModel, rows, numbers: Sequence[int], train) -> dict[str, float]:
        """Metrics of answers; without metrics only as many rows are answered as are shown."""
        numbers = numbers if self.metrics else numbers[:SAMPLES]
        texts, (sources, references) = self.answers(finished, rows, numbers), map(rows.texts, ("source", "target"))
        self.shown = [
            {"prompt": sources[number], "reference": references[number], "text": text}
            for number, text in zip(numbers[:SAMPLES], texts)
        ]
        return self.measure_texts(texts, [references[number] for number in numbers])

    def measure_texts(self, predictions: list[str], references: list[str]) -> dict[str, float]:
        return self.compare(predictions, references)

    def answers(self, finished: FinishedModel, rows, numbers: Sequence[int]) -> list[str]:
        """Translations of the rows `numbers`, in that order; every process answers for a share of them."""

        def answer(mine: list[int]) -> list[str]:
            ids = [rows[number]["input_ids"] for number in mine]
            return self.written(finished, ids, lambda batches: watched(batches, "translating, batch"))

        return finished.shared(numbers, answer)

    def written(self, finished: FinishedModel, ids: list, watch: Callable = list) -> list[str]:
        """The texts that the model writes for `ids`, token ids of texts, in their order, by its generation config."""
        from ..data.length_batching import batches_by_tokens

        model, texts = finished.model, {}
        for batch in watch(batches_by_tokens(range(len(ids)), finished.batch_size, lambda number: len(ids[number]))):
            inputs = self.collator(packed=False)([{"input_ids": torch.as_tensor(ids[number])} for number in batch])
            with torch.inference_mode():
                output = model.generate(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
            texts |= zip(batch, self.tokenizer.batch_decode(output, skip_special_tokens=True))
        return [texts[number] for number in range(len(ids))]

    def samples(self, finished: FinishedModel, splits: dict[str, Rows]) -> list[dict]:
        """Answers to evaluation.sample_prompts; without prompts the first answers of the latest `measure`."""
        prompts = self.recipe.evaluation.sample_prompts
        if not prompts:
            return self.shown
        answers = self.predict(finished, prompts)
        return [{"prompt": prompt, "text": answer["prediction"]} for prompt, answer in zip(prompts, answers)]

    # ---- rows without labels

    asks_for: str = "texts"

    answers_by = auto_class

    def asked_columns(self, there: Collection[str]) -> dict[str, str]:
        *sources, _ = self.columns().items()
        return dict(sources)

    def asked(self, row: dict, place: str) -> str:
        """The text that the encoder reads."""
        return self.text_in(row, self.settings.source_field, "source_field", place)

    def predict(self, finished: FinishedModel, asked: list[str]) -> list[dict[str, Any]]:
        tokenizer, end, longest = text_tokenizer(self.tokenizer), self.tokenizer.eos_token_id, self.settings.max_length
        ids = self._inputs_of(asked, tokenizer)
        full = [text for text, row in zip(asked, ids, strict=True) if len(row) >= longest]
        whole = tokenizer(full, verbose=False)["input_ids"] if full else []
        self.cut += sum(len(row) + (end not in row[-2:]) > longest for row in whole)
        return [{"prediction": text} for text in self.written(finished, ids)]

    def show(self, console, rows, number: int, row: dict) -> None:
        show_source_and_target(console, self, rows, number, row)
