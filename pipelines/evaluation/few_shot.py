"""Few-shot: a language model answers a task of classes by the likelihood of a word for each class.

The prompt is k solved examples of the training split and the question (Brown et al. 2020, section 2.4); the answer is
the class whose word is the likeliest continuation. Nothing is trained. The examples are drawn by the seed from the data
alone, so every model sees the same ones; those of fewer shots are the first of those of more.
"""

import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import transformers
from rich.table import Table
from scipy.special import softmax

import anyformer

from ..errors import UserError, did_you_mean
from ..likelihoods.likelihood import encode_pairs, log_likelihoods, most_tokens
from ..metrics import compute_metrics
from ..metrics.significance import intervals, kept_comparisons
from ..objectives.base import Objective
from ..objectives.class_task import are_unnamed
from ..objectives.measuring import evenly_spread
from ..plugins import objective_of
from ..recipes.schema import Recipe
from ..reporting.console import wide_console
from ..storage.cache import cache_folder
from ..training.arguments import training_arguments
from ..training.checkpoints.run_folder import package_versions
from ..words import human_time
from .evaluate import load, with_bounds

BETWEEN = "\n\n"  # between two examples of a prompt
FIELD = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class Shots:
    """How a task is put to a language model.

    numbers: of solved examples before the question. template: the question, with columns in braces; None: each column
    and the label's on a line of its own. words: of the classes, in their order; None: their names.
    normalized: likelihoods are divided by the number of the word's characters (lm-eval's acc_norm).
    """

    numbers: list[int]
    template: str | None = None
    words: list[str] | None = None
    normalized: bool = False


@dataclass
class Question:
    """prompt: the text before the answer. answer: the number of the right class. row: its number in the split."""

    prompt: str
    answer: int
    row: int


@dataclass
class FewShotResult:
    """What was measured. shots: number of examples -> {"metrics", "intervals", "cut"}; cut: prompts that were too long
    for the model and lost their beginning. answers: {"shots", "row", "prediction", "reference"} of each question.
    """

    model: str
    task: str
    split: str
    data: str
    examples: int
    template: str
    label_words: list[str]
    normalized: bool
    shots: dict[int, dict[str, Any]]
    seconds: float
    versions: dict[str, str]
    recipe: dict
    answers: list[dict] = field(default_factory=list, repr=False)

    def facts(self) -> dict:
        """All but the single answers, as JSON."""
        return {name: value for name, value in vars(self).items() if name != "answers"}


def evaluate_few_shot(
    recipe: Recipe,
    split: str,
    shots: Shots,
    *,
    max_examples: int | None = None,
) -> FewShotResult:
    """Ask the recipe's checkpoint, a language model, for the classes of one split.

    Args:
        recipe: as evaluation_recipe gives it. max_examples: at most so many questions, spread over the split.

    Raises:
        UserError: a model that writes no text, a template or words that do not fit, or too few training examples.
    """
    started = time.time()
    anyformer.register()
    transformers.utils.logging.disable_progress_bar()
    config = load(transformers.AutoConfig, recipe)
    objective = objective_of(recipe)
    sources = objective.open()
    objective.prepare(sources, cache_folder(recipe.data.cache_dir), sys.stdout.isatty())
    words = label_words(objective, shots.words)
    template = question_template(objective, shots.template)
    solved = draw_shots(list(questions_of(objective, sources["train"], template)), max(shots.numbers), recipe)
    questions = list(questions_of(objective, sources[split], template))
    if max_examples is not None:
        questions = [questions[i] for i in evenly_spread(len(questions), max_examples)]
    auto_class = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    arguments = training_arguments(recipe)
    model = load(auto_class, recipe).to(arguments.device)
    found, answers, rows_at_a_time = {}, [], arguments.per_device_eval_batch_size
    for number in shots.numbers:
        prompts = [prompt_of(solved[:number], question, words) for question in questions]
        scores, cut = class_scores(model, objective.tokenizer, prompts, words, rows_at_a_time, shots.normalized)
        found[number] = measured(recipe, scores, questions) | {"cut": cut}
        answers += [answer_of(objective, number, *asked) for asked in zip(questions, scores)]
    return FewShotResult(
        model=recipe.model.name_or_path,
        task=recipe.name,
        split=split,
        data=sources[split].name,
        examples=len(questions),
        template=template,
        label_words=words,
        normalized=shots.normalized,
        shots=found,
        seconds=round(time.time() - started, 1),
        versions=package_versions(),
        recipe=recipe.to_dict(),
        answers=answers,
    )


