"""Few-shot: a language model answers a task of classes, numbers or texts after some solved examples.

The prompt is k solved examples of the training split and the question (Brown et al. 2020, section 2.4); the answer is
the class whose word is the likeliest continuation, or a number or a text (shot_answers.py). Nothing is trained. The
examples are drawn by the seed from the data alone, so every model sees the same ones; those of fewer shots are the
first of those of more.
"""

import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import transformers

from ..errors import UserError, did_you_mean
from ..likelihoods.likelihood import most_tokens
from ..metrics import compute_metrics
from ..metrics.significance import intervals, kept_comparisons
from ..objectives.base import Objective
from ..objectives.measuring import evenly_spread
from ..plugins import METRICS, objective_of
from ..recipes.schema import Recipe
from ..reporting.console import print_table
from ..storage.cache import cache_folder
from ..training.arguments import training_arguments
from .evaluate import load, open_config
from .result import Result, with_bounds
from .shot_answers import KINDS, Asked

BETWEEN = "\n\n"  # between two examples of a prompt
FIELD = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class Shots:
    """How a task is put to a language model.

    numbers: of solved examples before the question. template: the question, with columns in braces; None: each column
    and the label's on a line of its own. words: of the classes, in their order, or the numbers that are asked for;
    None: the classes' names, the numbers of the training labels.
    """

    numbers: list[int]
    template: str | None = None
    words: list[str] | None = None


@dataclass
class Question:
    """prompt: the text before the answer. answer: the right class's number, the right number or text. row: its number
    in the split."""

    prompt: str
    answer: int | float | str
    row: int


def evaluate_few_shot(
    recipe: Recipe,
    split: str,
    shots: Shots,
    *,
    max_examples: int | None = None,
) -> Result:
    """Ask the recipe's checkpoint, a language model, for the answers of one split.

    The result has shots: number of examples -> {"metrics", "intervals", "cut"}; cut: prompts that were too long for the
    model and lost their beginning. answers: {"shots", "row", "prediction", "reference"} of each question.

    Args:
        recipe: as evaluation_recipe gives it. max_examples: at most so many questions, spread over the split.

    Raises:
        UserError: a model that writes no text, a template or words that do not fit, or too few training examples.
    """
    started = time.time()
    config, objective = open_config(recipe), objective_of(recipe)
    sources = objective.open()
    objective.prepare(sources, cache_folder(recipe.data.cache_dir), sys.stdout.isatty())
    template = question_template(objective, shots.template)
    known = list(questions_of(objective, sources["train"], template))
    kind = KINDS[objective.asks_for](objective, shots.words, [question.answer for question in known])
    names = [name for name in objective.metrics if METRICS[name].fits(kind.compares)]
    names = names or [name for name in ("exact_match", "chrf") if METRICS[name].fits(kind.compares)]
    solved = draw_shots(known, max(shots.numbers), recipe)
    questions = list(questions_of(objective, sources[split], template))
    if max_examples is not None:
        questions = [questions[i] for i in evenly_spread(len(questions), max_examples)]
    auto_class = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    arguments = training_arguments(recipe)
    model = load(auto_class, recipe).to(arguments.device)
    rows, most = arguments.per_device_eval_batch_size, recipe.evaluation.sample_tokens
    objective.tokenizer.model_max_length = most_tokens(config)  # a prompt holds several of the task's texts
    asked = Asked(model, objective.tokenizer, rows, most)
    found, answers = {}, []
    for number in shots.numbers:
        prompts = [prompt_of(solved[:number], question, kind.written) for question in questions]
        given, probabilities, cut = kind.answers(asked, prompts)
        found[number] = measured(recipe, names, given, probabilities, questions) | {"cut": cut}
        for question, answer in zip(questions, given):
            pair = {"prediction": objective.named(answer), "reference": objective.named(question.answer)}
            answers.append({"shots": number, "row": question.row} | pair)
    about = {"template": template, "compares": kind.compares, "label_words": list(kind.words)}
    about |= {"shots": found, "recipe": recipe.to_dict()}
    return Result(recipe, sources[split].name, started, answers, split=split, examples=len(questions), **about)


def measured(recipe: Recipe, names: list[str], given: list, probabilities, questions: list[Question]) -> dict:
    """{"metrics", "intervals"} of some metrics; probabilities are of the words among themselves."""
    true = [question.answer for question in questions]
    with kept_comparisons() as compared:
        metrics, _ = compute_metrics(names, given, true, probabilities)
    bounds = intervals(compared[0], metrics, recipe.evaluation.bootstrap, recipe.training.seed)
    return {"metrics": metrics, "intervals": bounds}


# ------------------------------------------------------------------------------------------------- the prompt


def question_template(objective: Objective, given: str | None) -> str:
    """The template of a question; raises UserError for one with an unknown column, or with none."""
    columns = list(objective.asked_columns(objective.text_columns().values()).values())
    if given is None:
        return "\n".join([*(f"{column}: {{{column}}}" for column in columns), f"{objective.answer_column}:"])
    template = given.replace("\\n", "\n")
    named = FIELD.findall(template)
    for name in named:
        if name not in columns:
            near = did_you_mean(name, columns)
            raise UserError(f"--template {given!r}: there is no text {{{name}}}{near}")
    if not named:
        raise UserError(f"--template {given!r} holds no text of the question, such as {{{columns[0]}}}")
    return template


def questions_of(objective: Objective, source, template: str):
    """The Questions of a source of examples."""
    for row, (texts, answer) in enumerate(objective.questions(source)):
        prompt = FIELD.sub(lambda match, texts=texts: texts[match[1]], template)
        yield Question(prompt.strip(), answer, row)


def draw_shots(questions: list[Question], most: int, recipe: Recipe) -> list[Question]:
    """`most` questions in rounds over the answers, each in a new order: balanced, whatever number is taken first.

    Drawn by training.seed. Raises UserError where there are not so many.
    """
    if most > len(questions):
        raise UserError(f"--shots {most} is more than the {len(questions)} training examples of TASK={recipe.name}")
    draw, of_class = random.Random(recipe.training.seed), {}
    for question in questions:
        of_class.setdefault(question.answer, []).append(question)
    left = {number: draw.sample(group, len(group)) for number, group in sorted(of_class.items())}
    drawn: list[Question] = []
    while len(drawn) < most:
        order = [number for number, group in left.items() if group]
        draw.shuffle(order)
        drawn += [left[number].pop() for number in order]
    return drawn[:most]


def prompt_of(solved: Sequence[Question], question: Question, written: Callable[[Any], str]) -> str:
    """Solved examples, then the question, up to the space before the answer."""
    return BETWEEN.join([*(f"{each.prompt} {written(each.answer)}" for each in solved), question.prompt])


# --------------------------------------------------------------------------------------------------- reporting


def print_few_shot(result: Result) -> None:
    """One table: a row for each number of shots."""
    names = list(next(iter(result.shots.values()))["metrics"])
    rows = []
    for number, row in result.shots.items():
        shown = [with_bounds(row["metrics"][name], row["intervals"].get(name)) for name in names]
        rows.append([str(number), *shown, f"{row['cut']:,}"])
    how = "by writing"
    if result.label_words:
        mean = "the mean of numbers weighted by " if result.compares == "numbers" else ""
        how = f"by {mean}the likelihood of {', '.join(result.label_words)}"
    print_table(
        result.head(f"{result.examples:,} questions", f", answered {how}"),
        ["shots", *(name.replace("_", " ") for name in names), "prompts cut"],
        rows,
        numbers=slice(None),
    )
