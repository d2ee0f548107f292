"""`anyformer predict`: the answers of transformers' pipelines for every head, in order, beside the rows' columns."""

import gzip
import json
import os
import signal
import sys
import time
from itertools import product

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
import transformers
from accelerate import PartialState
from anyformer.pipelines import plugins
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.plugins import load_plugins
from anyformer.pipelines.prediction.answer_files import AnswerFile
from anyformer.pipelines.prediction.predict import Prediction, prepare_prediction, run_prediction
from family_variants import a_share
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from processes import Process, run_ranks
from safetensors.torch import load_file, save_file
from task_data import task_recipe, write_lines
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast, pipeline

import anyformer

WORDS = ["the", "film", "was", "good", "bad", "and", "story", "anna", "rome", "paris", "in", "who", "what", "lives"]
WORDS += ["very", "long", "scene", "about", "two", "a", "b", "c", "d"]
VOCABULARY = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
SIZES = {"vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 32, "initializer_range": 0.5}  # answers that differ
GPT2 = {"vocab_size": len(VOCABULARY), "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
GPT2 |= {"initializer_range": 0.5, "bos_token_id": 2, "eos_token_id": 3}
T5 = {"vocab_size": len(VOCABULARY), "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
T5 |= {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0, "initializer_factor": 5.0}
VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
VIT |= {"image_size": 8, "patch_size": 4, "initializer_range": 0.5}
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
PADDED = 1e-5  # fp32 sums in another order, where a text stands in a batch beside longer ones
TEXTS = ["the film was good", "a very long scene about two and a story in rome was bad", "anna", "who lives in paris"]
ONCE: dict = {}  # a model that examples of hypothesis share
CHAT = "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}a {% endif %}"


def named(names: list[str]) -> dict:
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}


def saved(folder, architecture: str, chat_template: str | None = None, **fields):
    """A tiny native model with random weights, and its tokenizer or image processor."""
    torch.manual_seed(0)
    cls = getattr(transformers, architecture)
    sizes = {"Bert": SIZES, "GPT2": GPT2, "T5Fo": T5, "ViTF": VIT, "ViTM": VIT}[architecture[:4]]
    cls(cls.config_class(**sizes | fields)).eval().save_pretrained(folder)
    if architecture.startswith("ViT"):
        kind = getattr(transformers, "ViTImageProcessorPil", transformers.ViTImageProcessor)
        kind(size={"height": 8, "width": 8}).save_pretrained(folder)
        return folder
    backend = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "[UNK]", "eos_token": "[SEP]"}
    if not architecture.startswith("GPT2"):
        pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
        ids = [("[CLS]", 2), ("[SEP]", 3)]
        backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=ids)
        special |= {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=32, **special)
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    return folder


def rows_of(texts: list[str]) -> list[dict]:
    return [{"text": text} for text in texts]


def answers_in(out) -> list[dict]:
    """The rows of a file of answers."""
    if out.suffix == ".jsonl":
        return [json.loads(line) for line in out.read_text().splitlines()]
    return (pyarrow.csv.read_csv if out.suffix == ".csv" else pyarrow.parquet.read_table)(out).to_pylist()


def pipe(task: str, folder, **options):
    return pipeline(task, str(folder), trust_remote_code=False, **options)


@pytest.fixture
def classes(tmp_path):
    return saved(tmp_path / "model", "BertForSequenceClassification", **named(["bad", "fair", "good"]))


@pytest.mark.parametrize("pair", [None, "anna was good"])
def test_classes_of_texts_and_pairs_are_those_of_the_pipeline(pair, classes):
    asked = [{"text": text} | ({} if pair is None else {"text_pair": pair}) for text in TEXTS]
    expected = pipe("text-classification", classes, top_k=None)(asked)
    for answer, right in zip(anyformer.predict(classes, asked), expected):
        assert answer["prediction"] == right[0]["label"]
        assert answer["score"] == pytest.approx(right[0]["score"], abs=PADDED)
        assert answer["scores"] == pytest.approx({each["label"]: each["score"] for each in right}, abs=PADDED)


def test_several_classes_are_those_that_the_pipeline_is_surer_of_than_not(tmp_path):
    kind = {"num_labels": 3, "problem_type": "multi_label_classification"}
    folder = saved(tmp_path / "model", "BertForSequenceClassification", **kind)
    right = pipe("text-classification", folder, top_k=None)(TEXTS)
    for answer, scores in zip(anyformer.predict(folder, rows_of(TEXTS)), right):
        assert answer["prediction"] == [each["label"] for each in scores if each["score"] >= 0.5]


def test_a_number_is_that_of_the_pipeline(tmp_path):
    folder = saved(tmp_path / "model", "BertForSequenceClassification", num_labels=1, problem_type="regression")
    right = [each["score"] for each in pipe("text-classification", folder)(TEXTS)]
    answers = anyformer.predict(folder, rows_of(TEXTS))
    assert [each["prediction"] for each in answers] == pytest.approx(right, abs=PADDED)


