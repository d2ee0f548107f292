"""A text in one language from a text in another, or any other text from a text."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import torch

from ..data.documents import sha
from ..data.example_store import EncodedExamples, encode_examples, in_batches
from ..data.examples import Examples, examples_fingerprint, text_of
from ..data.length_batching import PaddingCollator
from ..errors import UserError
from ..metrics import check_metrics, compute_metrics
from ..recipes.schema import TaskSection
from ..tokenizers.load import tokenizer_fingerprint
from ..tokenizers.special_tokens import NEEDED


def columns_of(section: TaskSection) -> dict[str, str]:
    """Recipe field -> column the task reads; both hold text."""
    return {"source_field": section.source_field, "target_field": section.target_field}


class Translation:
    """Source texts and their translations (Vaswani et al. 2017), with one tokenizer for both languages.

    Args:
        train: training examples; nothing is taken from them here.
        metrics: names of what is measured on the generated translations.

    Raises:
        UserError: a tokenizer without padding or end-of-text token.
    """

    auto_class = "AutoModelForSeq2SeqLM"
    predicts_next = False
    framing = NEEDED["translation"]

    def __init__(self, section: TaskSection, tokenizer, train: Examples, cache: Path, metrics: list[str]):
        self.section, self.tokenizer, self.metrics = section, tokenizer, metrics
        for name, words in (("eos_token_id", "an end-of-text"), ("pad_token_id", "a padding")):
            if getattr(tokenizer, name) is None:
                raise UserError(f"task.name=translation needs a tokenizer with {words} token; this one has none")
        check_metrics(metrics, "texts", "evaluation.metrics")
        self.signatures: dict[str, str] = {}  # of the metrics, once they were computed: what their numbers depend on
        self.max_target_length = section.max_target_length or section.max_length
        self.max_new_tokens = section.max_new_tokens or self.max_target_length

    def config_fields(self) -> dict:
        """Fields of a fresh model's config that belong to the task: padding begins each target, as in T5 and Marian."""
        return {"decoder_start_token_id": self.tokenizer.pad_token_id, "is_encoder_decoder": True}

    def prepare_model(self, model) -> None:
        """Let `generate` search as the recipe says; saved as generation_config.json."""
        config, section = model.generation_config, self.section
        config.update(
            num_beams=section.num_beams,
            max_new_tokens=self.max_new_tokens,
            max_length=None,  # that of some checkpoints, which would compete with max_new_tokens
            length_penalty=section.length_penalty if section.num_beams > 1 else None,
            early_stopping=section.num_beams > 1,
            do_sample=False,
        )
        if config.decoder_start_token_id is None:
            config.decoder_start_token_id = getattr(model.config, "decoder_start_token_id", None)

    def collator(self, packed: bool) -> PaddingCollator:
        return PaddingCollator(self.tokenizer.pad_token_id)

    def rows(self, examples: Examples, cache: Path) -> EncodedExamples:
        """The examples as input_ids and labels (unshifted), with the raw texts beside them for measuring."""
        ids = pyarrow.list_(pyarrow.int32())
        columns = [("input_ids", ids), ("labels", ids)]
        if examples.split != "train":
            columns += [("source", pyarrow.string()), ("target", pyarrow.string())]
        schema = pyarrow.schema(columns)
        key = sha(
            [
                examples_fingerprint(examples),
                tokenizer_fingerprint(self.tokenizer),
                [self.section.max_length, self.max_target_length, schema.names],
            ]
        )
        return encode_examples(cache, key, examples.name, schema, lambda: self._batches(examples), self._facts)

    def _batches(self, examples: Examples) -> Iterator[dict[str, list]]:
        tokenizer = copy.deepcopy(self.tokenizer)  # calling it leaves truncation switched on, which would be saved
        for batch in in_batches(examples):
            source, target = (
                [text_of(row, column, field, place) for place, row in batch]
                for field, column in columns_of(self.section).items()
            )
            inputs = tokenizer(source, truncation=True, max_length=self.section.max_length)
            labels = tokenizer(text_target=target, truncation=True, max_length=self.max_target_length)
            yield {
                "input_ids": [self._ended(ids, self.section.max_length) for ids in inputs["input_ids"]],
                "labels": [self._ended(ids, self.max_target_length) for ids in labels["input_ids"]],
                "source": source,
                "target": target,
            }

    def _ended(self, ids: list[int], longest: int) -> list[int]:
        """`ids` with an end-of-text token: without one a model would never learn to stop."""
        end = self.tokenizer.eos_token_id
        return ids if ids and ids[-1] == end else [*ids[: longest - 1], end]

    def _facts(self, batch: dict[str, list]) -> dict:
        inputs, labels = ([len(ids) for ids in batch[name]] for name in ("input_ids", "labels"))
        full = sum(
            a >= self.section.max_length or b >= self.max_target_length for a, b in zip(inputs, labels, strict=True)
        )
        return {
            "examples": len(inputs),
            "tokens": sum(inputs) + sum(labels),
            "target_tokens": sum(labels),
            "at_max_length": full,
        }

    def describe(self, rows: EncodedExamples) -> str:
        """One line for people."""
        facts = rows.facts
        number, target = facts["examples"], facts["target_tokens"]
        return (
            f"{number:,} examples of {rows.name}, {(facts['tokens'] - target) / number:.1f} source and "
            f"{target / number:.1f} target tokens each, {facts['at_max_length'] / number:.1%} fill their maximum length"
        )

    def generate(self, model, rows: EncodedExamples, numbers: list[int], batch_size: int) -> list[str]:
        """Translations of the rows `numbers`, in that order, by the model's generation config."""
        found = {}
        longest_first = sorted(numbers, key=lambda i: (-len(rows[i]["input_ids"]), i))
        for batch in in_batches(longest_first, batch_size):
            found |= zip(batch, self._answers(model, [rows[i]["input_ids"] for i in batch]))
        return [found[i] for i in numbers]

    def generate_texts(self, model, sources: list[str]) -> list[str]:
        """Translations of texts that stand in no row."""
        tokenizer = copy.deepcopy(self.tokenizer)
        ids = tokenizer(sources, truncation=True, max_length=self.section.max_length)["input_ids"]
        return self._answers(model, [torch.tensor(self._ended(row, self.section.max_length)) for row in ids])

    def _answers(self, model, ids: list[torch.Tensor]) -> list[str]:
        inputs = self.collator(packed=False)([{"input_ids": row} for row in ids])
        with torch.inference_mode():
            output = model.generate(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
        return self.tokenizer.batch_decode(output, skip_special_tokens=True)

    def measure_texts(self, predictions: list[str], references: list[str]) -> dict[str, float]:
        """Metrics of the translations of a whole split."""
        numbers, self.signatures = compute_metrics(self.metrics, predictions, references)
        return numbers
