"""The answer to a question, as a span of a context (SQuAD)."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.account import Account
from ..data.batch_keys import EPOCH, ROW_IDS
from ..data.cells import filled_text_of
from ..data.documents import in_batches
from ..data.rows import Rows
from ..errors import UserError
from ..lazy import np, torch
from ..plugins import register_objective
from ..recipes.row_words import Words
from ..recipes.schema import ObjectiveSettings, doc
from ..tokenizers.control_tokens import text_tokenizer
from ..words import counted, watched
from .answering import count_cut
from .answers import SAMPLES, Answers, FinishedModel
from .base import Objective
from .data import Data
from .example_reads import ReadsExamples, stored
from .learns import Learns
from .losses import Spans
from .reads import text_columns_of
from .scores import Scored, Scores
from .showing import sequence_pieces, tokens_text
from .tokens import Tokens, need_offsets, padding_collator

SPECIAL = 8  # most tokens that a tokenizer may put around question and context
LONGEST_QUESTION = 64  # tokens; at most a quarter of the window
BEST = 20  # candidates of each window, which are compared over all windows of a question
MODEL_INPUTS = ("input_ids", "token_type_ids", "labels")

Span = tuple[int, int]  # begin and end of characters, or first and last token


@dataclass
class QuestionAnsweringSettings(ObjectiveSettings):
    question_field: str = doc("column that holds the question", "question")
    context_field: str = doc("column of the text that holds its answer", "context")
    answer_text_field: str = doc(
        "column, or name within a column, of the right answers: a text or a list", "answers.text"
    )
    answer_start_field: str = doc(
        "column, or name within a column, of the places in the context at which they begin: a number or a list",
        "answers.answer_start",
    )
    no_answer: bool = doc("questions may have no answer, and the model may give none (SQuAD 2.0)", False)
    max_length: int = doc(
        "tokens per window, question and special ones included; a longer context is read in several windows",
        384,
        at_least=16,
        at_most=2**20,
    )
    stride: int = doc("tokens of the context that a window shares with the one before it", 128, at_least=0)
    max_answer_length: int = doc("most tokens of an answer that is given", 30, at_least=1)

    @property
    def question_length(self) -> int:
        """Most tokens of a question that are read; longer questions are cut."""
        return min(LONGEST_QUESTION, self.max_length // 4)


class Windows:
    """The windows of questions and their contexts, as token ids."""

    def __init__(self, settings: QuestionAnsweringSettings, tokenizer):
        self.settings, self.tokenizer = settings, tokenizer

    def of(self, examples, account: Account, labelled: bool = True) -> Iterator[dict[str, list]]:
        """Windows of examples (place, row), by column, batch after batch. labelled: whether they have answers."""
        tokenizer = text_tokenizer(self.tokenizer)
        before = 0
        for batch in in_batches(examples, 200):
            columns = text_columns_of(self.settings).items()
            questions, contexts = ([filled_text_of(row, c, f, place) for place, row in batch] for f, c in columns)
            answers = [right_answers(self.settings, row, place) if labelled else [] for place, row in batch]
            questions, cut = self._cut(tokenizer, [text.strip() for text in questions])
            encoded = tokenizer(
                questions,
                contexts,
                truncation="only_second",
                max_length=self.settings.max_length,
                stride=self.settings.stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                padding=False,
            )
            windows: dict[str, list] = {name: [] for name in (*MODEL_INPUTS, "number", "inside", "begins", "ends")}
            windows |= {"question": [], "text": [], "right": [], "at": []}
            answered, types = set(), encoded.get("token_type_ids")
            for window, example in enumerate(encoded["overflow_to_sample_mapping"]):
                offsets = encoded["offset_mapping"][window]
                first, after = inside = context_of(offsets, encoded.sequence_ids(window))
                if first == after and window and encoded["overflow_to_sample_mapping"][window - 1] == example:
                    continue  # what is left of the context has no token
                null = self.place_of_no_answer(encoded["input_ids"][window])
                span = None
                for text, begin in answers[example][:1]:
                    span = tokens_of_answer(offsets, inside, (begin, begin + len(text)))
                answered |= {example} if span else set()
                begin = offsets[first][0] if after > first else 0
                end = offsets[after - 1][1] if after > first else 0
                windows["input_ids"].append(encoded["input_ids"][window])
                windows["labels"].append(list(span or (null, null)))
                windows["token_type_ids"].append(types[window] if types else [])
                windows["at"].append(begin)
                windows["number"].append(before + example)
                windows["inside"].append([first, after])
                windows["begins"].append([a - begin for a, _ in offsets[first:after]])
                windows["ends"].append([b - begin for _, b in offsets[first:after]])
                windows["question"].append(questions[example])
                windows["text"].append(contexts[example][begin:end])
                windows["right"].append(json.dumps([text for text, _ in answers[example]]))
            facts = {
                "examples": len(batch),
                "questions_cut": cut,
                "without_answer": sum(not right for right in answers),
                "answer_in_no_window": sum(bool(right) and i not in answered for i, right in enumerate(answers)),
                "windows": len(windows["input_ids"]),
                "tokens": sum(map(len, windows["input_ids"])),
            }
            others = sum(max(0, len(right) - 1) for right in answers)
            account.left_out("answer", "beside the first one, not learned", others, is_usual=True)
            before += len(batch)
            yield windows | {"facts": facts}

    def _cut(self, tokenizer, questions: list[str]) -> tuple[list[str], int]:
        """The questions, cut to their first question_length tokens, and how many were longer."""
        most, texts, cut = self.settings.question_length, [], 0
        encoded = tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)
        for text, offsets in zip(questions, encoded["offset_mapping"]):
            cut += len(offsets) > most
            texts.append(text[: offsets[most - 1][1]] if len(offsets) > most else text)
        return texts, cut

    def place_of_no_answer(self, ids: Sequence[int]) -> int:
        """The position of the token that stands for no answer in this window."""
        tokenizer = self.tokenizer
        if tokenizer.cls_token_id is not None and tokenizer.cls_token_id in ids:
            return ids.index(tokenizer.cls_token_id)
        return len(ids) - 1 if ids[-1] == tokenizer.eos_token_id else 0


def right_answers(settings: QuestionAnsweringSettings, row: dict, place: str) -> list[tuple[str, int]]:
    """The right answers of an example as (text, first character). Raises UserError for one that is invalid."""
    section = settings
    texts, starts = row[section.answer_text_field], row[section.answer_start_field]
    texts, starts = ([] if x is None else x if isinstance(x, list) else [x] for x in (texts, starts))
    where = f"task.answer_text_field={section.answer_text_field!r}"
    where_start = f"task.answer_start_field={section.answer_start_field!r}"
    if len(texts) != len(starts):
        raise UserError(f"{where}: {place} holds {counted(len(texts), 'answer')}, but {len(starts)} of {where_start}")
    if not texts and not section.no_answer:
        raise UserError(f"{where}: {place} holds no answer; where questions may have none, set task.no_answer=true")
    context = row[section.context_field]
    for text, start in zip(texts, starts):
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{where}: {place} holds {text!r}, which is no text")
        if not isinstance(start, int) or isinstance(start, bool):
            raise UserError(f"{where_start}: {place} holds {start!r}, which is no whole number")
        actual = context[start : start + len(text)] if start >= 0 else ""
        if actual != text:
            position = context.find(text)
            hint = f"; the answer begins at {position}" if position >= 0 else "; the answer is not in it"
            held = f"has {actual!r}" if actual else f"has no character (its text has {len(context):,})"
            raise UserError(
                f"{where_start}: {place} holds {start} for the answer {text!r}, where the context {held}{hint}"
            )
    return list(zip(texts, starts))


class ReadsQuestions(ReadsExamples):
    """Questions with their contexts, in windows."""

    def prepare(self, sources, tokenizer: Any = None) -> Data:
        """Raises UserError for a tokenizer that does not say where in the text its tokens stand."""
        data = super().prepare(sources, tokenizer)
        need_offsets(self.objective, data.tokenizer)
        return data

    def rows(self, data: Data, source, split: str) -> Rows:
        """Windows as input_ids, labels (2,) and token_type_ids; with what metrics need, except for training.

        That is the question and its number, the window's part of the context (`text`), the range of its tokens
        (`inside`), the characters at which each begins and ends in the text, and the right answers as JSON.
        """
        section, columns = self.settings, {"input_ids": "int32[]", "labels": "int32[]"}
        if "token_type_ids" in data.tokenizer.model_input_names:
            columns["token_type_ids"] = "int8[]"
        if split != "train":
            columns |= {"number": "int32", "inside": "int32[]", "begins": "int32[]", "ends": "int32[]"}
            columns |= dict.fromkeys(("question", "text", "right"), "string")
        settings = [section.max_length, section.stride, section.question_length, section.no_answer]
        return stored(self, data, source, columns, [*settings, list(columns)])

    def _batches(self, data: Data, examples, account: Account) -> Iterator[dict[str, list]]:
        return Windows(self.settings, data.tokenizer).of(examples, account)

    def describe(self, data: Data, rows) -> str:
        facts = rows.facts
        lines = [
            f"{counted(facts['examples'], 'question')} of {rows.name} in {counted(facts['windows'], 'window')} of "
            f"{facts['tokens'] / facts['windows']:.0f} tokens"
        ]
        if facts["without_answer"]:
            lines.append(f"{counted(facts['without_answer'], 'question')} without an answer")
        if facts["answer_in_no_window"]:
            lines.append(
                f"{counted(facts['answer_in_no_window'], 'answer')} in no window as a whole, learned as no answer; a "
                f"larger task.stride or task.max_length finds them"
            )
        if facts["questions_cut"]:
            lines.append(f"{counted(facts['questions_cut'], 'question')} cut to {self.settings.question_length} tokens")
        return "\n".join(lines)

    def collator(self, data: Data, packed: bool) -> "WindowCollator":
        return WindowCollator(data.tokenizer)

    def show(self, console, data: Data, rows, number: int, row: dict) -> None:
        first, last = row["labels"].tolist()
        console.rule(f"window {number}: {len(row['input_ids'])} tokens, answer at {first} to {last}", align="left")
        pieces = sequence_pieces(row["input_ids"].tolist(), data.tokenizer, range(first, last + 1))
        console.print(tokens_text(console, pieces))


class LearnsSpans(Learns):
    """The first and the last token of an answer."""

    def loss(self) -> Spans:
        return Spans()


class AnswersQuestions(Answers):
    """The best span of a context over all windows of a question."""

    head = "AutoModelForQuestionAnswering"
    finishes_on = "all"

    def asked(self, row: dict, place: str) -> dict[str, str]:
        columns = text_columns_of(self.settings).items()
        return {column: filled_text_of(row, column, field, place) for field, column in columns}

    def of_windows(self, finished: FinishedModel, rows, numbers: Sequence[int]) -> list[dict]:
        """[{"number", "question", "right", "given"}] of the questions of the windows `numbers`, in order of number."""
        of_window = rows.numbers("number")
        windows = np.flatnonzero(np.isin(of_window, of_window[list(numbers)]))
        scored = finished.shared(
            windows.tolist(), lambda mine: self._candidates(finished.model, rows, mine, finished.batch_size)
        )
        questions, texts, right = (rows.texts(name) for name in ("question", "text", "right"))
        numbered = [(int(of_window[window]), window) for window in windows.tolist()]
        answers = self._given((number, texts[window], 0, pair) for (number, window), pair in zip(numbered, scored))
        firsts = dict(reversed(numbered))  # the first window of each question
        return [
            {"number": number, "question": questions[window], "right": json.loads(right[window])}
            | {"given": answers[number]["prediction"]}
            for number, window in sorted(firsts.items())
        ]

    def _given(self, windows: Iterable[tuple[int, str, int, tuple]]) -> dict[int, dict[str, Any]]:
        """{question's number: answer}. windows: (question's number, text, its place in the context, candidates)."""
        nulls: dict[int, float] = {}
        spans: dict[int, list] = {}
        for number, text, at, (null, candidates) in windows:
            nulls[number] = min(nulls.get(number, null), null)  # the lowest score of its windows
            for score, a, b in candidates:
                begin = at + b - len(text[a:b].lstrip())
                spans.setdefault(number, []).append((score, text[a:b].strip(), begin))
        return {number: self._chosen(null, spans.get(number, [])) for number, null in nulls.items()}

    def _chosen(self, null: float, found: list[tuple[float, str, int]]) -> dict[str, Any]:
        """The best of the candidates `found`, (score, text, first character), and its probability among them.

        null: the score of no answer, which is a candidate with task.no_answer: an empty text, whose start is None.
        """
        filled = [each for each in found if each[1]]
        best = max(filled, key=lambda each: each[0], default=(-np.inf, "", None))
        scores = [score for score, *_ in filled]
        if self.settings.no_answer:
            scores.append(null)
            best = (null, "", None) if null > best[0] else best
        share = float(np.exp(best[0] - np.logaddexp.reduce(scores))) if scores else None
        return {"prediction": best[1], "score": share, "start": best[2]}

    def predict(self, finished: FinishedModel, asked: list[dict[str, str]]) -> list[dict[str, Any]]:
        """The answer, its probability among all candidates, and where it begins in the context."""
        rows, tensors = [], ("input_ids", "labels", "inside", "begins", "ends")
        for batch in Windows(self.settings, self.tokenizer).of([("", row) for row in asked], Account(), labelled=False):
            count_cut(self.account, batch.pop("facts")["questions_cut"])
            types = batch.pop("token_type_ids")
            if types[0]:
                batch["token_type_ids"] = map(torch.tensor, types)
            batch |= {name: map(torch.tensor, batch[name]) for name in tensors}
            rows += [dict(zip(batch, values)) for values in zip(*batch.values())]
        numbers, size = list(range(len(rows))), finished.batch_size
        scored = self._candidates(finished.model, rows, numbers, size, watch=lambda batches, _: batches)
        windows = ((row["number"], row["text"], row["at"], pair) for row, pair in zip(rows, scored))
        return list(self._given(windows).values())

    def _candidates(self, model, rows, numbers: list[int], batch_size: int, watch: Callable = watched) -> list[tuple]:
        """(score of no answer, [(score, first character, one after the last)]) for each of the windows `numbers`."""
        collate, section, answers = WindowCollator(self.tokenizer), self.settings, {}
        place_of_no_answer = Windows(section, self.tokenizer).place_of_no_answer
        longest_first = sorted(numbers, key=lambda i: (-len(rows[i]["input_ids"]), i))
        for batch in watch(list(in_batches(longest_first, batch_size)), "answering, batch"):
            windows = [rows[i] for i in batch]
            inputs = collate(windows)
            inputs = {n: x.to(model.device) for n, x in inputs.items() if not n.endswith(("labels", "positions"))}
            with torch.inference_mode():
                outputs = model(**inputs)
            starts, ends = outputs["start_logits"].float().cpu(), outputs["end_logits"].float().cpu()
            for number, window, start, end in zip(batch, windows, starts, ends):
                null = place_of_no_answer(window["input_ids"].tolist())
                first, after = window["inside"].tolist()
                spans = best_spans(start, end, (first, after), section.max_answer_length, BEST)
                begins, stops = window["begins"].tolist(), window["ends"].tolist()
                characters = [(score, begins[i - first], stops[j - first]) for score, i, j in spans]
                answers[number] = ((start[null] + end[null]).item(), characters)
        return [answers[i] for i in numbers]


class SpanScores(Scores):
    """Metrics of answers as texts."""

    def of_answers(self, finished: FinishedModel, rows, numbers: Sequence[int]) -> Scored:
        """Metrics of the questions of the windows `numbers`, each answered from all of its windows.

        The answers are kept under the numbers of their questions, for confidence intervals and comparisons.
        """
        found = self.data.answers().of_windows(finished, rows, numbers)
        predictions, references = ([item[name] for item in found] for name in ("given", "right"))
        shown = [
            {"prompt": item["question"], "reference": " / ".join(dict.fromkeys(item["right"])), "text": item["given"]}
            for item in found[:SAMPLES]
        ]
        return self._compare(predictions, references, rows=[item["number"] for item in found], samples=shown)


@register_objective
class QuestionAnswering(Objective):
    """The answer to a question, as a span of a context, or none (SQuAD).

    A row is a window: the question and as much of the context as fits. Labels are the first and last token of the first
    of the right answers; in a window that does not hold it, the token that stands for no answer: the tokenizer's
    classification token, else the end-of-text token, else the first token (Devlin et al. 2019, sections 4.2 and 4.3).
    The finished model's answer to a question, a text, is the best one over all windows of the question.
    """

    name = "question_answering"
    section, row_labels = "task", {"labels": (2,)}
    Settings = QuestionAnsweringSettings
    Reads, Learns, Scores, Answers = ReadsQuestions, LearnsSpans, SpanScores, AnswersQuestions
    auto_class = AnswersQuestions.head
    tokens = Tokens("cls_sep", {"AutoModelForCausalLM": "eos"})  # a decoder's last token sees the whole window
    compares, gives = "answers", ("prediction", "score", "start")
    default_metrics = ("answer_exact_match", "answer_f1")
    words = Words(
        row="window",
        loss="nats per end of an answer",
        sample="answer to {prompt!r}",
        answers=True,
        use="anyformer predict {folder} FILE",
        hub_task="question-answering",
    )

    def check(self) -> None:
        super().check()
        section = self.settings
        room = section.max_length - section.question_length - SPECIAL
        if section.stride >= room:
            raise UserError(
                f"task.stride={section.stride} leaves no new token in a window: task.max_length={section.max_length} "
                f"less {section.question_length} of the question and special tokens has {max(0, room)} of the context; "
                f"at most {max(0, room - 1)} works"
            )

    def metrics_of_answers(self) -> list[str]:
        return list(self.recipe.evaluation.metrics)


class WindowCollator:
    """Windows -> one batch: input_ids, token_type_ids, labels (B, 2), and these as start_positions and end_positions.

    Labels are positions, which padding on the left would shift. tokenizer: it says what input_ids are filled up with.
    """

    def __init__(self, tokenizer: Any):
        self.pad = padding_collator(tokenizer)
        self.pad.left = False

    def __call__(self, rows: list[dict]) -> dict:
        names = (*MODEL_INPUTS, ROW_IDS, EPOCH)
        batch = self.pad([{name: row[name] for name in names if name in row} for row in rows])
        start, end = batch["labels"].unbind(-1)
        return batch | {"start_positions": start, "end_positions": end}


def context_of(offsets: Sequence[Span], sequence_ids: Sequence[int | None]) -> Span:
    """(first, one after the last) of the tokens of a window that belong to the second text, the context."""
    inside = [
        place for place, number in enumerate(sequence_ids) if number == 1 and offsets[place][0] < offsets[place][1]
    ]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def tokens_of_answer(offsets: Sequence[Span], context: Span, answer: Span) -> Span | None:
    """First and last token that cover the characters of an answer; None if the window does not hold all of it."""
    first, after = context
    begin, end = answer
    covering = [place for place in range(first, after) if offsets[place][0] < end and offsets[place][1] > begin]
    if not covering:
        return None
    # Inside the window characters may have no token; at its edges the answer may continue outside.
    begins_inside = covering[0] > first or offsets[first][0] <= begin
    ends_inside = covering[-1] < after - 1 or offsets[after - 1][1] >= end
    return (covering[0], covering[-1]) if begins_inside and ends_inside else None


def best_spans(start, end, context: Span, longest: int, number: int) -> list[tuple[float, int, int]]:
    """The `number` best (score, first token, last token) of a window, the best first.

    start, end: (T,) scores of each token as first and as last one of the answer; a span's score is their sum. Spans
    lie inside the context and have at most `longest` tokens.
    """
    first, after = context
    size = after - first
    if size == 0:
        return []
    width = min(longest, size)
    ends = torch.nn.functional.pad(end[first:after].float(), (0, width - 1), value=-torch.inf)
    scores = start[first:after].float()[:, None] + ends.unfold(0, width, 1)  # (first token, further tokens)
    values, places = scores.flatten().topk(min(number, scores.numel()))
    best = zip(values.tolist(), places.tolist())
    return [(v, first + p // width, first + p // width + p % width) for v, p in best if v > -torch.inf]