def test_entities_of_texts_and_tags_of_words_are_those_of_the_pipeline(tmp_path):
    folder = saved(tmp_path / "model", "BertForTokenClassification", **named(TAGS))
    mixed = [{"text": text if number % 2 else text.split()} for number, text in enumerate(TEXTS)]
    entities = pipe("token-classification", folder, aggregation_strategy="first")(TEXTS)
    tokens = pipe("token-classification", folder, ignore_labels=[])(TEXTS)
    for number, answer in enumerate(anyformer.predict(folder, mixed)):
        if number % 2:
            given, right = ([{**each, "score": None} for each in of] for of in (answer["prediction"], entities[number]))
            assert given == right
        else:  # each word is a token
            assert answer["prediction"] == [each["entity"] for each in tokens[number]]
            assert answer["scores"] == pytest.approx([each["score"] for each in tokens[number]], abs=PADDED)


def test_a_word_beyond_what_the_model_reads_has_no_tag(tmp_path, capsys):
    folder = saved(tmp_path / "model", "BertForTokenClassification", **named(TAGS))
    (answer,) = anyformer.predict(folder, [{"tokens": ["film"] * 40}])
    assert len(answer["prediction"]) == 40 and answer["prediction"][30:] == [None] * 10  # 32 with [CLS] and [SEP]
    assert "1 text cut to what the model reads at once" in capsys.readouterr().err


@pytest.mark.parametrize(
    "architecture", a_share(["BertForMultipleChoice", "BertModel", "T5ForConditionalGeneration"], 3)
)
def test_a_text_that_just_fits_is_not_counted_as_cut(architecture, tmp_path, capsys):
    folder = saved(tmp_path / "model", architecture)
    rows = [{"text": " ".join(["film"] * words)} for words in (30, 31)]  # + 2, of 32
    if architecture.endswith("Choice"):  # as many with "was" and the longer choice, and 3 special ones
        rows = [{"context": row["text"][20:], "question": "was", "choices": ["a", "a b"]} for row in rows]
    anyformer.predict(folder, rows)
    assert "1 text cut to what the model reads at once" in capsys.readouterr().err


def test_an_answer_is_the_span_with_the_highest_score_and_stands_where_it_says(tmp_path):
    folder = saved(tmp_path / "model", "BertForQuestionAnswering")
    model = transformers.BertForQuestionAnswering.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    contexts = [text for text in TEXTS if len(text.split()) > 3]
    answers = anyformer.predict(folder, [{"question": "who lives", "context": context} for context in contexts])
    for context, answer in zip(contexts, answers):
        inputs = tokenizer("who lives", context, return_tensors="pt", return_offsets_mapping=True)
        offsets, places = inputs.pop("offset_mapping")[0].tolist(), inputs.sequence_ids(0)
        with torch.no_grad():
            output = model(**inputs)
        start, end, inside = output.start_logits[0], output.end_logits[0], [i for i, n in enumerate(places) if n == 1]
        best = max(((i, j) for i in inside for j in inside if i <= j), key=lambda span: start[span[0]] + end[span[1]])
        assert answer["prediction"] == context[offsets[best[0]][0] : offsets[best[1]][1]]
        assert context[answer["start"] :].startswith(answer["prediction"]) and 0 < answer["score"] <= 1


def test_a_choice_is_that_of_the_model_for_rows_with_any_number_of_choices(tmp_path):
    folder = saved(tmp_path / "model", "BertForMultipleChoice")
    model, tokenizer = transformers.BertForMultipleChoice.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    choices = [["good", "a very long scene"], ["bad", "good", "two"], ["anna", "in rome"]]
    asked = [{"context": "the film", "question": "was", "choices": each} for each in choices]
    for each, answer in zip(choices, anyformer.predict(folder, asked)):
        inputs = tokenizer(["the film"] * len(each), [f"was {one}" for one in each], return_tensors="pt", padding=True)
        with torch.no_grad():
            right = model(**{name: x[None] for name, x in inputs.items()}).logits[0].softmax(-1)
        assert answer["prediction"] == int(right.argmax())
        assert answer["scores"] == pytest.approx(right.tolist(), abs=PADDED)


def test_masked_words_are_those_of_the_pipeline(tmp_path):
    folder = saved(tmp_path / "model", "BertForMaskedLM")
    texts = ["the [MASK] was good", "[MASK] lives in [MASK] and a long story", "who [MASK]"]
    fill = pipe("fill-mask", folder)
    for text, answer in zip(texts, anyformer.predict(folder, rows_of(texts))):
        right = fill(text) if text.count("[MASK]") > 1 else [fill(text)]
        assert answer["prediction"] == [words[0]["token_str"] for words in right]
        given = [each["score"] for words in answer["scores"] for each in words]
        assert given == pytest.approx([each["score"] for words in right for each in words], abs=PADDED)


