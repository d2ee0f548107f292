"""docs/learning/instructions.md and docs/errors.md on what people bring: every row is read, every error said."""

import json
import re
from pathlib import Path

import pytest
import yaml
from anyformer.pipelines.objectives.chat_forms import FORMS
from anyformer.pipelines.objectives.instruction_tuning import InstructionTuningSettings
from anyformer.pipelines.objectives.preference import PreferenceSettings
from task_data import on_rows, write_lines

ROOT = Path(__file__).resolve().parents[2]
INSTRUCTIONS = (ROOT / "docs" / "learning" / "instructions.md").read_text(encoding="utf-8")
ERRORS = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
FORM_ROWS = re.findall(r"^\| `(\w+)` \| [^|]+ \| `(\{.+\})` \|$", INSTRUCTIONS, re.M)
FORM_ROWS += [("openai", line) for line in re.findall(r"^```json\n(.*)\n```", INSTRUCTIONS, re.M)]
DECODER = {"family": "decoder", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
ENCODER = DECODER | {"family": "encoder"}


@pytest.fixture
def previewed(tmp_path, command, capsys):
    """Preview rows -> what was printed on one line. A file that is there is read as it is."""

    def run(rows, task, exit_code=0, model=DECODER, **sections):
        whole = on_rows(tmp_path, rows, **task) | {"model": model, "training": {"output_dir": str(tmp_path / "run")}}
        if "name_or_path" in model:
            del whole["tokenizer"]
        for name, section in sections.items():
            whole[name] = whole.get(name, {}) | section
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(whole))
        capsys.readouterr()
        assert command("preview", tmp_path / "recipe.yaml", "--rows", "1") == exit_code
        said = capsys.readouterr()
        return " ".join((said.out + said.err).split())

    return run


def test_there_is_an_example_row_of_each_form():
    assert [*dict(FORM_ROWS)] == [*FORMS]


@pytest.mark.parametrize("form, line", FORM_ROWS)
def test_each_example_row_is_read_in_its_form_with_no_setting(form, line, previewed, tmp_path, command):
    with_calls = {"chat_template": "chatml_tools", "special_tokens": ["<|im_start|>", "<|im_end|>"]}
    tokenizer = with_calls if "tool_calls" in line else {}
    rows = [json.loads(line)] * 2
    task = {"name": "preference" if form == "preference" else "instruction_tuning"}
    model = DECODER
    if form == "preference":
        chats = write_lines(tmp_path / "chats.jsonl", [{"prompt": line, "completion": "."}] * 2)  # all its characters
        previewed(chats, {"name": "instruction_tuning", "max_length": 1024})
        assert command("train", tmp_path / "recipe.yaml", "training.max_steps=1") == 0
        model = {"name_or_path": str(tmp_path / "run")}
    printed = previewed(rows, task, model=model, tokenizer=tokenizer)
    assert form == "alpaca" or f"task.format={form}" in printed
    assert "2 conversations" in printed or "2 pairs" in printed


def test_the_settings_named_beside_those_of_other_trainers_exist():
    known = vars(InstructionTuningSettings()).keys() | vars(PreferenceSettings()).keys() | {"name"}
    table = INSTRUCTIONS[INSTRUCTIONS.index("| elsewhere |") :].split("\n\n")[0]
    named = re.findall(r"`task\.(\w+)", table)
    assert len(named) > 8 and set(named) <= known


# ---- errors

TEXT = {"name": "sequence_classification", "max_length": 32}
NUMBERS = {"name": "sequence_regression", "max_length": 32}
CHAT = {"name": "instruction_tuning", "max_length": 64}
TABLE = "text;label\nIt rains;wet\nIt shines;dry\n"
ASKED = {"messages": [{"role": "user", "content": "Is it raining?"}, {"role": "assistant", "content": "No."}]}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]}
CALLED = {"messages": [*ASKED["messages"][:1], CALL]}
SAID = [
    ("no such column in", TABLE, TEXT | {"text_field": "txt"}, {}),
    ("no row can be used: try", "text\tlabel\nIt rains\n", TEXT, {"data": {"separator": "semicolon"}}),
    ("has no such sheet", "", TEXT, {"data": {"sheet": "March"}}),
    ("; set task.decimal_mark", "text;label\na;1,234\nb;2,345\n", NUMBERS, {}),
    ("task.label_map: no label is", TABLE, TEXT | {"label_map": {"Wet": "rain"}}, {}),
    ("; likely is", [{"ask": "Is it raining?", "reply": "No."}], CHAT, {}),
    (", which alone is learned", [{"messages": ASKED["messages"][:1]}], CHAT, {}),
    ("does not write", [CALLED], CHAT, {}),
    ("leaves room for an answer; set it higher", [ASKED], CHAT | {"max_length": 8}, {}),
    ("marks each answer as one not to be learned", [ASKED], CHAT, {}),
]


def section(heading: str) -> str:
    return ERRORS.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_ten_errors_of_tables_and_chats_are_explained():
    assert re.findall(r"^> (.+)$", section("Tables and chats"), re.M) == [quote for quote, *_ in SAID]


@pytest.mark.parametrize("quote, rows, task, sections", SAID, ids=[quote for quote, *_ in SAID])
def test_each_error_of_tables_and_chats_is_printed(quote, rows, task, sections, previewed, tmp_path):
    if isinstance(rows, str):
        (tmp_path / "table.csv").write_text(rows)
        rows = tmp_path / "table.csv"
    if quote == "has no such sheet":
        openpyxl = pytest.importorskip("openpyxl")
        rows = tmp_path / "table.xlsx"
        openpyxl.Workbook().save(rows)
    if quote.startswith("marks"):
        rows = [{"messages": [message | {"weight": 0} for message in ASKED["messages"]]}]
    is_chat = task["name"] == "instruction_tuning"
    assert quote in previewed(rows, task, exit_code=2, model=DECODER if is_chat else ENCODER, **sections)
