"""What `anyformer inspect` looks at: texts and images as a saved model's objective reads them, and its answers."""

from typing import Any

from ..adapters import HEADS_OF_TASKS, is_adapter, task_of
from ..data.account_words import unusual
from ..data.documents import Limits
from ..data.file_reader import FileReader
from ..data.plain_text import PlainText
from ..data.reader import ExampleView
from ..errors import UserError, refuse_file
from ..evaluation.saved_model import load, open_config
from ..lazy import transformers
from ..objectives.answers import FinishedModel
from ..words import counted, say
from .predict import data_of_model, recipe_of_model

MOST_TOKENS, BATCH = 48, 16  # of a written answer; texts that are answered at once


class LookedAt:
    """A saved model, and the texts or paths of images that it is shown, as its objective reads them.

    processor: its tokenizer or image processor. Raises UserError for a model that cannot be opened, for a file without
    the columns that the model reads, and where there is nothing to look at.
    """

    def __init__(self, model: str, given: list[str], file: str | None, trust_remote_code: bool = False):
        recipe = recipe_of_model(model, trust_remote_code)
        config = open_config(recipe)
        self._class = class_of(recipe.model.name_or_path, config)
        config.architectures = [self._class.__name__]  # an adapter's is not that of its base
        data = data_of_model(recipe, config, set())
        self.answers, self.processor, columns = data.answers(), data.processor, data.reads.asked_columns(())
        self._columns = list(columns.values())
        for text in given if data.tokenizer is not None else ():
            refuse_file("TEXT", text, f"--texts {text} reads its lines")
        rows: list[Any] = [("TEXT", {self._columns[0]: text}) for text in given]
        if file is not None:
            view = ExampleView(columns, Limits.of(recipe.data), data.objective.section)
            view.other = PlainText("line")
            reader = FileReader("--texts", file, view)
            rows += reader.items()
            say(unusual(reader.account()))
        self._shown = [one for one in (self._of_row(row, place) for place, row in rows) if one[0]]
        if len(self._shown) < len(rows):
            say([f"{counted(len(rows) - len(self._shown), 'row')} without a text left out"])
        if not self._shown:
            raise UserError("nothing to look at: name a TEXT, or a file of them by --texts FILE")

    def _of_row(self, row: dict | UserError, place: str) -> tuple[str, Any, Any]:
        """(title, texts that are read together or a Pillow image, what the model is asked; None: nothing)."""
        if isinstance(row, UserError):
            raise row
        row = {name: cell.rstrip("\r\n") if isinstance(cell, str) else cell for name, cell in row.items()}
        cells = [row[name] for name in self._columns if row.get(name) is not None]
        texts = [" ".join(map(str, cell)) if isinstance(cell, list) else str(cell) for cell in cells]
        try:
            asked = self.answers.asked(row, place)
        except (UserError, KeyError):
            if self.answers.tokenizer is None:
                raise
            asked = None
        texts = [asked] if isinstance(asked, str) else texts
        read = asked if self.answers.tokenizer is None else texts
        has_answer = not self.answers.objective.predicts_each_position and self.answers.head != "AutoModel"
        return " | ".join(filter(None, texts)), read, asked if has_answer else None

    def answered(self) -> tuple[Any, list[tuple[str, Any, str | None]]]:
        """The model, and (title, what it reads, its answer in words) of what it is shown.

        The answer is None where it is a vector, or the next token.
        """
        model = load(self._class, self.answers.recipe)
        if model.can_generate():
            model.generation_config.update(max_new_tokens=MOST_TOKENS, max_length=None, do_sample=False)
        asked, finished = [one for *_, one in self._shown if one is not None], FinishedModel("", lambda: model, BATCH)
        found = iter(self.answers.predict(finished, asked) if asked else [])
        return model, [(*read, None if one is None else in_words(next(found))) for *read, one in self._shown]


def class_of(name: str, config):
    """The class to load a saved model with: the one in its config; for an adapter the one it was trained with."""
    import anyformer

    trained_for = HEADS_OF_TASKS.get(task_of(name)) if is_adapter(name) else None
    class_name = trained_for or (config.architectures or ["AutoModel"])[0]
    return getattr(anyformer, class_name, None) or getattr(transformers, class_name, transformers.AutoModel)


def in_words(answer: dict[str, Any]) -> str:
    """An answer as a reader sees it: a class with its score, tags, entities, a number, a text."""
    said, score = answer["prediction"], answer.get("score")
    if isinstance(said, list):
        said = [f"{one['word']}: {one['entity_group']}" if isinstance(one, dict) else str(one) for one in said]
        return ", ".join(said) or "none"
    return f"{said:.4g}" if isinstance(said, float) else f"{said}{'' if score is None else f' ({score:.1%})'}"