@pytest.mark.parametrize("template", [None, CHAT])
def test_continuations_and_answers_in_chats_are_those_of_the_pipeline(template, tmp_path):
    folder = saved(tmp_path / "model", "GPT2LMHeadModel", chat_template=template)
    write = pipe("text-generation", folder)
    chats = [[{"role": "user", "content": text}] for text in TEXTS]
    how = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    right = [write(each, **how)[0]["generated_text"] for each in (TEXTS if template is None else chats)]
    answers = anyformer.predict(folder, rows_of(TEXTS), max_new_tokens=12)
    assert [each["prediction"] for each in answers] == right and len(set(right)) > 1
    if template is not None:
        given = [{"messages": [*chat, {"role": "assistant", "content": "left out"}]} for chat in chats]
        assert [each["prediction"] for each in anyformer.predict(folder, given, max_new_tokens=12)] == right


def test_a_long_prompt_takes_no_room_from_others(tmp_path):
    folder = saved(tmp_path / "model", "GPT2LMHeadModel")
    long = " ".join(["film"] * 30)  # of 32 positions
    asked = (["anna"], ["anna", long])
    alone, beside = (anyformer.predict(folder, rows_of(texts), max_new_tokens=12) for texts in asked)
    assert beside[0] == alone[0] and len(beside[1]["prediction"].split()) <= 2


def test_texts_of_an_encoder_decoder_are_those_it_generates_for_each_alone(tmp_path):
    folder = saved(tmp_path / "model", "T5ForConditionalGeneration")
    model, tokenizer = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    answers = anyformer.predict(folder, rows_of(TEXTS), max_new_tokens=8)
    for text, answer in zip(TEXTS, answers):
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        (ids,) = model.generate(**inputs, max_new_tokens=8, do_sample=False)
        assert answer["prediction"] == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.fixture
def pictures(tmp_path):
    """A folder of image files."""
    draw = np.random.default_rng(0)
    for number in range(5):
        pixels = draw.integers(0, 255, (8 + number, 9, 3), dtype=np.uint8)
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path / "pictures"


@pytest.mark.parametrize("transparent", [0, 2])
def test_images_with_transparency_are_counted(tmp_path, pictures, capsys, transparent):
    for path in sorted(pictures.rglob("*.png"))[:transparent]:
        Image.new("RGBA", (8, 8)).save(path)
    anyformer.predict(saved(tmp_path / "model", "ViTForImageClassification", **named(["cat", "dog"])), pictures)
    assert ("2 images with transparency put on white" in capsys.readouterr().err) == bool(transparent)


def test_classes_of_images_in_a_folder_are_those_of_the_pipeline_under_their_files_names(tmp_path, pictures):
    folder = saved(tmp_path / "model", "ViTForImageClassification", **named(["cat", "dog", "cow"]))
    answers = anyformer.predict(folder, pictures)
    files = sorted(str(path) for path in pictures.rglob("*.png"))
    assert [each["file"] for each in answers] == files and all("image" not in each for each in answers)
    for answer, right in zip(answers, pipe("image-classification", folder)(files)):
        assert answer["prediction"] == right[0]["label"]
        assert answer["scores"] == pytest.approx({each["label"]: each["score"] for each in right}, abs=PADDED)


@pytest.mark.parametrize(
    "architecture, task", [("BertModel", "feature-extraction"), ("ViTModel", "image-feature-extraction")]
)
def test_a_backbone_gives_the_mean_of_the_pipelines_vectors(architecture, task, tmp_path, pictures):
    folder = saved(tmp_path / "model", architecture)
    given = rows_of(TEXTS) if architecture == "BertModel" else pictures
    asked = TEXTS if architecture == "BertModel" else sorted(str(path) for path in pictures.rglob("*.png"))
    for answer, right in zip(anyformer.predict(folder, given), pipe(task, folder)(asked)):
        assert answer["prediction"] == pytest.approx(np.mean(right[0], axis=0), abs=PADDED)


def test_two_texts_have_the_cosine_of_their_vectors(tmp_path):
    folder = saved(tmp_path / "model", "BertModel")
    first, second = (np.array(each["prediction"]) for each in anyformer.predict(folder, rows_of(TEXTS[:2])))
    (answer,) = anyformer.predict(folder, [{"text": TEXTS[0], "text_pair": TEXTS[1]}])
    right = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert answer["prediction"] == pytest.approx(right, abs=PADDED)


def test_the_recipe_beside_a_model_says_what_is_read_and_answered(tmp_path):
    kind = {"num_labels": 3, "problem_type": "multi_label_classification"}
    folder = saved(tmp_path / "model", "BertForSequenceClassification", **kind)
    (folder / "recipe.yaml").write_text(
        "model: {family: encoder}\ntokenizer: {type: wordpiece, vocab_size: 100}\ndata: {files: gone.jsonl}\n"
        "task: {name: multi_label_classification, text_field: body, threshold: 0.9}\ntraining: {output_dir: gone}\n"
    )
    (answer,) = anyformer.predict(folder, [{"body": TEXTS[0]}])
    assert answer["prediction"] == [name for name, score in answer["scores"].items() if score >= 0.9]
    assert anyformer.predict(folder, [{"title": TEXTS[0]}], read={"body": "title"})[0]["scores"] == answer["scores"]


# ------------------------------------------------------------------------------------------------------ files


