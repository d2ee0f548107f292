"""Examples that are made of other data: true ones, the same in every run, none on both sides of a split."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from anyformer.pipelines.data import derived
from anyformer.pipelines.data.derived import (
    ASKED,
    ASKED_OTHERWISE,
    docstring_conversations,
    function_summaries,
    next_sentences,
    sentences_of,
)
from anyformer.pipelines.data.documents import Document
from anyformer.pipelines.data.opening import open_examples
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.publishing.run_facts import RunFacts
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.schema import DataSection
from task_data import CHARACTERS, functions, tales, task_recipe, write_lines

CHOICES = {"context_field": "context", "choices_field": "choices", "label_field": "label"}


def test_sentences_end_before_capitals_and_not_after_initials():
    text = 'Mr. A. Smith came (e.g. by car).<br /><br />He said: "Go!" She went… 3 of them stayed. and so on\nA line'
    assert sentences_of(text) == [
        "Mr. A. Smith came (e.g. by car).",
        'He said: "Go!"',
        "She went…",
        "3 of them stayed. and so on",
        "A line",
    ]
    assert sentences_of(" \n ") == []


def test_the_right_choice_is_the_next_sentence_and_the_others_are_of_other_texts(tmp_path, monkeypatch):
    path = tales(tmp_path / "tales.jsonl", 90)
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    monkeypatch.setattr(derived, "BLOCK", 20)  # four and a half: the half joins the last but one
    section = DataSection(files=str(path), validation_fraction=0.2, derive="next_sentence")
    splits = open_examples(section, CHOICES)
    found = {split: list(examples) for split, examples in splits.items()}
    assert found == {split: list(examples) for split, examples in open_examples(section, CHOICES).items()}
    contexts = {split: {row["context"] for _, row in rows} for split, rows in found.items()}
    assert contexts["train"] and contexts["validation"] and not contexts["train"] & contexts["validation"]
    labels = Counter()
    for place, row in found["train"]:
        labels[row["label"]] += 1
        own = [text for text in texts if row["context"] in text]
        right = row["choices"][row["label"]]
        assert len(set(row["choices"])) == 4 and any(f"{row['context']} {right}" in text for text in own)
        assert not any(wrong in text for wrong in row["choices"] if wrong != right for text in own), place
        assert all(abs(len(wrong) - len(right)) < 40 for wrong in row["choices"])
    assert set(labels) == {0, 1, 2, 3} and sum(labels.values()) >= 70  # of 12 sentences: one example or two
    documents = [Document(text, str(number)) for number, text in enumerate(texts)]
    unfit = Counter()
    assert list(next_sentences(documents[:1], unfit)) == []  # nothing to choose from
    assert list(unfit.values()) == [1]


def test_summaries_are_the_first_paragraph_of_docstrings_which_the_code_then_lacks():
    source = '''
class Store:
    def get(self, key):
        """Return the value of a key,
        or None.

        Further words.
        """
        return self._values.get(key)

    async def close(self): "Too short."

    def only(self):
        """Nothing but these few words."""

def get(self, key):
    r"""Return \\d of a key."""

    def inner():
        """Another one inside of it."""
        return key

    return inner
'''
    copies = [Document("no python here!", "a.txt"), Document(source, "b.py"), Document(source, "copy.py")]
    unfit = Counter()
    found = list(function_summaries(copies, unfit))
    assert unfit == {"no Python": 1}
    assert [(place, row["function"], row["summary"]) for place, row in found] == [
        ("b.py, line 3", "get", "Return the value of a key, or None."),
        ("b.py, line 16", "get", "Return \\d of a key."),
        ("b.py, line 19", "inner", "Another one inside of it."),
    ]
    assert found[0][1]["code"] == "def get(self, key):\n    return self._values.get(key)"
    assert "Another" in found[1][1]["code"] and found[2][1]["code"] == "def inner():\n    return key"
    pages = [Document(f"\x0c\n# two\u2028lines\n{source}".replace("\n", "\r\n"), "pages.py")]
    assert [row for _, row in function_summaries(pages, unfit)] == [row for _, row in found]


def test_kinds_of_names_are_what_the_tags_say(tmp_path):
    rows = [{"tokens": ["Anna", "saw", "Rom"], "tags": ["B-PER", "O", "B-LOC"]}]
    rows += [{"tokens": ["New", "York", "saw"], "tags": ["B-LOC", "I-LOC", "O"]}, {"tokens": ["so"], "tags": ["O"]}]
    columns = {"text_field": "tokens", "label_field": "tags"}
    files = str(write_lines(tmp_path / "a.jsonl", rows))
    section = DataSection(files=files, validation_fraction=0.0, derive="entity_kinds")
    found = [(row["tokens"], row["tags"]) for _, row in open_examples(section, columns)["train"]]
    assert found == [("Anna saw Rom", ["PER", "LOC"]), ("New York saw", ["LOC"]), ("so", [])]
    for words, sentence in (
        (["a", "b"], r"task\.label_field='tags': .*b\.jsonl, line 1 has 1 tags of 2 words"),
        ("a b", r"task\.text_field='tokens': .*b\.jsonl, line 1 holds str, not a list of words"),
    ):
        files = str(write_lines(tmp_path / "b.jsonl", [{"tokens": words, "tags": ["O"]}]))
        with pytest.raises(UserError, match=sentence):
            open_examples(replace(section, files=files), columns)


LISTED = {"context_field": "context", "question_field": None, "choices_field": "choices", "max_length": 96}
NO_TEST = {"validation_files": None, "test_files": None, "validation_fraction": 0.2}


def test_a_task_trains_on_what_is_derived_and_is_measured_alike_again(command, tmp_path, capsys):
    path = functions(tmp_path / "made.py")
    path.write_text(path.read_text() + "\n\nno python here!\n")
    data = {"files": str(path), "derive": "function_summary", "document": "paragraph"} | NO_TEST
    settings = {"source": "{code}", "target_field": "summary", "answers": "texts", "max_length": 96}
    sections = {"data": data, "task": settings, "tokenizer": CHARACTERS, "model": {"max_position_embeddings": 128}}
    sections["evaluation"] = {"every_steps": None, "metrics": ["exact_match"]}
    recipe = task_recipe(tmp_path, "text_to_text", training={"max_steps": 2}, **sections)
    assert command("train", recipe) == 0
    assert "no example was made of 1 document (no Python)" in capsys.readouterr().out
    run = next(tmp_path.glob("*/run.json")).parent
    assert command("evaluate", run, "--output", tmp_path / "result.json", "evaluation.bootstrap=0") == 0
    assert RunFacts.read(run).source_names == "local data (function_summary)"
    facts = json.loads((run / "run.json").read_text())["metrics"]
    found = json.loads((tmp_path / "result.json").read_text())["metrics"]
    assert {f"validation_{name}": value for name, value in found.items()} == pytest.approx(facts, rel=1e-4)


def test_what_cannot_be_derived_is_one_sentence(tiny_recipe, tmp_path, text_file):
    def refused(path, *overrides):
        with pytest.raises(UserError) as caught:
            prepare_data(load_recipe(str(path), overrides))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    text = tiny_recipe()
    assert refused(text, "data.derive=next_sentence").startswith(
        "data.derive=next_sentence makes examples of a task, and objective.name=causal learns from the data as they are"
    )
    assert "did you mean next_sentence?" in refused(text, "data.derive=next_sentense")
    data = {"files": str(text_file)} | NO_TEST
    section = {"tokenizer": CHARACTERS, "evaluation": {"every_steps": None}, "data": data}
    section["model"] = {"max_position_embeddings": 96}
    choice = task_recipe(tmp_path, "multiple_choice", task=LISTED, **section)
    assert refused(choice, "data.derive=next_sentence", "task.context_field=text").startswith(
        "task.context_field='text': no such column in what data.derive=next_sentence makes"
    )
    assert refused(choice, "data.derive=entity_kinds").startswith(
        "data.derive=entity_kinds makes the columns that task.text_field and task.label_field name, and this task "
        "reads those of task.context_field"
    )
    short = write_lines(tmp_path / "short.jsonl", [{"text": "One. Two."}] * 20)
    sentence = refused(choice, "data.derive=next_sentence", f"data.files={short}")
    assert sentence.startswith("data.derive=next_sentence: no example for train can be made of short.jsonl")
    assert "data.document has no effect with a task" in refused(choice, "data.document=line")
    streamed = refused(choice, "data.derive=next_sentence", "data.files=null", "data.dataset=d", "data.streaming=true")
    assert streamed == "data.derive=next_sentence reads stored data; set data.streaming=false"


MODULE = '''
"""What the module is."""

def join(a, *p):
    """Join two paths. And more.

    Further words.
    """

class Store:
    """Keeps values by their keys."""

    def get(self): "Not asked about."

def _own(): "A private function of it."

def short(): "Too short."
'''


def test_questions_about_docstrings_are_validated_in_words_that_training_never_has(tmp_path):
    (tmp_path / "posixpath.py").write_text(MODULE)
    section = DataSection(files=str(tmp_path / "*.py"), validation_fraction=0.9, derive="docstring_questions")
    columns = {"prompt_field": "instruction", "answer_field": "output"}
    splits = {split: [row for _, row in examples] for split, examples in open_examples(section, columns).items()}
    answers = {"os.path.join": "Join two paths.", "os.path.Store": "Keeps values by their keys."}
    assert len(splits["train"]) == 2 * len(ASKED)
    for rows, wordings in ((splits["train"], ASKED), (splits["validation"], ASKED_OTHERWISE)):
        asked = {wording.format(name=name): answer for wording in wordings for name, answer in answers.items()}
        assert rows and all(asked[row["instruction"]] == row["output"] for row in rows)
    assert not set(ASKED) & set(ASKED_OTHERWISE)
    assert list(open_examples(replace(section, validation_fraction=0.0), columns)) == ["train"]


@pytest.mark.parametrize(
    "derive, columns",
    [
        ("docstring_questions", {"prompt_field": "instruction", "answer_field": "output"}),
        ("docstring_conversations", {"messages_field": "messages"}),
    ],
)
def test_made_examples_lack_the_columns_that_may_be_missing(tmp_path, derive, columns):
    (tmp_path / "posixpath.py").write_text(MODULE)
    data = {"files": str(tmp_path / "*.py"), "derive": derive} | NO_TEST | {"validation_fraction": 0}
    sections = {"data": data, "task": columns | {"max_length": 96}, "tokenizer": CHARACTERS}
    recipe = task_recipe(tmp_path, "instruction_tuning", model={"max_position_embeddings": 128}, **sections)
    assert len(prepare_data(load_recipe(str(recipe))).rows["train"])


def test_conversations_about_docstrings_alternate_and_end_with_an_answer():
    written = {"json/__init__.py": MODULE, "a.txt": "no python here!", "_own.py": MODULE}
    documents, unfit = [Document(text, name) for name, text in written.items()], Counter()
    found = [row["messages"] for _, row in docstring_conversations(documents, unfit)]
    assert unfit == {"no Python": 1} and len(found) == 2
    for messages in found:
        assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2)
    said = [message["content"] for message in found[0]]
    assert said[2:8] == [
        *("What does json.join do?", "Join two paths."),
        *("What are its arguments?", "It takes a, *p.", "Which module is it in?", "It is in json."),
    ]
    assert [message["content"] for message in found[1]][4:6] == ["And json.join?", "Join two paths."]
