"""Teachers: what is learned of them, what is stored, that runs go on, what a user may get wrong."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from anyformer.pipelines.data import reference
from anyformer.pipelines.data.sample_ids import without_labels
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives import teacher_model
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.objectives.taught_texts import principal
from anyformer.pipelines.objectives.teacher_losses import TokenLesson
from anyformer.pipelines.objectives.teacher_model import Teacher
from anyformer.pipelines.plugins import TEACHERS, objective_of
from anyformer.pipelines.recipes.compose import load_recipe
from run_folders import lines_of
from task_data import BAD, GOOD, NEUTRAL, pairs, random_decoder, reviews, tagged, write_lines
from tiny_tokenizers import of_words
from torch.nn.functional import cross_entropy

import anyformer

HALF = 2e-3  # stored log-probabilities have 11 bits


@pytest.fixture
def teacher(tmp_path):
    """A decoder with random weights, and a tokenizer of bytes."""
    fields = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "initializer_range": 0.2}
    return random_decoder(tmp_path / "teacher", **fields)


@pytest.fixture
def let_go(monkeypatch):
    """The names of the teachers whose models were freed."""
    names = []
    monkeypatch.setattr(Teacher, "let_go", lambda self: names.append(self.name))
    return names


@pytest.fixture
def student(tiny_recipe, teacher):
    """Factory of a recipe of a smaller decoder with that teacher; keyword arguments are its section's."""

    def make(name="student", **sections):
        section = {"name_or_path": str(teacher)} | sections.pop("teacher", {})
        model = {"hidden_size": 16, "hidden_dropout": 0.0} | sections.pop("model", {})
        data = {"max_documents": 3} | sections.pop("data", {})
        tokenizer = {"name_or_path": str(teacher)}
        return tiny_recipe(name, model=model, teacher=section, tokenizer=tokenizer, data=data, **sections)

    return make


def random_batch(vocabulary=11, rows=3, length=7):
    labels = torch.randint(vocabulary, (rows, length))
    labels[0, 2] = -100
    return {"input_ids": torch.randint(vocabulary, (rows, length)), "labels": labels}


def by_hand(logits, of_teacher, labels, weight, temperature):
    """The loss place by place, as the paper writes it."""
    total = 0.0
    for row in range(len(labels)):
        for place in range(1, labels.shape[1]):
            if labels[row, place] == -100:
                continue
            s, t = logits[row, place - 1], of_teacher[row, place - 1]
            p, q = (s / temperature).softmax(-1), (t / temperature).softmax(-1)
            hard = -s.log_softmax(-1)[labels[row, place]]
            total += (1 - weight) * hard + weight * temperature**2 * (q * (q / p).log()).sum()
    return total


def stored_of(of_teacher, top_k, temperature):
    """What is stored of logits: ids, and log-probabilities beside that of all others."""
    q = (of_teacher / temperature).softmax(-1)
    values, ids = q.topk(top_k)
    rest = (1 - values.sum(-1, keepdim=True)).clamp_min(1e-30)
    return {"teacher_ids": ids, "teacher_log_probs": torch.cat([values, rest], -1).log()}


def test_a_lesson_is_the_papers_loss_and_all_but_one_stored_tokens_say_everything(in_float64):
    logits, of_teacher, batch = torch.randn(3, 7, 11, requires_grad=True), torch.randn(3, 7, 11), random_batch()
    for weight, temperature in ((0.3, 1.0), (0.7, 2.5), (1.0, 1.0)):
        expected = by_hand(logits, of_teacher, batch["labels"], weight, temperature)
        online = TokenLesson(weight, temperature, True, 11, lambda inputs: (of_teacher, lambda logits: logits))
        torch.testing.assert_close(online.total({"logits": logits}, batch), expected)
        stored = TokenLesson(weight, temperature, True, 11)
        whole = stored.total({"logits": logits}, batch | stored_of(of_teacher, 10, temperature))
        torch.testing.assert_close(whole, expected)
        fewer = stored.total({"logits": logits}, batch | stored_of(of_teacher, 4, temperature))
        assert fewer < whole  # the others are one event: KL over fewer events is never more
    assert online.weight(batch) == (batch["labels"][:, 1:] != -100).sum()


