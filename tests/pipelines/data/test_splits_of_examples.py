"""Laws of the parts of labelled examples: disjoint, whole, the same ones each time, in shares, and groups never cut."""

from collections import Counter

import pytest
from anyformer.pipelines.data.examples import examples_fingerprint
from anyformer.pipelines.data.opening import open_examples
from anyformer.pipelines.data.splits import Split, planned_parts
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe, recipe_from_dict
from anyformer.pipelines.recipes.schema import DataSection
from anyformer.pipelines.training.checkpoints.same_run import resume_difference
from hypothesis import given
from hypothesis import strategies as st
from task_data import CHARACTERS, task_recipe, write_lines

COLUMNS = {"text_field": "text", "label_field": "label"}
rows_of = st.lists(st.tuples(st.sampled_from("aaaaaabbbc"), st.integers(0, 12)), min_size=1, max_size=150)
shares = st.fixed_dictionaries({"test": st.floats(0.01, 0.45), "validation": st.floats(0.01, 0.45)})


def reads(rows):
    return ((str(number), {"label": label, "who": who}) for number, (label, who) in enumerate(rows))


@given(rows_of, shares)
def test_each_part_has_its_share_of_every_class_to_within_one_row_and_the_same_rows_each_time(rows, fractions):
    plan = Split(fractions, classes="label")
    parts = planned_parts(plan, reads(rows), None)
    assert len(parts) == len(rows) and set(parts) <= {"train", "test", "validation"}
    assert parts == planned_parts(plan, reads(rows), None)
    of_classes, found = Counter(label for label, _ in rows), Counter(zip((label for label, _ in rows), parts))
    for label, number in of_classes.items():
        for part, fraction in fractions.items():
            assert abs(found[label, part] - fraction * number) <= 1
        assert found[label, "train"] >= 1
        assert number < 3 or all(found[label, part] for part in fractions)


@given(rows_of, shares, st.sampled_from([None, "label"]))
def test_a_group_is_in_one_part(rows, fractions, classes):
    parts = planned_parts(Split(fractions, classes=classes, groups="who"), reads(rows), None)
    where = {}
    for (_, who), part in zip(rows, parts):
        assert where.setdefault(who, part) == part


def written(tmp_path, labels):
    rows = [{"text": f"text {n}", "label": label, "who": n // 4} for n, label in enumerate(labels)]
    return str(write_lines(tmp_path / "rows.jsonl", rows))


def test_the_parts_of_a_source_are_disjoint_and_together_all_of_it(tmp_path):
    files, labels = written(tmp_path, "ab" * 50), Counter(zip("ab" * 50, range(100)))
    for more in ({}, {"stratify": False}, {"group_field": "who"}):
        data = DataSection(files=files, test_fraction=0.2, validation_fraction=0.1, **more)
        opened = open_examples(data, COLUMNS, classes="label")
        assert list(opened) == ["train", "validation", "test"]
        found = [row["text"] for examples in opened.values() for _, row in examples]
        assert sorted(found) == sorted(f"text {number}" for _, number in labels)
        assert len({examples_fingerprint(examples) for examples in opened.values()}) == 3
        if "group_field" in more:
            groups = [{row["who"] for _, row in examples} for examples in opened.values()]
            assert sum(map(len, groups)) == len(set.union(*groups)) == 25


def test_a_recipe_without_the_new_settings_holds_back_the_rows_that_it_always_did(tmp_path):
    files, rule = written(tmp_path, "aaab" * 50), Split({"validation": 0.1})
    opened = open_examples(DataSection(files=files, validation_fraction=0.1), COLUMNS, classes="label")
    held = [row["text"] for _, row in opened["validation"]]
    assert held == [f"text {number}" for number in range(200) if rule.part(number) == "validation"]
    identity = {"fraction": 0.1, "seed": 0, "by_name": False, "window": None, "moved": None, "cut": False}
    assert opened["validation"].identity()["rule"] == identity


def test_a_saved_recipe_without_the_settings_goes_on_and_one_with_other_parts_does_not(tmp_path):
    recipe = load_recipe(str(task_recipe(tmp_path, "sequence_classification", data={"test_files": None})))
    saved = recipe.to_dict()
    for name in ("test_fraction", "stratify", "group_field", "bad_rows"):
        del saved["data"][name]
    saved["data"] |= {"group_field": None}
    assert resume_difference(saved, recipe_from_dict(saved).to_dict()) is None
    for name, value in {"test_fraction": 0.1, "stratify": True, "group_field": "label"}.items():
        other = recipe_from_dict(saved, [f"data.{name}={value}"])
        assert resume_difference(saved, other.to_dict()).startswith(f"data.{name} is null there")


REFUSED = {
    "data.test_fraction=0.9 data.validation_fraction=0.2": "leave nothing for training",
    "data.stratify=true data.validation_fraction=0": "data.stratify has no effect where no fraction is held back",
    "data.group_field=wo data.test_fraction=0.1": r"data\.group_field='wo': no such column .*did you mean who\?",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_parts_that_cannot_be_are_refused(tmp_path, overrides):
    data = {"files": written(tmp_path, "ab" * 9), "test_files": None}
    recipe = str(task_recipe(tmp_path, "sequence_classification", data=data, evaluation={"every_steps": None}))
    with pytest.raises(UserError, match=REFUSED[overrides]):
        prepare_data(load_recipe(recipe, overrides.split()))
    with pytest.raises(UserError, match=r"test_fraction=0\.1 divides labelled examples or images"):
        load_recipe("quickstart", ["data.test_fraction=0.1"])
    with pytest.raises(UserError, match=r"data\.test_fraction has no effect with test data of its own"):
        load_recipe(recipe, ["data.test_fraction=0.1", f"data.test_files={tmp_path}/rows.jsonl"])


def test_classes_without_rows_and_rare_ones_are_said(tmp_path):
    labels = ["Billing"] * 60 + ["billing "] * 5 + ["shipping"] * 60 + ["shiping"] * 2 + ["grade_1"] * 30 + ["grade_2"]
    data = {"files": written(tmp_path, labels), "test_files": None, "validation_fraction": 0.06}
    recipe = load_recipe(str(task_recipe(tmp_path, "sequence_classification", data=data, tokenizer=CHARACTERS)))
    rows = prepare_data(recipe).rows
    train, validation = rows["train"].notes, rows["validation"].notes
    assert train[-1] == "rare: 'billing ' with 4, 'grade_2' with 1, 'shiping' with 2"
    assert validation[0].startswith("no row of the class 'grade_2', 'shiping', not measured here; data.stratify=true")
    stratified = recipe.with_(data={"stratify": True})
    assert prepare_data(stratified).rows["validation"].notes == ["no row of the class 'grade_2', not measured here"]