def tables(folder) -> list:
    """Three rows each as CSV, TSV, compressed JSON lines and Parquet, and a text."""
    lines = [{"id": number, "text": text, "day": "1"} for number, text in enumerate(TEXTS[:3])]
    for name, sign in (("a.csv", ","), ("b.tsv", "\t")):
        text = "\n".join(sign.join(map(str, row.values())) for row in lines)
        (folder / name).write_text(f"{sign.join(lines[0])}\n{text}\n")
    with gzip.open(folder / "c.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in lines)
    rows = [row | {"photo": b"bytes", "a.b": "own"} for row in lines]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "d.parquet")
    (folder / "of [1]").mkdir()
    (folder / "of [1]" / "e.txt").write_text(TEXTS[1])
    return [folder / name for name in ("a.csv", "b.tsv", "c.jsonl.gz", "d.parquet", "of [1]")]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_all_formats_are_read_and_written_in_order_with_columns_and_file_names(suffix, classes, tmp_path, command):
    files, out = tables(tmp_path), tmp_path / f"out.{suffix}"
    assert command("predict", classes, *files, "--out", out, "--batch-size", 1) == 0
    found = answers_in(out)
    assert [row["file"] for row in found] == [*(str(path) for path in files[:4] for _ in range(3)), f"{files[4]}/e.txt"]
    assert [row["text"] for row in found] == TEXTS[:3] * 4 + TEXTS[1:2]
    assert [str(row["id"]) for row in found[:12]] == list("012" * 4) and "photo" not in found[9]
    assert [row.get("a.b") for row in found[8:12]] == [found[8].get("a.b"), "own", "own", "own"]
    assert [row["prediction"] for row in found[:3]] * 4 == [row["prediction"] for row in found[:12]]
    assert not list(tmp_path.glob(".*"))


def test_what_parquet_cannot_hold_is_written_as_text(tmp_path):
    rows = [{"id": 12345678901234567890, "meta": {}, "of": [{"a": {}}], "n": 1}, {"id": 5, "meta": {}, "n": 2}]
    file = AnswerFile(tmp_path / "out.parquet")
    file.begin("a key")
    for number, row in enumerate(rows):
        file.add(number, [row])
    file.join(2)
    first, second = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert first == {"id": "12345678901234567890", "meta": "{}", "of": '[{"a": {}}]', "n": 1}
    assert second == {"id": "5", "meta": "{}", "of": None, "n": 2}


def many_rows(folder) -> list[dict]:
    return rows_of([f"{TEXTS[number % 4]} {WORDS[number % 20]}" for number in range(200)])


EMPTY_ROW = "empty in what the model reads"
EMPTY = {
    "BertForSequenceClassification": [{"text": ""}, {"text": None}, {"text": " \n"}, {"text": np.float32("nan")}],
    "BertForTokenClassification": [{"text": ""}, {"text": []}, {"text": None}],
    "BertForQuestionAnswering": [{"question": "who", "context": ""}, {"question": None, "context": "anna"}],
    "BertForMultipleChoice": [
        {"context": "", "question": "", "choices": ["a", "b"]},
        {"context": "anna", "question": "", "choices": ["a", ""]},
    ],
    "BertForMaskedLM": [{"text": ""}, {"text": None}],
    "GPT2LMHeadModel": [{"text": ""}, {"text": None}],
    "T5ForConditionalGeneration": [{"text": ""}, {"text": None}],
    "BertModel": [{"text": ""}, {"text": None}],
    "ViTForImageClassification": [{"image": ""}, {"image": None}, {"image": {"bytes": None, "path": None}}],
}
FILLED = {
    "BertForQuestionAnswering": [{"question": "who lives", "context": text} for text in TEXTS],
    "BertForMultipleChoice": [{"context": text, "question": "", "choices": ["good", "bad"]} for text in TEXTS],
    "BertForMaskedLM": [{"text": f"the [MASK] {text}"} for text in TEXTS],
}


@pytest.mark.parametrize("architecture", EMPTY)
def test_an_empty_row_gets_an_empty_answer_and_is_counted(architecture, tmp_path, pictures, capsys):
    folder, filled = saved(tmp_path / "model", architecture), FILLED.get(architecture, rows_of(TEXTS))
    if "ViT" in architecture:
        filled = [{"image": str(path)} for path in sorted(pictures.rglob("*.png"))[:4]]
    how = {"batch_size": 1, "max_new_tokens": 4}  # without padding
    alone, empty = anyformer.predict(folder, filled, **how), EMPTY[architecture]
    assert "empty" not in capsys.readouterr().err
    mixed = [*filled[:1], *empty, *filled[1:]]
    answers = anyformer.predict(folder, mixed, **how)
    assert [answers[0], *answers[1 + len(empty) :]] == alone and len(answers) == len(mixed)
    assert [answer["prediction"] for answer in answers[1 : 1 + len(empty)]] == [None] * len(empty)
    assert {answer["reason"] for answer in answers[1 : 1 + len(empty)]} == {EMPTY_ROW}
    assert f"{len(empty)} rows have no prediction" in (said := capsys.readouterr().err)
    assert f": {len(empty)} {EMPTY_ROW}" in said