def test_what_measures_counts_the_labels_alone(in_float64):
    logits, batch = torch.randn(3, 7, 11), random_batch()
    lesson = TokenLesson(0.9, 2.0, True, 11, lambda inputs: pytest.fail("a validation asks no teacher"))
    with torch.no_grad():
        found = lesson.total({"logits": logits}, batch)
    expected = cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(found, expected)


def test_stored_rows_hold_what_the_teacher_says_and_are_made_once(student, teacher, let_go, monkeypatch, capsys):
    monkeypatch.setattr(reference, "SHARD_BYTES", 100_000)
    recipe = student(teacher={"stored": True, "top_k": 5, "temperature": 2.0})
    data = prepare_data(load_recipe(recipe), for_training=True)
    rows, printed = data.rows["train"], capsys.readouterr().err
    assert len(rows.shards) > 2 and f"its 5 likeliest tokens of {len(rows):,} rows go into the cache" in printed
    model = transformers.AutoModelForCausalLM.from_pretrained(teacher).eval()
    for number in (0, rows.each, len(rows) - 1):
        row = rows[number]
        inputs = {name: row[name][None] for name in ("input_ids", "position_ids")}
        with torch.no_grad():
            q = (model(**inputs).logits[0] / 2).softmax(-1)
        top = row["teacher_log_probs"].exp()
        torch.testing.assert_close(top[:, :5], q.gather(-1, row["teacher_ids"]), atol=HALF, rtol=HALF)
        torch.testing.assert_close(top.sum(-1), torch.ones(48), atol=HALF, rtol=HALF)
        assert (q.topk(5).values - q.gather(-1, row["teacher_ids"])).abs().max() < HALF
    assert let_go == [str(teacher)]  # nothing asks it any more
    shard = sorted(rows.shards[0].folder.parent.iterdir())[1]
    shutil.rmtree(shard)  # as where a kill came before it
    again = prepare_data(load_recipe(recipe), for_training=True)
    left = f"its 5 likeliest tokens of {rows.each} rows of {len(rows):,} (the others are there)"
    assert left in capsys.readouterr().err and again.facts == data.facts
    assert torch.equal(again.rows["train"][rows.each]["teacher_ids"], rows[rows.each]["teacher_ids"])
    assert prepare_data(load_recipe(recipe)).rows["train"].fingerprint != rows.fingerprint  # without a training: none


def test_a_native_teachers_answers_need_no_logits_of_all_tokens(tmp_path, teacher, command, monkeypatch):
    assert command("convert", teacher, tmp_path / "native") == 0
    asked, batch = Teacher(str(tmp_path / "native"), "AutoModelForCausalLM"), random_batch(rows=2, length=11)
    whole, rows = asked.top_tokens(batch, 250, 5, 2.0), []
    monkeypatch.setattr(teacher_model, "ROWS_PER_CHUNK", 6)
    asked.model.get_output_embeddings().register_forward_hook(lambda _, args, out: rows.append(out.shape[:-1].numel()))
    found = asked.top_tokens(batch, 250, 5, 2.0)
    assert rows == [6, 6, 6, 4] and found[1].shape == (2, 11, 6)
    torch.testing.assert_close(found, whole)


def costs(recipe):
    objective = objective_of(load_recipe(recipe))
    return TEACHERS[objective.taught](objective.Reads(objective)).further_costs()


def test_a_plan_says_what_a_teacher_takes(student):
    (stored,) = costs(student(teacher={"stored": True}))
    assert "258 bytes for each token of the training rows go into the cache" in stored  # 64 x 2 and 65 x 2
    (online,) = costs(student())
    assert "parameters (" in online and "GB in fp32) stand beside the model" in online


@pytest.mark.slow
@pytest.mark.parametrize("stored", [False, True])
def test_a_killed_student_goes_on_and_needs_no_teacher_at_the_end(student, teacher, whole_and_killed, command, stored):
    whole, _ = whole_and_killed(13, student(teacher={"stored": stored, "weight": 0.7}))
    logged = [line for line in lines_of(whole) if "teacher_loss" in line]
    for line in logged:
        assert line["loss"] == pytest.approx(0.3 * line["labels_loss"] + 0.7 * line["teacher_loss"], rel=1e-4)
    assert logged[-1]["teacher_loss"] < logged[0]["teacher_loss"]
    assert "Its teacher was `teacher`" in (whole / "README.md").read_text()
    assert "taught by teacher" in (whole / "report.html").read_text()
    shutil.rmtree(teacher)
    before = json.loads((whole / "run.json").read_text())["metrics"]["validation_loss"]
    assert command("evaluate", whole) == 0
    after = json.loads(next(whole.glob("evaluation-*.json")).read_text())["metrics"]["loss"]
    assert after == pytest.approx(before, abs=1e-5)


