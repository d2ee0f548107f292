"""Few-shot: a language model answers a task of classes, numbers or texts after some solved examples.

The prompt is k solved examples of the training split and the question (Brown et al. 2020, section 2.4); the answer is
the class whose word is the likeliest continuation, or a number or a text (shot_answers.py). Nothing is trained. The
examples depend only on the seed and the data, so every model sees the same ones; those of fewer shots are the first of
those of more shots.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..data.account_words import unusual
from ..data.rows import evenly_spread
from ..errors import UserError, did_you_mean
from ..likelihoods.likelihood import most_tokens
from ..metrics import compute_metrics
from ..metrics.significance import intervals, kept_comparisons
from ..objectives.answers import FinishedModel
from ..objectives.data import Data
from ..objectives.prepare import with_usable_rows
from ..objectives.reads import Reads, label_column
from ..plugins import METRICS, objective_of
from ..recipes.schema import Recipe
from ..reporting.console import print_table
from ..reporting.plots import can_plot, plot_shots
from ..words import counted, say
from .result import Began, Result, asked_of, metric_cells
from .saved_model import load_placed, open_config
from .shot_answers import KINDS

BETWEEN = "\n\n"  # separates the examples of a prompt
FIELD = re.compile(r"\{([^{}]+)\}")


@dataclass
class Question:
    """prompt: the text before the answer. answer: the right class's number, the right number or text. row: its number
    in the split."""

    prompt: str
    answer: int | float | str
    row: int


class FewShotResult(Result):
    """shots: number of examples -> {"metrics", "intervals", "cut"}; cut: prompts that were too long for the model and
    lost their beginning. answers: {"shots", "row", "prediction", "reference"} of each question."""

    def show(self) -> None:
        """Print one table: a row for each number of shots."""
        rows = []
        for number, row in self.shots.items():
            cells = metric_cells(row["metrics"], row["intervals"])
            rows.append([str(number), *(value for _, value in cells), f"{row['cut']:,}"])
        how = "by writing"
        if self.label_words:
            mean = "the mean of numbers weighted by " if self.compares == "numbers" else ""
            how = f"by {mean}the likelihood of {', '.join(self.label_words)}"
        print_table(
            self.head(counted(self.examples, "question"), f", answered {how}"),
            ["shots", *(name for name, _ in cells), "prompts cut"],
            rows,
            numbers=slice(None),
        )

    def draw(self, picture: Path) -> bool:
        """Draw the curve of several numbers of shots, where matplotlib is installed."""
        has_curve = len(self.shots) > 1 and can_plot()
        if has_curve:
            plot_shots(self.shots, picture)
        return has_curve


def evaluate_few_shot(
    recipe: Recipe,
    split: str,
    shots: list[int],
    template: str | None = None,
    words: list[str] | None = None,
    max_examples: int | None = None,
) -> FewShotResult:
    """Ask the recipe's checkpoint, a language model, for the answers of one split.

    Args:
        recipe: as evaluation_recipe gives it.
        shots: how many solved examples precede the question.
        template: the question, with columns in braces; None: each column and the label's on a line of its own.
        words: of the classes, in their order, or the numbers that the answer is averaged over; None: the classes'
            names, or numbers taken from the training labels.
        max_examples: the most questions to ask, spread over the split.

    Raises UserError: a model that writes no text, a template or words that do not fit, or too few training examples.
    """
    began = Began.now(recipe)
    config, objective = open_config(recipe), objective_of(recipe).for_rows()
    reads = objective.Reads(objective)
    sources, template = reads.open(), question_template(reads, template)

    def asked(data: Data) -> list[list[Question]]:
        return [list(questions_of(data, sources[name], template)) for name in ("train", split)]

    data, (solvable, questions) = with_usable_rows(reads, sources, asked)
    say(f"{split}: {note}" for note in unusual(sources[split].account()))
    kind = KINDS[objective.asks_for](data, words, [question.answer for question in solvable])
    scores = data.scores()
    names = [name for name in objective.metrics if METRICS[name].fits(kind.compares)]
    names = names or [name for name in ("exact_match", "chrf") if METRICS[name].fits(kind.compares)]
    solved = draw_shots(solvable, max(shots), recipe)
    if max_examples is not None:
        questions = [questions[i] for i in evenly_spread(len(questions), max_examples)]
    model = load_placed("AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM", recipe)
    data.tokenizer.model_max_length = most_tokens(config)  # a prompt holds several of the task's texts
    finished = FinishedModel(recipe.model.name_or_path, lambda: model, recipe.training.evaluation_rows)
    results, answers = {}, []
    for number in shots:
        prompts = [prompt_of(solved[:number], question, kind.written) for question in questions]
        predictions, probabilities, cut = kind.answers(finished, prompts)
        results[number] = measured(recipe, names, predictions, probabilities, questions) | {"cut": cut}
        for question, answer in zip(questions, predictions):
            pair = {"prediction": scores.named(answer), "reference": scores.named(question.answer)}
            answers.append({"shots": number, "row": question.row} | pair)
    facts = {"template": template, "compares": kind.compares, "label_words": list(kind.words)}
    facts |= {"shots": results, "recipe": recipe.to_dict(), "asked": asked_of(reads, partial(iter, sources[split]))}
    facts |= {"split": split, "examples": len(questions)}
    return FewShotResult(recipe, sources[split].name, began, answers, **facts)


def measured(recipe: Recipe, names: list[str], given: list, probabilities, questions: list[Question]) -> dict:
    """{"metrics", "intervals"} of some metrics; probabilities: of the label words, which sum to 1."""
    true = [question.answer for question in questions]
    with kept_comparisons() as compared:
        metrics, _ = compute_metrics(names, given, true, probabilities, tokenize=recipe.evaluation.bleu_tokenize)
    bounds = intervals(compared[0], metrics, recipe.evaluation.bootstrap, recipe.training.seed)
    return {"metrics": metrics, "intervals": bounds}


def question_template(reads: Reads, given: str | None) -> str:
    """The template of a question; raises UserError for a template with an unknown column, or without any column."""
    columns = list(reads.asked_columns().values())
    if given is None:
        return "\n".join([*(f"{column}: {{{column}}}" for column in columns), f"{label_column(reads.settings)[0]}:"])
    template = given.replace("\\n", "\n")
    fields = FIELD.findall(template)
    for name in fields:
        if name not in columns:
            near = did_you_mean(name, columns)
            raise UserError(f"--template {given!r}: there is no text {{{name}}}{near}")
    if not fields:
        raise UserError(f"--template {given!r} holds no text of the question, such as {{{columns[0]}}}")
    return template


def questions_of(data: Data, source, template: str):
    """The Questions of a source of examples."""
    for row, (texts, answer) in enumerate(data.reads.questions(data, source)):
        prompt = FIELD.sub(lambda match, texts=texts: texts[match[1]], template)
        yield Question(prompt.strip(), answer, row)


def draw_shots(questions: list[Question], most: int, recipe: Recipe) -> list[Question]:
    """`most` questions in rounds of one question for each answer, so that every beginning of the list is balanced.

    The answers of each round are in a new order, drawn by training.seed. Raises UserError where there are too few.
    """
    if most > len(questions):
        raise UserError(f"--shots {most} is more than the {len(questions)} training examples of TASK={recipe.name}")
    draw, of_class = random.Random(recipe.training.seed), {}
    for question in questions:
        of_class.setdefault(question.answer, []).append(question)
    remaining = {number: draw.sample(group, len(group)) for number, group in sorted(of_class.items())}
    drawn: list[Question] = []
    while len(drawn) < most:
        order = [number for number, group in remaining.items() if group]
        draw.shuffle(order)
        drawn += [remaining[number].pop() for number in order]
    return drawn[:most]


def prompt_of(solved: Sequence[Question], question: Question, written: Callable[[Any], str]) -> str:
    """The solved examples, then the question, without the space before its answer."""
    return BETWEEN.join([*(f"{each.prompt} {written(each.answer)}" for each in solved), question.prompt])
