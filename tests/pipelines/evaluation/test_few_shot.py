"""Laws of few-shot evaluation: exact likelihoods, balanced examples that all models share, one sentence otherwise."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from anyformer.pipelines.evaluation.few_shot import BETWEEN, Question, draw_shots, prompt_of
from anyformer.pipelines.likelihoods.likelihood import encode_pairs, log_likelihoods
from family_variants import tiny
from native_models import native_model
from task_data import task_recipe, write_lines
from tiny_tokenizers import of_bytes
from transformers import GPT2LMHeadModel

import anyformer
from anyformer_main import main

EXACT = 1e-11  # float64, sums in another order
TEXTS = ["the film was good and long", "a very bad story about two actors", "text: label: negative positive"]


@pytest.fixture(scope="module")
def tokenizer():
    """Byte-level BPE, in which one of the label words has several tokens."""
    return of_bytes((), TEXTS * 3, 300, eos="<|endoftext|>", pad="<|endoftext|>")


def language_model(kind: str, vocabulary: int, positions: int = 96):
    if kind == "gpt2":
        return native_model(kind, vocab_size=vocabulary, n_positions=positions).double()
    if kind == "t5":
        return native_model(kind, "AutoModelForSeq2SeqLM", vocab_size=vocabulary).double()
    fields = {"position_encoding": kind} if kind in ("learned", "alibi") else {}
    fields |= {"attention_pattern": [f"{kind}_attention"]} if kind in ("sliding", "linear") else {}
    fields |= {"sliding_window": 4} if kind == "sliding" else {}
    config = tiny("decoder", vocab_size=vocabulary, max_position_embeddings=positions, **fields)
    return anyformer.AnyformerDecoderForCausalLM(config).double().eval()


@torch.no_grad()
def one_by_one(model, context, continuation, most) -> float:
    if model.config.is_encoder_decoder:
        logits = model(input_ids=torch.tensor([context]), labels=torch.tensor([continuation])).logits[0]
    else:
        text = [*context, *continuation][-(most + 1) :]
        logits = model(torch.tensor([text[:-1]])).logits[0, -len(continuation) :]
    return logits.log_softmax(-1).gather(-1, torch.tensor(continuation)[:, None]).sum().item()


@pytest.mark.parametrize("kind", ["decoder", "learned", "gpt2", "t5"])
def test_likelihoods_in_batches_are_those_of_one_text_at_a_time(kind, tokenizer):
    model, draw = language_model(kind, len(tokenizer)), np.random.default_rng(0)
    pairs = []
    for number in range(9):
        context = draw.integers(1, 200, draw.integers(1, 30)).tolist()
        pairs += [(context, draw.integers(1, 200, length).tolist()) for length in (1, 1, 2, 3)[: 2 + number % 3]]
    pairs.append((pairs[0][0], [*pairs[0][1], 7]))  # begins like another
    most = 20 if kind != "t5" else 96  # some are cut
    found = log_likelihoods(model, pairs, batch_size=4, most=most)
    assert found == pytest.approx([one_by_one(model, *pair, most) for pair in pairs], abs=EXACT)


@pytest.mark.parametrize("kind", ["decoder", "learned", "gpt2", "alibi", "sliding", "linear"])
def test_what_all_prompts_begin_with_is_read_once(kind, tokenizer):
    model, draw = language_model(kind, len(tokenizer)), np.random.default_rng(0)
    solved = draw.integers(1, 200, 30).tolist()
    pairs = []
    for length in (3, 9, 5, 1, 12, 7):
        question = draw.integers(1, 200, length).tolist()
        pairs += [(solved + question, draw.integers(1, 200, words).tolist()) for words in (1, 1, 2)]
    pairs.append((draw.integers(1, 200, 60).tolist(), [5]))  # is cut, and begins otherwise
    seen = []
    model.get_input_embeddings().register_forward_hook(lambda module, args, out: seen.append(args[0].numel()))
    found = log_likelihoods(model, pairs, batch_size=4, most=50)
    read = sum(seen)
    assert found == pytest.approx([one_by_one(model, *pair, 50) for pair in pairs], abs=EXACT)
    assert (read < 30 + 200 + 60) == (kind not in ("sliding", "linear"))


def test_an_encoder_reads_each_question_once_however_many_answers_it_has(tokenizer):
    model, draw, seen = language_model("t5", len(tokenizer)), np.random.default_rng(0), []
    questions = [draw.integers(1, 200, 5 + number).tolist() for number in range(4)]
    model.get_encoder().register_forward_hook(
        lambda module, args, kwargs, out: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    log_likelihoods(model, [(each, [word]) for each in questions for word in (7, 8, 9)], batch_size=2, most=96)
    assert sum(seen) == 4


def test_context_and_word_together_are_the_tokens_of_the_whole_text(tokenizer):
    texts = [("text: good\nlabel:", " positive"), ("text: good\nlabel:", " no"), ("label", "s")]
    for (context, word), (read, follows) in zip(texts, encode_pairs(tokenizer, texts)):
        assert read + follows == tokenizer(context + word)["input_ids"] and follows


# ------------------------------------------------------------------------------------------------- the prompts


def recipe_with_seed(seed):
    return type("R", (), {"training": type("T", (), {"seed": seed}), "name": "r"})


def test_shots_are_balanced_nested_and_drawn_by_the_seed_alone():
    asked = [Question(f"q{i}", i % 3, i) for i in range(60)]
    drawn = draw_shots(asked, 12, recipe_with_seed(1))
    for number in range(1, 13):
        counts = [sum(each.answer == answer for each in drawn[:number]) for answer in range(3)]
        assert max(counts) - min(counts) <= 1
    assert len({each.row for each in drawn}) == 12
    assert draw_shots(asked, 4, recipe_with_seed(1)) == drawn[:4]  # whatever number is asked for beside it
    assert drawn == draw_shots(asked, 12, recipe_with_seed(1)) != draw_shots(asked, 12, recipe_with_seed(2))
    rare = [Question("a", 0, 0), *(Question(f"b{i}", 1, i) for i in range(1, 6))]
    assert Counter(each.answer for each in draw_shots(rare, 5, recipe_with_seed(0))) == {0: 1, 1: 4}


def test_a_prompt_is_the_solved_examples_and_the_question():
    written, asked = ["no", "yes"].__getitem__, Question("C?", 0, 2)
    assert prompt_of([Question("A?", 1, 0), Question("B?", 0, 1)], asked, written) == f"A? yes{BETWEEN}B? no{BETWEEN}C?"
    assert prompt_of([], asked, written) == "C?"


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def stage(tmp_path_factory, tokenizer):
    """A recipe of reviews in two classes, and an untrained language model in `model`."""
    folder = tmp_path_factory.mktemp("few_shot")
    task_recipe(folder, "sequence_classification", task={"label_names": ["negative", "positive"]})
    language_model("gpt2", len(tokenizer), 64).float().save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder


@pytest.fixture
def asked(stage, monkeypatch, tmp_path):
    """Function: (exit code, JSON) of `anyformer evaluate model recipe.yaml` with some words."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(stage / "cache"))
    monkeypatch.chdir(stage)

    def run(*words, model="model"):
        output = tmp_path / "result.json"
        code = main(["evaluate", model, "recipe.yaml", "--output", str(output), "evaluation.bootstrap=20", *words])
        return code, json.loads(output.read_text()) if code == 0 else None

    return run