# ------------------------------------------------------------------------------------------ classes and vectors


def labelled(tmp_path, number=40):
    """Labelled reviews, and others without a label in a file of their own."""
    reviews(tmp_path / "labelled.jsonl", number)
    others = [json.loads(line) for line in reviews(tmp_path / "others.jsonl", 24, seed=1).read_text().splitlines()]
    write_lines(tmp_path / "others.jsonl", [{"text": row["text"]} for row in others])
    return {"files": str(tmp_path / "labelled.jsonl"), "validation_fraction": 0.25}


def encoder(tmp_path, auto_class, name="teacher", longest=64, **fields):
    """The folder of an encoder with random weights, and a tokenizer of words that no student has."""
    anyformer.register()
    special = {"pad": "<pad>", "unk": "<unk>", "mask": "<mask>", "cls": "<cls>", "sep": "<sep>"}
    words = [*special.values(), *NEUTRAL, *GOOD, *BAD]
    tokenizer = of_words(words, **special)
    tokenizer.model_max_length = longest
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": len(words)}
    sizes["initializer_range"] = 0.5  # so that it tells texts apart
    config = transformers.AutoConfig.for_model("anyformer_encoder", **sizes, pad_token_id=0, **fields)
    getattr(transformers, auto_class).from_config(config).save_pretrained(tmp_path / name)
    tokenizer.save_pretrained(tmp_path / name)
    return tmp_path / name


CLASSES = {"id2label": {0: "LABEL_1", 1: "LABEL_0"}, "label2id": {"LABEL_1": 0, "LABEL_0": 1}}  # turned around


def task_with_teacher(tiny_recipe, tmp_path, task, folder, data, **teacher):
    return tiny_recipe(
        model={"family": "encoder", "hidden_size": 16, "num_key_value_heads": 4, "hidden_dropout": 0.0},
        tokenizer={"type": "char", "vocab_size": None},
        data=data,
        task=task,
        objective=None,
        teacher={"name_or_path": str(folder)} | teacher,
        training={"max_steps": 6},
        evaluation={"metrics": None, "max_rows": None},
    )


def test_classes_of_texts_without_labels_are_the_teachers(tiny_recipe, tmp_path, let_go):
    data = labelled(tmp_path)
    folder = encoder(tmp_path, "AutoModelForSequenceClassification", **CLASSES)
    task = {"name": "sequence_classification", "max_length": 32}
    files = str(tmp_path / "others.jsonl")
    recipe = task_with_teacher(tiny_recipe, tmp_path, task, folder, data, files=files, temperature=2.0, weight=0.3)
    prepared = prepare_data(load_recipe(recipe), for_training=True)
    rows, lesson = prepared.rows["train"], prepared.lesson
    few = len(rows) - 24
    assert [int(row["labels"]) < 0 for row in (rows[i] for i in range(len(rows)))] == [False] * few + [True] * 24
    assert "reference" not in prepared.rows["validation"][0] and "24 texts without a label" in "".join(rows.notes)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    text = json.loads((tmp_path / "others.jsonl").read_text().splitlines()[3])["text"]
    with torch.no_grad():
        said = model(**tokenizer(text, return_tensors="pt")).logits[0].flip(0)  # by the names of the classes
    torch.testing.assert_close(rows[few + 3]["reference"], said.float(), atol=1e-4, rtol=1e-4)
    assert let_go == [str(folder)]  # nothing asks it any more
    batch = prepared.collator([rows[0], rows[few + 3]])
    logits = torch.randn(2, 2, requires_grad=True)
    p, q = (logits / 2).log_softmax(-1), (batch["reference"] / 2).log_softmax(-1)
    each = 4 * (q.exp() * (q - p)).sum(-1)
    expected = 0.7 * cross_entropy(logits[:1], batch["labels"][:1]) + 0.3 * each[0] + each[1]
    torch.testing.assert_close(lesson.total({"logits": logits}, batch), expected, atol=1e-5, rtol=1e-5)
    assert lesson.weight(batch) == 2
    batch["labels"][1] = -100  # a row that only fills up
    assert lesson.weight(batch) == 1
    torch.testing.assert_close(lesson.total({"logits": logits}, batch), expected - each[1], atol=1e-5, rtol=1e-5)