def test_a_table_is_read_in_the_encoding_of_the_training_unless_it_tells_another(classes, tmp_path, capsys):
    (classes / "recipe.yaml").write_text(
        "model: {family: encoder}\ntokenizer: {type: wordpiece, vocab_size: 100}\n"
        "data: {files: gone.csv, encoding: cp1251}\ntraining: {output_dir: gone}\n"
        "task: {name: sequence_classification, text_field: 'a text, of a film'}\n"
    )
    for name, encoding in (("a.tsv", "cp1251"), ("b.tsv", "utf-8"), ("c.tsv", "utf-16"), ("d.tsv", "ascii")):
        text = "good" if encoding == "ascii" else "хороший фильм"
        (tmp_path / name).write_bytes(f"a text, of a film\n{text}\n".encode(encoding))
        (answer,) = anyformer.predict(classes, tmp_path / name)
        assert answer["a text, of a film"] == text
        assert (f"read as {encoding}, not UTF-8: {name}" in capsys.readouterr().err) == (encoding == "utf-16")


@pytest.mark.slow
def test_a_killed_prediction_goes_on_from_its_parts(classes, tmp_path, capsys):
    rows, out, whole = many_rows(tmp_path), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    anyformer.predict(classes, rows, out=whole, batch_size=1)
    process = Process(lambda: anyformer.predict(classes, rows, out=out, batch_size=1) and 0, output=tmp_path / "log")
    process.wait_until(lambda: len(list(tmp_path.glob(".out.jsonl.*.parts/*.json"))) > 2)
    process.kill(signal.SIGKILL)
    there = {path: path.stat().st_mtime_ns for path in tmp_path.glob(".out.jsonl.*.parts/0*.json")}
    assert there and not out.exists()
    capsys.readouterr()
    assert anyformer.predict(classes, rows, out=out, batch_size=1) == out
    assert f"going on: {len(there)} of 13 parts are there" in capsys.readouterr().err
    assert out.read_bytes() == whole.read_bytes()


def stopped(monkeypatch, *arguments, **how) -> None:
    """A prediction that ends when all of its parts are there, but not yet joined."""
    with monkeypatch.context() as patch:
        patch.setattr(AnswerFile, "join", lambda *_: sys.exit("stopped"))
        with pytest.raises(SystemExit):
            anyformer.predict(*arguments, **how)


def with_other_weights(folder) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: -tensor for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})


def adapter(folder, base):
    peft = pytest.importorskip("peft")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], task_type="SEQ_CLS")).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    (folder / "adapted_config.json").write_text((base / "config.json").read_text())
    return folder


def touched(classes, model, file):
    """What may change between a stopped prediction and the same command."""

    def edit(path, before, after):
        path.write_text(path.read_text().replace(before, after))
        return {}

    return {
        "nothing": lambda: [os.utime(path, (1, 1)) for path in classes.iterdir()] and {},
        "results": lambda: [(classes / name).write_text("{}") for name in ("evaluation-a.json", "run.json")] and {},
        "weights of the base": lambda: with_other_weights(classes) or {},
        "names": lambda: edit(model / "adapted_config.json", "fair", "fine"),
        "tokenizer": lambda: edit(model / "tokenizer.json", '"film": ', '"flim": '),
        "rows": lambda: edit(file, "film", "story"),
        "setting": lambda: {"batch_size": 2},
        "plug-in": lambda: load_plugins([str(write_lines(file.with_name("a_plugin.py"), []))]) or {},
    }


