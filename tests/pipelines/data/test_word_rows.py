"""Tables with a word in each row: the rows of a sentence become one example, whatever the form of its number."""

import csv

from anyformer.pipelines.data.cells import IfThere
from anyformer.pipelines.data.documents import Limits
from anyformer.pipelines.data.file_reader import FileReader
from anyformer.pipelines.data.reader import ExampleView
from anyformer.pipelines.prediction.unlabelled import Unlabelled
from hypothesis import given
from hypothesis import strategies as st

LIMITS = Limits(10**6, 10**6)
COLUMNS = {"tokens_field": "word", "sentence_field": "sentence", "tags_field": "tag"}
WORDS = st.lists(st.lists(st.sampled_from(["Anna", "sleeps", "in", "[Paris]", "1"]), min_size=1), min_size=1)


def table(folder, sentences, is_marked_once):
    path = folder / "words.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["sentence", "word", "tag"])
        for number, words in enumerate(sentences):
            for place, word in enumerate(words):
                rows.writerow(["" if place and is_marked_once else f"s{number}", word, f"{number}-{place}"])
    return path


@given(WORDS, st.booleans(), st.data())
def test_each_sentence_is_one_example_from_any_place(tmp_path_factory, sentences, is_marked_once, data):
    path = table(tmp_path_factory.mktemp("words"), sentences, is_marked_once)
    reader = FileReader("FILE", str(path), ExampleView(COLUMNS, LIMITS))
    read = list(reader.read_from())
    assert [row["word"] for _, (_, row), _ in read] == sentences
    assert [row["sentence"] for _, (_, row), _ in read] == [f"s{number}" for number in range(len(sentences))]
    tags = [[f"{number}-{place}" for place in range(len(words))] for number, words in enumerate(sentences)]
    assert [row["tag"] for _, row in reader.only("tag").items()] == tags
    start = data.draw(st.integers(0, len(read) - 1))
    assert list(reader.read_from(read[start][2])) == read[start + 1 :]
    asked = list(Unlabelled(str(path), sentences="sentence"))
    assert [(row["word"], row["file"]) for _, row in asked] == [(words, str(path)) for words in sentences]


def test_rows_without_the_column_stay_as_they_are(tmp_path):
    path = tmp_path / "lists.jsonl"
    path.write_text('{"word": ["Anna", "sleeps"]}\n{"word": ["so", "do", "we"]}\n')
    columns = {"tokens_field": "word", "sentence_field": IfThere("sentence")}
    rows = FileReader("FILE", str(path), ExampleView(columns, LIMITS)).items()
    assert [row["word"] for _, row in rows] == [["Anna", "sleeps"], ["so", "do", "we"]]