def test_a_teacher_that_was_killed_goes_on_after_the_texts_it_has_answered(tmp_path, monkeypatch, capsys):
    asked, texts = [], [f"text {number}" for number in range(7)]

    def answer(some):
        asked.append(some)
        if "text 4" in some and len(asked) < 4:
            raise KeyboardInterrupt
        return np.array([[float(text[-1])] for text in some], dtype=np.float32)

    monkeypatch.setattr(reference, "TEXTS_AT_ONCE", 2)
    with pytest.raises(KeyboardInterrupt):
        reference.answered(texts, tmp_path, "key", "MiniLM", answer)
    assert "MiniLM: its answers to 7 examples go into the cache" in capsys.readouterr().err
    for _ in range(2):
        assert reference.answered(texts, tmp_path, "key", "MiniLM", answer).tolist() == [[float(n)] for n in range(7)]
    assert "its answers to 3 examples" in capsys.readouterr().err
    assert [len(some) for some in asked] == [2, 2, 2, 2, 1] and asked[2] == asked[3]


TAGS = ["B-PER", "O", "I-PER", "B-LOC", "I-LOC"]  # in another order than the data has them


def taught_tags(tiny_recipe, tmp_path, **section):
    """A recipe of tags, by a teacher that reads 16 tokens, with sentences of which two have no word."""
    tagged(tmp_path / "tagged.jsonl", 40)
    more = [json.loads(line) for line in tagged(tmp_path / "more.jsonl", 24, seed=1).read_text().splitlines()]
    more[3:3] = [{"tokens": [""]}, {"tokens": []}]
    write_lines(tmp_path / "more.jsonl", [{"tokens": row["tokens"]} for row in more])
    names = {"id2label": dict(enumerate(TAGS)), "label2id": {name: number for number, name in enumerate(TAGS)}}
    folder = encoder(tmp_path, "AutoModelForTokenClassification", longest=16, **names)
    task = {"name": "token_classification", "max_length": 64, "label_names": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]}
    data = {"files": str(tmp_path / "tagged.jsonl"), "validation_fraction": 0.25}
    section = {"files": str(tmp_path / "more.jsonl"), "temperature": 2.0, "weight": 0.3} | section
    return more, folder, task_with_teacher(tiny_recipe, tmp_path, task, folder, data, **section)


@pytest.mark.parametrize("labelled", ["first", "all"])
def test_tags_of_words_are_the_teachers_where_it_has_read_them(tiny_recipe, tmp_path, labelled):
    more, folder, recipe = taught_tags(tiny_recipe, tmp_path)
    recipe = load_recipe(recipe, [f"task.labelled_token={labelled}"])
    plain = prepare_data(replace(recipe, teacher=None))  # whose rows in the cache have no numbers of words
    assert "words" not in plain.rows["train"][0]
    prepared = prepare_data(recipe, for_training=True)
    assert prepared.answers().asked({"tokens": "a text"}, "row 1") == "a text"  # as ever where the model is asked
    rows, lesson = prepared.rows["train"], prepared.lesson
    first = len(rows) - 24
    assert "24 texts without a label" in "".join(rows.notes)
    assert [len(rows[first + number]["reference"]) for number in range(24)] == [
        len(row["tokens"]) for row in more if "".join(row["tokens"])
    ]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    words = more[2]["tokens"]
    encoded = tokenizer(" ".join(words), return_tensors="pt", truncation=True)
    with torch.no_grad():
        said = model(**encoded).logits[0][:, [1, 0, 2, 3, 4]]
    of_words = said[[place for place in range(said.shape[0]) if tokenizer.cls_token_id != encoded.input_ids[0, place]]]
    answers = rows[first + 2]["reference"]
    known = min(len(words), len(of_words))
    torch.testing.assert_close(answers[:known], of_words[:known].float(), atol=1e-4, rtol=1e-4)

    batch = prepared.collator([rows[0], rows[first + 2]])
    taken, taught = batch["labels"] != -100, batch["words"] > 0
    assert taken[0][taught[0]].all() and not taken[1].any()
    logits = torch.randn(*taught.shape, 5, requires_grad=True)
    of_labels = cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    weights, each = taken.float(), []
    for row, place in taught.nonzero().tolist():
        q = batch["reference"][row, batch["words"][row, place] - 1]
        if not q.isnan().any():
            p, q = (logits[row, place] / 2).log_softmax(-1), (q / 2).log_softmax(-1)
            each.append((4 * (q.exp() * (q - p)).sum(), row == 1))
            weights[row, place] *= 0.7
    assert (weights == 1).any()  # words beyond those that the teacher reads
    expected = (weights * of_labels).sum() + sum(part if alone else 0.3 * part for part, alone in each)
    torch.testing.assert_close(lesson.total({"logits": logits}, batch), expected, atol=1e-4, rtol=1e-4)
    alone = sum(alone for _, alone in each)
    assert lesson.weight(batch) == taken.sum() + alone
    assert lesson.weight(prepared.collator([without_labels(row) for row in (rows[0], rows[first + 2])])) == 0
    of_tokens = np.eye(2, 5, dtype=np.float32)
    for last in (False, True):  # at which token of a word the teacher has learned its tag
        (folder / "recipe.yaml").write_text(f"task: {{labelled_token: {'last' if last else 'all'}}}")
        teaching = TEACHERS[prepared.objective.taught](prepared.reads)
        assert teaching._of_words(["catdog"], [(0, 3), (3, 6)], of_tokens).tolist() == [of_tokens[int(last)].tolist()]
    validation = prepared.collator([prepared.rows["validation"][0]])
    assert "reference" not in validation and lesson.weight(validation) == (validation["labels"] != -100).sum()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "tags", "vectors"])