@pytest.mark.parametrize("change", a_share(touched(None, None, None), 3))
def test_parts_are_taken_only_for_the_same_weights_of_the_base_data_settings_and_code(
    change, classes, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(plugins, "_loaded", {})
    file, out = write_lines(tmp_path / "rows.jsonl", rows_of(TEXTS)), tmp_path / "out.jsonl"
    model = adapter(tmp_path / "adapter", classes)
    stopped(monkeypatch, model, str(file), out=out, batch_size=1)
    how = {"batch_size": 1} | touched(classes, model, file)[change]()
    anyformer.predict(model, str(file), out=out, **how)
    said, again = capsys.readouterr().err, tmp_path / "again.jsonl"
    assert ("going on: 1 of 1 part is there" in said) == (change in ("nothing", "results"))
    anyformer.predict(model, str(file), out=again, **how)
    assert out.read_bytes() == again.read_bytes() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("damage", a_share(["half", "a row fewer", "another key", "bits", "empty"], 3))
def test_a_damaged_part_is_made_again(damage, classes, tmp_path, monkeypatch, capsys):
    rows, out, whole = rows_of(TEXTS * 10), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    anyformer.predict(classes, rows, out=whole, batch_size=1)
    stopped(monkeypatch, classes, rows, out=out, batch_size=1)
    part = sorted(tmp_path.glob(".out.jsonl.*.parts/*"))[1]
    lines = part.read_bytes().splitlines(keepends=True)
    damaged = {
        "half": b"".join(lines)[:700],
        "a row fewer": b"".join(lines[1:]),
        "another key": b"".join(lines[:-1]) + b"x" + lines[-1][1:],
        "bits": b"".join(lines).replace(b"good", b"g\xffod"),
        "empty": b"",
    }
    part.write_bytes(damaged[damage])
    anyformer.predict(classes, rows, out=out, batch_size=1)
    assert "going on: 2 of 3 parts are there" in capsys.readouterr().err
    assert out.read_bytes() == whole.read_bytes()


CHANGES = {
    "more": lambda file: file.write_text(file.read_text() + '{"text": "anna"}\n' * 20),
    "fewer": lambda file: file.write_text("".join(file.read_text().splitlines(keepends=True)[:20])),
    "others": lambda file: write_lines(file, rows_of(["bad"] * 40)),
    "replaced": lambda file: write_lines(file.with_name("b"), rows_of(["bad"] * 40)).replace(file),
    "a model": lambda file: with_other_weights(file.with_name("model")),
}


@pytest.mark.parametrize("change, to_file", a_share(product(CHANGES, [True, False]), 3))
def test_what_changes_while_it_is_read_is_refused_and_nothing_of_it_is_kept(change, to_file, classes, tmp_path):
    file, out, calls = write_lines(tmp_path / "rows.jsonl", rows_of(TEXTS * 10)), tmp_path / "out.jsonl", []
    prediction, usual = prepare_prediction(classes, str(file), batch_size=1), Prediction.answered

    class Changing(Prediction):
        def answered(self, *arguments):
            calls.append(1)
            if len(calls) == 2:
                CHANGES[change](file)
            return usual(self, *arguments)

    prediction.__class__ = Changing
    name = classes.name if change == "a model" else "rows.jsonl"
    with pytest.raises(UserError, match=rf"{name} was changed while it was read"):
        run_prediction(prediction, AnswerFile(out) if to_file else None)
    assert not out.exists() and len(list(tmp_path.glob(".out*/*.json"))) == to_file
    after = anyformer.predict(classes, str(file), out=out, batch_size=1)
    assert len(after.read_text().splitlines()) == len(file.read_text().splitlines())


def test_an_image_behind_a_table_that_changes_gives_new_answers(tmp_path, pictures, monkeypatch, capsys):
    folder, out = saved(tmp_path / "model", "ViTForImageClassification", **named(["cat", "dog"])), tmp_path / "o.jsonl"
    (pictures / "list.csv").write_text("image\na/0.png\nb/1.png\n")
    before = anyformer.predict(folder, pictures / "list.csv")
    stopped(monkeypatch, folder, pictures / "list.csv", out=out)
    (pictures / "b" / "1.png").write_bytes((pictures / "a" / "2.png").read_bytes())
    anyformer.predict(folder, pictures / "list.csv", out=out)
    first, second = map(json.loads, out.read_text().splitlines())
    assert first == before[0] and second["scores"] != before[1]["scores"]
    assert "going on" not in capsys.readouterr().err


def test_two_predictions_do_not_write_one_file(classes, tmp_path):
    out = tmp_path / "out.jsonl"

    def hold():
        with AnswerFile(out).locked():
            (tmp_path / "held").touch()
            time.sleep(60)

    other = Process(hold)
    other.wait_until(lambda: (tmp_path / "held").exists())
    with pytest.raises(UserError, match=rf"^--out \S+out\.jsonl is written by process {other.pid} on .*; wait for"):
        anyformer.predict(classes, rows_of(TEXTS), out=out)
    other.kill()
    assert anyformer.predict(classes, rows_of(TEXTS), out=out) == out and not list(tmp_path.glob(".out*"))


@pytest.mark.slow
def test_two_processes_write_what_one_writes(classes, tmp_path):
    rows, out, whole = many_rows(tmp_path), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"

    def share() -> str:
        PartialState._reset_state()  # that of the process that this one is forked from
        with pytest.raises(UserError, match="--out FILE"):
            anyformer.predict(classes, rows)
        return str(anyformer.predict(classes, rows, out=out, batch_size=1))

    run_ranks(2, share, folder=tmp_path)
    anyformer.predict(classes, rows, out=whole, batch_size=1)
    assert out.read_bytes() == whole.read_bytes()


# ----------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "rows, how, sentence",
    [
        ([], {}, "there is no row to answer"),
        ([{"body": "a"}], {}, "row 0 has no column 'text', which the model reads; it has body"),
        ([{"id": "a-1", "body": "so it is", "at": "noon"}], {}, "--read text=body"),
        ([{"text": 3}, {"body": "a"}, {"text": ""}], {}, "row 0 holds int, not text"),
        ([{"text": "half \ud83d"}], {}, "FILE: row 0: not UTF-8; write it in UTF-8"),
        ([{"body": 3}] * 100 + [{"text": "a"}], {}, "row 0 has no column 'text'"),
        ([{"text": "a"}], {"read": {"txt": "text"}}, "--read txt=text: the model reads no column 'txt'"),
        ([{"text": "a", "n": 1}, {"id": 1}], {"columns": ["m", "id"]}, "--columns m: no row has such a column"),
        ([{"text": "a"}], {"threshold": 70}, "--threshold 70 is no probability above 0 and at most 1, such as 0.7"),
        ([{"text": "a"}, 7], {}, "row 1 is int; a row is a mapping of columns"),
        ([{"text": "a", "score": 1}], {}, "row 0 has a column 'score', where an answer belongs"),
        ("gone.csv", {}, "FILE='gone.csv': no such file"),
        ([{"text": "a"}], {"out": "answers.xls"}, "--out answers.xls: the name ends in '.xls'; known: .jsonl"),
    ],
)
def test_a_mistake_is_one_sentence(rows, how, sentence, classes):
    with pytest.raises(UserError, match=sentence.replace("(", r"\(")):
        anyformer.predict(classes, rows, **how)