def test_a_language_model_is_asked_with_more_and_more_examples(asked, stage, tokenizer, tmp_path, capsys):
    answers = tmp_path / "answers.jsonl"
    words = ["--label-words", "bad, good", "--template", "{text}\\nIt is"]
    code, result = asked("--shots", "0,1,4", *words, "--predictions", str(answers))
    assert code == 0 and list(result["shots"]) == ["0", "1", "4"] and result["examples"] == 11
    assert result["template"] == "{text}\nIt is" and result["label_words"] == ["bad", "good"]
    assert "prompts cut" in capsys.readouterr().out and result["shots"]["4"]["cut"] > result["shots"]["0"]["cut"]
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    texts = [json.loads(line) for line in (stage / "sequence_classification-test.jsonl").read_text().splitlines()]
    model = GPT2LMHeadModel.from_pretrained(stage / "model").double().eval()
    for row in rows[:11]:  # without examples
        pairs = encode_pairs(tokenizer, [(f"{texts[row['row']]['text']}\nIt is", word) for word in (" bad", " good")])
        scores = [one_by_one(model, *pair, 64) for pair in pairs]
        assert row["shots"] == 0 and row["prediction"] == ["negative", "positive"][int(np.argmax(scores))]
        assert row["reference"] == ["negative", "positive"][texts[row["row"]]["label"]]
    right = np.mean([row["prediction"] == row["reference"] for row in rows[:11]])
    assert result["shots"]["0"]["metrics"]["accuracy"] == pytest.approx(right)
    assert result["shots"]["0"]["intervals"]["accuracy"]["method"] == "wilson"


