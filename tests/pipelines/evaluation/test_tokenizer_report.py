"""Laws of `anyformer tokenizer`: numbers as they are defined, one text for all, a sentence for each mistake."""

import json

import pytest
from anyformer.pipelines.evaluation.tokenizer_report import Sample, measure_tokenizer
from anyformer.pipelines.tokenizers import train

from anyformer_main import main

TEXT = "the fox and the dog\nthe fox, the dogs\n" * 20


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """type -> folder of a saved tokenizer."""
    from transformers import PreTrainedTokenizerFast

    found = {}
    for name, size in (("bpe_byte_fallback", 290), ("char", 0), ("wordpiece", 40)):
        plan = train.Plan(["<|unk|>"], size, size_was_asked=False)
        backend = train.TRAINERS[name](lambda: iter([TEXT]), plan)
        found[name] = tmp_path_factory.mktemp(name)
        PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<|unk|>").save_pretrained(found[name])
    return found


def command(capsys, *words) -> str:
    assert main(["tokenizer", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_the_numbers_are_those_of_the_definitions(folders):
    from transformers import AutoTokenizer

    texts = ["the fox é", "dog"]
    found = {
        name: measure_tokenizer(AutoTokenizer.from_pretrained(folder), Sample("", texts), name)
        for name, folder in folders.items()
    }
    char = found["char"]
    assert (char.tokens, char.vocab_size) == (12, len(set(TEXT)) + 1)
    assert (char.tokens_per_word, char.bytes_per_token) == (12 / 4, 13 / 12)
    assert char.unknown_rate == 1 / 12 and char.round_trip_failures == 1
    assert char.never_used == pytest.approx(1 - len(set("the fox dog")) / len(set(TEXT)))
    fallback = found["bpe_byte_fallback"]
    assert fallback.unknown_rate == 0 and fallback.round_trip_failures == 0 and fallback.tokens < 12
    assert found["wordpiece"].algorithm == "WordPiece" and found["wordpiece"].round_trip_failures == 1


def test_several_tokenizers_stand_beside_each_other_on_the_same_text(folders, tmp_path, capsys):
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in TEXT.splitlines()))
    one, other = folders["bpe_byte_fallback"], folders["char"]
    options = ["--on", tmp_path / "text.jsonl", "--text-field", "body"]
    printed = command(capsys, one, "--beside", other, *options)
    assert "40 texts, 180 words" in printed and "tokens per word" in printed
    result = json.loads(command(capsys, one, "--beside", other, *options, "--json"))
    assert [row["name"] for row in result["tokenizers"]] == [str(one), str(other)]
    assert result["text"]["words"] == 180 and result["tokenizers"][1]["tokens"] == len(TEXT) - 40
    first = command(capsys, one, *options, "--max-bytes", "50")
    assert "its first 50 bytes" in first


def test_the_tokens_of_a_text_are_shown(folders, capsys):
    printed = command(capsys, folders["bpe_byte_fallback"], "the foxж", "and a", "--beside", folders["char"])
    assert "<0xD0>|<0xB6>" in printed and "t|h|e|·|f|o|x|<" in printed
    assert "a|n|d|·|a\n" in printed and "TEXT: 2 texts, 4 words" in printed


def test_a_recipe_is_measured_on_its_validation_text_and_a_run_on_its_recipes(tiny_recipe, folders, tmp_path, capsys):
    path = tiny_recipe()
    printed = command(capsys, path, "tokenizer.vocab_size=300", "--beside", path)
    assert f"validation text of {path} tokenizer.vocab_size=300: " in printed and "512" in printed
    run = tmp_path / "run"
    run.mkdir()
    for file in (*folders["char"].iterdir(), path):
        (run / (file.name if file.suffix == ".json" else "recipe.yaml")).write_bytes(file.read_bytes())
    assert f"train text of {run}: " in command(capsys, run, "--split", "train")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["runs/nothing"], "'runs/nothing': no such recipe, and no such folder"),
        (["."], "'.' has no recipe beside it whose text is measured; add --on FILE, or a TEXT"),
        ([".", "text"], "'.': no tokenizer in this folder"),
        (["quickstart", "text", "--on", "x.txt"], "TEXT and --on FILE are two texts to measure on"),
        (["quickstart", "text", "--split", "train"], "--split train is of the recipe's own text; remove it, or TEXT"),
        (["quickstart", " "], "TEXT is empty; give some words"),
        (["quickstart", "--beside", "nothing/here/x"], "'nothing/here/x': no such recipe, and no such folder"),
        (["quickstart", "--beside", "mine/nothing"], "NAME=mine/nothing: no such folder"),
        (["fashion_mnist_vit", "data.files=x", "data.test_files=x"], "has no tokenizer: task.name=image_class"),
        (["quickstart", "--on", "nothing.txt"], "--on='nothing.txt': no such file"),
        (["quickstart", "--split", "test"], "--split test: quickstart has no such text; it has train and validation"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_mistakes_are_one_sentence(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "run").mkdir(parents=True)
    (tmp_path / "mine" / "run" / "run.json").write_text("{}")
    assert main(["tokenizer", *words]) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1