def test_a_student_of_texts_goes_on_after_a_kill(tiny_recipe, tmp_path, whole_and_killed, kind):
    if kind == "classes":
        data, files = labelled(tmp_path), str(tmp_path / "others.jsonl")
        folder = encoder(tmp_path, "AutoModelForSequenceClassification", **CLASSES)
        task = {"name": "sequence_classification", "max_length": 32}
    elif kind == "vectors":
        data = {"files": str(pairs(tmp_path / "pairs.jsonl", 40)), "validation_fraction": 0.25}
        files = str(pairs(tmp_path / "more.jsonl", 24, seed=1))
        folder = encoder(tmp_path, "AutoModel")
        task = {"name": "sentence_similarity", "text_pair_field": "other", "label_range": [0, 5], "max_length": 64}
    if kind == "tags":
        recipe = taught_tags(tiny_recipe, tmp_path)[-1]
    else:
        recipe = task_with_teacher(tiny_recipe, tmp_path, task, folder, data, files=files)
    whole, _ = whole_and_killed(4, recipe)
    logged = [line for line in lines_of(whole) if "teacher_loss" in line]
    assert len(logged) == 6 and logged[-1]["teacher_loss"] < logged[0]["teacher_loss"]
    assert sum("labels_loss" in line for line in logged) > 3


@pytest.mark.slow
def test_a_masked_student_asks_its_teacher_of_what_is_hidden_anew(tiny_recipe, tmp_path, whole_and_killed):
    folder = encoder(tmp_path, "AutoModelForMaskedLM", max_position_embeddings=64)
    recipe = tiny_recipe(
        model={"family": "encoder", "hidden_size": 16, "num_key_value_heads": 4, "hidden_dropout": 0.0},
        tokenizer={"name_or_path": str(folder)},
        data={"files": str(reviews(tmp_path / "texts.jsonl", 60))},
        objective={"name": "masked"},
        teacher={"name_or_path": str(folder), "weight": 1.0},
        training={"max_steps": 12},  # past the end of an epoch
        evaluation={"metrics": []},
    )
    whole, _ = whole_and_killed(8, recipe)
    logged = [line["teacher_loss"] for line in lines_of(whole) if "teacher_loss" in line]
    assert len(logged) == 12 and sum(logged[-3:]) < sum(logged[:3])


def test_a_teacher_reads_no_more_than_it_has_positions_for_and_other_reading_gives_other_answers(tmp_path):
    folder, identities = encoder(tmp_path, "AutoModel", max_position_embeddings=48), []
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": None}))
    (folder / "1_Pooling").mkdir()
    for first in (True, False):
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": first}))
        teacher = Teacher(str(folder), "AutoModel")
        identities.append(teacher.identity)
    assert teacher.tokenizer.model_max_length == 48 and identities[0] != identities[1]


