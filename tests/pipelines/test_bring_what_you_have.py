"""docs/learning/instructions.md on what people bring: each row is of the form beside it, each setting is there."""

import json
import re
from pathlib import Path

import pytest
from anyformer.pipelines.objectives.chat_forms import FORMS, recognise
from anyformer.pipelines.objectives.instruction_tuning import InstructionTuningSettings
from anyformer.pipelines.objectives.preference import PreferenceSettings

ROOT = Path(__file__).resolve().parents[2]
INSTRUCTIONS = (ROOT / "docs" / "learning" / "instructions.md").read_text(encoding="utf-8")
FORM_ROWS = re.findall(r"^\| `(\w+)` \| [^|]+ \| `(\{.+\})` \|$", INSTRUCTIONS, re.M)
FORM_ROWS += [("openai", line) for line in re.findall(r"^```json\n(.*)\n```", INSTRUCTIONS, re.M)]


def test_there_is_an_example_row_of_each_form():
    assert [*dict(FORM_ROWS)] == [*FORMS]


@pytest.mark.parametrize("form, line", FORM_ROWS)
def test_each_example_row_is_of_its_form_with_no_setting(form, line):
    assert recognise([json.loads(line)] * 2).name == form


def test_the_settings_named_beside_those_of_other_trainers_exist():
    known = vars(InstructionTuningSettings()).keys() | vars(PreferenceSettings()).keys() | {"name"}
    table = INSTRUCTIONS[INSTRUCTIONS.index("| elsewhere |") :].split("\n\n")[0]
    named = re.findall(r"`task\.(\w+)", table)
    assert len(named) > 8 and set(named) <= known