def test_without_words_and_template_the_names_of_classes_and_columns_are_taken(asked):
    _, result = asked("--shots", "0")
    assert result["label_words"] == ["negative", "positive"] and result["template"] == "text: {text}\nlabel:"


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--shots", "0,x"], "--shots: 0,x is no list of whole numbers"),
        (["--shots", "500"], "--shots 500 is more than the"),
        (["--shots", "1", "--label-words", "a"], "--label-words has 1, but there are 2 classes: negative, positive"),
        (["--shots", "1", "--label-words", "a,a"], "must be different words"),
        (["--shots", "1", "--template", "{txt}:"], "there is no text {txt}; did you mean text?"),
        (["--shots", "1", "--template", "label:"], "holds no text of the question, such as {text}"),
        (["--shots", "1", "task.label_names=null"], "--shots asks for words, and the classes have no names but"),
        (["--template", "{text}"], "--template belongs to --shots; add it"),
        (["--shots", "1", "--by-position"], "--shots is of one model and one task"),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence(words, sentence, asked, capsys):
    assert asked(*words)[0] == 2
    assert sentence in capsys.readouterr().err


def test_rows_left_out_are_neither_asked_nor_solved(asked, stage, tmp_path):
    answers, files = tmp_path / "answers.jsonl", {}
    for field, name in (("files", "sequence_classification"), ("test_files", "sequence_classification-test")):
        rows = [json.loads(line) for line in (stage / f"{name}.jsonl").open()]
        rows[1:3] = {"text": "a film", "label": None}, {"text": "a film"}
        files[field] = write_lines(tmp_path / f"{name}.jsonl", rows)
    settings = ["data.bad_rows=skip", *(f"data.{field}={file}" for field, file in files.items())]
    code, result = asked("--shots", "2", *settings, "--predictions", str(answers))
    assert code == 0 and result["examples"] == 9
    rows = [json.loads(line) for line in answers.open()]
    assert [int(row["place"].split()[-1]) for row in rows] == [1, *range(4, 12)]
    assert [row["row"] for row in rows] == list(range(9))


def test_a_task_without_such_answers_is_refused(stage, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(stage)
    recipe = task_recipe(tmp_path, "token_classification", name="tags")
    assert main(["evaluate", "model", str(recipe), "--shots", "1"]) == 2
    assert "for a class, number or text; TASK=tags asks for none" in capsys.readouterr().err


def test_numbers_are_asked_for_on_a_scale_and_texts_are_written(stage, tokenizer, monkeypatch, tmp_path):
    """A number is the mean of the scale by likelihood; a text is the first line that is written."""
    monkeypatch.chdir(stage)
    model = GPT2LMHeadModel.from_pretrained(stage / "model").double().eval()
    monkeypatch.setenv("ANYFORMER_CACHE", str(stage / "cache"))

    def asked(kind, *words, **task):
        recipe = task_recipe(tmp_path, kind, evaluation={"sample_tokens": 5, "bootstrap": 0}, task=task)
        answers = tmp_path / "answers.jsonl"
        arguments = ["evaluate", "model", str(recipe), "--max-examples", "4", "--predictions", str(answers), *words]
        assert main([*arguments, "--output", str(tmp_path / "result.json")]) == 0
        result = json.loads((tmp_path / "result.json").read_text())
        return result, [json.loads(line) for line in answers.read_text().splitlines()]

    template = ["--template", "{text}\\nShared:"]
    result, rows = asked("sentence_similarity", "--shots", "0,2", "--label-words", "0,2.5,5", *template)
    assert result["label_words"] == ["0", "2.5", "5"]
    assert list(result["shots"]["2"]["metrics"]) == ["pearson", "spearman"]
    assert (tmp_path / "result.png").stat().st_size > 1000  # the curve
    texts = [json.loads(line) for line in (tmp_path / "sentence_similarity-test.jsonl").read_text().splitlines()]
    for row in rows[:4]:
        pairs = encode_pairs(tokenizer, [(f"{texts[row['row']]['text']}\nShared:", f" {n}") for n in ("0", "2.5", "5")])
        scores = torch.tensor([one_by_one(model, *pair, 64) for pair in pairs]).double().softmax(0)
        assert row["prediction"] == pytest.approx(float(scores @ torch.tensor([0, 2.5, 5]).double()), abs=1e-4)
        assert row["reference"] == texts[row["row"]]["label"]

    result, rows = asked("translation", "--shots", "1")
    assert result["template"] == "en: {en}\nde:" and set(result["shots"]["1"]["metrics"]) == {"bleu"}
    source = [json.loads(line) for line in (tmp_path / "translation-test.jsonl").read_text().splitlines()]
    assert [row["reference"] for row in rows] == [source[row["row"]]["de"] for row in rows]
    assert all("\n" not in row["prediction"] for row in rows)