def test_a_file_that_is_read_is_not_overwritten(classes, tmp_path):
    file = write_lines(tmp_path / "rows.jsonl", rows_of(TEXTS))
    before = file.read_bytes()
    (tmp_path / "model").rename(tmp_path.parent / f"{tmp_path.name}-model")
    for asked in (file, tmp_path):
        with pytest.raises(UserError, match=r"rows\.jsonl is one of the files that are read"):
            anyformer.predict(tmp_path.parent / f"{tmp_path.name}-model", asked, out=file)
    assert file.read_bytes() == before


@pytest.mark.parametrize("option", [{"threshold": 0.7}, {"top": 2}])
@pytest.mark.parametrize(
    "head", ["BertModel", "BertForTokenClassification", "T5ForConditionalGeneration", "regression"]
)
def test_scores_that_a_model_does_not_give_are_refused_before_it_is_loaded(option, head, tmp_path):
    kind = {"num_labels": 1, "problem_type": "regression"} if head == "regression" else {}
    folder = saved(tmp_path / "model", head if not kind else "BertForSequenceClassification", **kind)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=rf"^--{next(iter(option))} needs a score for each"):
        anyformer.predict(folder, rows_of(TEXTS), **option)


# ------------------------------------------------------------------------------------------- rows without an answer


BAD_LINES = ['{"text": 3}', '{"text": "b"', "[7]", '{"body": "a"}', '{"text": "half \\ud83d"}', '{"text": " "}']


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_every_row_has_an_answer_or_a_reason_in_its_place(suffix, classes, tmp_path, command, capsys):
    file, out = tmp_path / "rows.jsonl", tmp_path / f"out.{suffix}"
    good = [json.dumps(row) for row in rows_of(TEXTS)]
    file.write_text("\n".join([good[0], *BAD_LINES, *good[1:]]))
    assert command("predict", classes, file, "--out", out, "--batch-size", 1) == 0
    found = answers_in(out)
    alone = anyformer.predict(classes, rows_of(TEXTS), batch_size=1)
    answered = [found[0], *found[1 + len(BAD_LINES) :]]
    assert [row["prediction"] for row in answered] == [row["prediction"] for row in alone]
    assert not any(row.get("reason") or (row["file"] != str(file)) for row in answered)
    bad = found[1 : 1 + len(BAD_LINES)]
    assert not any(row["prediction"] for row in bad)
    for row, reason in zip(bad, ["int, not text", "not valid JSON", "not a JSON object", "no column 'text'", "UTF-8"]):
        assert reason in row["reason"] and "line " in row["reason"] and str(tmp_path) not in row["reason"]
    assert bad[-1]["reason"] == EMPTY_ROW
    assert "6 rows have no prediction, and the reason in the column 'reason': 1 " in capsys.readouterr().err


@given(st.lists(st.sampled_from(["good", "bad", " ", None, 7, [], "half \ud83d"]), min_size=1, max_size=12))
def test_rows_are_answered_as_if_the_bad_ones_were_not_there(tmp_path_factory, cells):
    folder = ONCE.setdefault("folder", tmp_path_factory.mktemp("once") / "model")
    if not folder.exists():
        saved(folder, "BertForSequenceClassification", **named(["bad", "fair", "good"]))
    good = [cell for cell in cells if cell in ("good", "bad")]
    asked = [{"text": cell, "id": number} for number, cell in enumerate([*cells, "good"])]
    answers = anyformer.predict(folder, asked, batch_size=1)
    assert [answer.get("id") for answer in answers if "id" in answer] == [
        row["id"] for row in asked if row["text"] != "half \ud83d"
    ]
    right = [answer["prediction"] for answer in answers if "reason" not in answer]
    assert right == [answer["prediction"] for answer in anyformer.predict(folder, rows_of([*good, "good"]))]
    assert all(answer["prediction"] is None for answer in answers if "reason" in answer)


