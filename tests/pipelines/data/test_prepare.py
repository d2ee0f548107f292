"""Laws of `anyformer prepare`: training finds what it made, and what it made is made once."""

import re

from anyformer.pipelines.data.encoded_stream import EncodedStream


def test_prepare_fills_the_cache_and_says_what_is_in_it(tiny_recipe, command, capsys, monkeypatch):
    recipe = tiny_recipe()
    assert command("prepare", recipe) == 0
    assert re.search(r"^train: [\d,]+ rows of .*^ready in ", capsys.readouterr().out, re.DOTALL | re.MULTILINE)
    monkeypatch.setattr(EncodedStream, "__iter__", None)
    assert command("prepare", recipe) == 0


def test_examples_are_tokenised_by_one_process(command, capsys):
    words = ["trec_classify", "data.files=rows.jsonl", "data.test_files=null", "data.num_proc=2"]
    assert command("prepare", *words) == 2
    assert "data.num_proc=2 has no effect with a task, only with plain text" in capsys.readouterr().err