def answer_of(objective: Objective, shots: int, question: Question, scores) -> dict[str, Any]:
    """A row of FewShotResult.answers. scores: (C,), of which the largest is the answer's."""
    return {
        "shots": shots,
        "row": question.row,
        "prediction": objective.named(int(scores.argmax())),
        "reference": objective.named(question.answer),
    }


# ------------------------------------------------------------------------------------------------- the prompt


def label_words(objective: Objective, given: Sequence[str] | None) -> list[str]:
    """The words of the classes; raises UserError where they are not one for each class, all different, or no words."""
    names = objective.label_names
    if given is None and are_unnamed(names):
        raise UserError(
            f"--shots asks for words, and the classes have no names but {', '.join(names[:8])}; add --label-words with "
            f"a word for each of the {len(names)}, in this order"
        )
    words = [word.strip() for word in (names if given is None else given)]
    if len(words) != len(names):
        raise UserError(f"--label-words has {len(words)}, but there are {len(names)} classes: {', '.join(names)}")
    if len(set(words)) < len(words) or "" in words:
        raise UserError(f"--label-words {','.join(words)} must be different words, one for each class")
    return words


def question_template(objective: Objective, given: str | None) -> str:
    """The template of a question; raises UserError for one with an unknown column, or with none."""
    columns = list(objective.text_columns().values())
    if given is None:
        return "\n".join([*(f"{column}: {{{column}}}" for column in columns), f"{objective.settings.label_field}:"])
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
    """`most` questions in rounds over the classes, each in a new order: balanced, whatever number is taken first.

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


def prompt_of(solved: Sequence[Question], question: Question, words: list[str]) -> str:
    """Solved examples, then the question, up to the space before the answer."""
    return BETWEEN.join([*(f"{each.prompt} {words[each.answer]}" for each in solved), question.prompt])


# ------------------------------------------------------------------------------------------------- the answers


def class_scores(model, tokenizer, prompts: list[str], words: list[str], batch_size: int, normalized: bool):
    """((questions, classes) log-likelihoods of the words, how many prompts were cut)."""
    answers = bool(model.config.is_encoder_decoder)
    pairs = encode_pairs(tokenizer, [(prompt, f" {word}") for prompt in prompts for word in words], answers)
    most = most_tokens(model.config)
    longest = [len(context) if answers else len(context) + len(word) - 1 for context, word in pairs]
    cut = sum(max(longest[i : i + len(words)]) > most for i in range(0, len(pairs), len(words)))
    found = np.array(log_likelihoods(model, pairs, batch_size=batch_size, most=most)).reshape(len(prompts), len(words))
    return (found / [len(word) for word in words] if normalized else found), cut


def measured(recipe: Recipe, scores, questions: list[Question]) -> dict[str, dict]:
    """{"metrics", "intervals"} of the recipe's metrics; probabilities are of the words among themselves."""
    true = [question.answer for question in questions]
    with kept_comparisons() as compared:
        metrics, _ = compute_metrics(
            recipe.evaluation.metrics, scores.argmax(-1).tolist(), true, softmax(scores, axis=-1)
        )
    bounds = intervals(compared[0], metrics, recipe.evaluation.bootstrap, recipe.training.seed)
    return {"metrics": metrics, "intervals": bounds}


# --------------------------------------------------------------------------------------------------- reporting


def print_few_shot(result: FewShotResult) -> None:
    """One table: a row for each number of shots."""
    console = wide_console(soft_wrap=True)
    console.print(
        f"{result.model} on {result.task}: {result.examples:,} questions of {result.data} ({result.split}), answered "
        f"by the likelihood of {', '.join(result.label_words)}, {human_time(result.seconds)}",
        markup=False,
    )
    names = list(next(iter(result.shots.values()))["metrics"])
    table = Table("shots", *(name.replace("_", " ") for name in names), "prompts cut", title=None, show_edge=False)
    for column in table.columns:
        column.justify = "right"
    for number, row in result.shots.items():
        shown = [with_bounds(row["metrics"][name], row["intervals"].get(name)) for name in names]
        table.add_row(str(number), *shown, f"{row['cut']:,}")
    console.print(table)