def test_a_broken_image_and_a_prompt_without_room_have_reasons(tmp_path, pictures, capsys):
    folder = saved(tmp_path / "images", "ViTForImageClassification", **named(["cat", "dog"]))
    files = sorted(pictures.rglob("*.png"))
    alone = anyformer.predict(folder, files[1:], batch_size=1)
    files[0].write_bytes(b"no image")
    first, *rest = anyformer.predict(folder, files, batch_size=1)
    assert "no image that Pillow can read" in first["reason"] and first["file"] == str(files[0]) and rest == alone
    for file in files:
        file.write_bytes(b"no image")
    with pytest.raises(UserError, match="no image that Pillow can read"):  # before the model is loaded
        anyformer.predict(folder, files)
    writer, texts = saved(tmp_path / "writer", "GPT2LMHeadModel"), ["anna", " ".join(["film"] * 40), "who"]
    one, none, other = anyformer.predict(writer, rows_of(texts), max_new_tokens=4)
    assert [one, other] == anyformer.predict(writer, rows_of(texts[::2]), max_new_tokens=4)
    assert none["prediction"] is None and "PROMPT has 40 tokens, but the model has 32 positions" in none["reason"]


def test_an_answer_below_the_threshold_is_unsure_and_counted(classes, tmp_path, command, capsys):
    file, out = write_lines(tmp_path / "rows.jsonl", rows_of(TEXTS)), tmp_path / "out.jsonl"
    usual = anyformer.predict(classes, file)
    low, *_, high = sorted(answer["score"] for answer in usual)
    middle = (low + high) / 2
    assert command("predict", classes, file, "--out", out, "--threshold", middle) == 0
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    unsure = sum(answer["score"] < middle for answer in usual)
    for answer, before in zip(answers, usual):
        kept = {name: value for name, value in before.items() if name != "prediction"}
        is_sure = before["score"] >= middle
        said = {"prediction": before["prediction"]} if is_sure else {"prediction": None, "reason": "unsure"}
        assert answer == kept | said
    assert f"the column 'reason': {unsure} unsure" in capsys.readouterr().err and 0 < unsure < len(usual)


@pytest.mark.parametrize("architecture", ["BertForSequenceClassification", "BertForMultipleChoice", "ViTForImage"])
def test_the_best_classes_stand_in_place_of_all(architecture, tmp_path, pictures):
    kind = named(["a", "b", "c"]) if "Choice" not in architecture else {}
    given, folder = rows_of(TEXTS), tmp_path / "model"
    if "Choice" in architecture:
        given = [{"context": text, "question": "was", "choices": ["good", "bad", "anna"]} for text in TEXTS]
    given = pictures if "ViT" in architecture else given
    saved(folder, architecture + "Classification" * ("ViT" in architecture), **kind)
    for usual, answer in zip(anyformer.predict(folder, given), anyformer.predict(folder, given, top=2)):
        scores = usual["scores"] if kind else dict(enumerate(usual["scores"]))
        best = sorted(scores.items(), key=lambda pair: -pair[1])[:2]
        assert "scores" not in answer and answer["score"] == best[0][1]
        assert answer["top"] == [{"answer": name, "score": score} for name, score in best]


def test_the_columns_that_are_named_are_copied_and_no_others(classes, tmp_path, command, capsys):
    file = write_lines(tmp_path / "rows.jsonl", [{"text": text, "id": 1, "score": 2, "n": 3} for text in TEXTS])
    of_answer = ["prediction", "score", "scores"]
    for columns, expected in ((["id", "file"], ["id", "file"]), (["n", "--columns", "id"], ["n", "id"]), ([], [])):
        assert command("predict", classes, file, "--columns", *columns) == 0
        assert [list(json.loads(line)) for line in capsys.readouterr().out.splitlines()] == [
            [*expected, *of_answer]
        ] * len(TEXTS)
    assert command("predict", classes, file) == 2  # whose score would be that of the answer
    assert "has a column 'score', where an answer belongs; rename it, or name the columns" in capsys.readouterr().err
    assert command("predict", classes, file, "--columns", "text=id") == 2
    assert "--columns text=id: no row has such a column" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------- own runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("multiple_choice", "sequence_classification", "question_answering", "token_classification", "translation"),
        *("multi_label_classification", "sentence_similarity", "text_to_text", "instruction_tuning", "preference"),
    ],
)
def test_a_run_answers_as_its_evaluation_does(kind, tmp_path, command):
    recipe = task_recipe(tmp_path, kind, training={"max_steps": 2}, evaluation={"every_steps": None})
    assert command("train", recipe) == 0
    given = [json.loads(line) for line in (tmp_path / f"{kind}-test.jsonl").read_text().splitlines()]
    answers = anyformer.predict(tmp_path / "run", given, max_new_tokens=8 if "tun" in kind or "pref" in kind else None)
    assert len(answers) == len(given) and all("prediction" in answer for answer in answers)
    measured = [each["prediction"] for each in anyformer.evaluate(tmp_path / "run").answers]
    if kind not in ("text_to_text", "instruction_tuning", "preference"):  # compared as classes, or not as texts
        assert len(measured) == len(given)
        for answer, right in zip(answers, measured):
            found = sorted(answer["prediction"]) if kind.startswith("multi_label") else answer["prediction"]
            right = sorted(right) if kind.startswith("multi_label") else right
            assert found == (pytest.approx(right, abs=PADDED) if isinstance(right, float) else right)