def test_vectors_longer_than_the_models_are_their_principal_components():
    draw = np.random.default_rng(0)
    flat = draw.normal(size=(50, 3)) @ np.linalg.qr(draw.normal(size=(8, 8)))[0][:3]  # of three dimensions in eight
    found = principal(flat, 3)
    assert found.shape == (50, 3) and np.allclose(found @ found.T, flat @ flat.T)  # equal angles and lengths
    assert principal(flat, 8) is flat


# ------------------------------------------------------------------------------------------------------ mistakes


def refused(path, *overrides) -> str:
    with pytest.raises(UserError) as caught:
        prepare_data(load_recipe(path, overrides), for_training=True)
    return str(caught.value)


REFUSED = {
    "teacher.name_or_path=runs/missing": "teacher.name_or_path=runs/missing: no such folder",
    "teacher.stored=true teacher.top_k=258": "teacher.top_k=258 must be below the 258 entries of the tokenizer",
    "teacher.top_k=5": "teacher.top_k=5 has no effect without teacher.stored=true",
    "teacher.files=a.csv": "teacher.files has no effect with objective.name=causal",
    "teacher.weight=0": "teacher.weight=0.0 must be above 0",
    "objective.name=fill_in_the_middle evaluation.metrics=[]": "teacher does not go with objective.name=fill_in_the",
    "objective={name: masked, sequence_length: 48} evaluation.metrics=[]": "has not learned to fill in masks; take a",
    "objective={name: distillation}": "did you mean teacher.name_or_path?",
    "tokenizer={type: byte_bpe, vocab_size: 300}": "has another tokenizer: 258 entries, of which",
}


def test_mistakes_are_one_sentence_before_any_work(student, teacher, tiny_recipe, tmp_path):
    recipe = student()
    for overrides, said in REFUSED.items():
        assert said in refused(recipe, *re.split(r" (?=\w+\.)", overrides)), overrides
    masked = ["objective={name: masked, sequence_length: 48}", "model={family: encoder}", "tokenizer={vocab_size: 300}"]
    masked.append("evaluation.metrics=[]")
    assert "is a AnyformerDecoderForCausalLM; this objective takes a teacher with the head" in refused(recipe, *masked)
    assert "teacher.stored=true has no effect with objective.name=masked" in refused(
        recipe, *masked, "teacher.stored=true"
    )
    (teacher / "model.safetensors").unlink()
    assert "holds no model.safetensors" in refused(recipe)
    folder = encoder(tmp_path, "AutoModelForSequenceClassification", "classes", num_labels=3)
    task = {"name": "sequence_classification", "max_length": 32}
    path = task_with_teacher(tiny_recipe, tmp_path, task, folder, labelled(tmp_path))
    assert "tells LABEL_0, LABEL_1, LABEL_2 apart, but the classes are LABEL_0, LABEL_1" in refused(path)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [False, True])
def test_of_several_sources_each_has_its_loss_beside_that_of_the_teacher(student, text_file, command, tmp_path, stored):
    other, lines = tmp_path / "other.jsonl", text_file.read_text().splitlines(keepends=True)
    other.write_text("".join(lines[:3]))
    sources = [{"files": str(text_file), "name": "all", "max_documents": 3}, {"files": str(other), "name": "few"}]
    data = {"files": None, "mixture": sources, "max_documents": None}
    recipe = student(data=data, teacher={"stored": stored}, training={"max_steps": 3})
    assert command("train", recipe) == 0
    parts = {"teacher_loss", "labels_loss", "loss_all", "loss_few"}
    logged = [line for line in lines_of(tmp_path / "run") if "teacher_loss" in line]
    assert len(logged) == 3 and parts <= {name for line in logged for name in line}


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(student, command, tmp_path):
    from processes import logged_losses
    from test_distributed import assert_close, rank_main, run_ranks

    for stored in ("false", "true"):
        recipe, set = student(training={"max_steps": 8}), f"teacher.stored={stored}"
        alone, both = tmp_path / f"alone-{stored}", tmp_path / f"both-{stored}"
        doubled = "training.gradient_accumulation_steps=2"
        assert command("train", recipe, set, doubled, f"training.output_dir={alone}") == 0
        shutil.rmtree(tmp_path / "anyformer-cache" / "teacher", ignore_errors=True)  # made by the first process alone
        both.mkdir()
        run_ranks(2, rank_main, command, recipe, set, f"training.output_dir={both / 'run'}", folder=both)
        assert_close(logged_losses(both / "run"), logged_losses(alone))
