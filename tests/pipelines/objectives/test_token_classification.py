"""Laws of tagged words: each tag stands at its word's token, nothing is lost uncounted, entities are seqeval's."""

import json
from itertools import product

import datasets
import pytest
import torch
import transformers
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.metrics import METRICS
from anyformer.pipelines.objectives.tagged_words import TaggedWords, word_of_each_token
from family_variants import a_share
from hypothesis import given
from hypothesis import strategies as st
from task_data import CHARACTERS, on_rows, tagged, task_recipe, write_lines

KIND = "token_classification"
TOKENIZERS = {
    "byte_bpe": {"type": "byte_bpe", "vocab_size": 300},
    "wordpiece": {"type": "wordpiece", "vocab_size": 60},
    "unigram": {"type": "unigram", "vocab_size": 40},
    "char": CHARACTERS,
}
# Letters of the training text, signs and letters of several bytes; of a format sign alone WordPiece leaves nothing.
WORDS = st.lists(st.text(st.sampled_from("abeot.,-'éß日\u200b"), min_size=1, max_size=6), min_size=1, max_size=12)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(words=WORDS, data=st.data(), longest=st.sampled_from([8, 48]), at=st.sampled_from(["first", "last", "all"]))
def test_each_words_tag_stands_at_its_token_and_what_is_lost_is_counted(tokenized, kind, words, data, longest, at):
    tokenizer, known = tokenized[kind].tokenizer, tokenized[kind].labels
    tags = data.draw(st.lists(st.integers(0, 3), min_size=len(words), max_size=len(words)))
    batch = TaggedWords(tokenizer, longest, known, at).encode([(words, [known.names[tag] for tag in tags])])
    if not batch["input_ids"]:
        assert batch["facts"]["empty"] == 1 and not "".join(words).strip()
        return
    (ids,), (labels,), facts = batch["input_ids"], batch["labels"], batch["facts"]
    assert len(ids) == len(labels) <= longest
    assert facts["words"] + facts["words_cut"] + facts["words_without_token"] == len(words)
    assert facts["words_cut"] == 0 or len(ids) == longest
    assert kind == "wordpiece" or facts["words_without_token"] == 0
    offsets = tokenizer(" ".join(words), truncation=True, max_length=longest, return_offsets_mapping=True)
    of_tokens = word_of_each_token(words, offsets["offset_mapping"])
    found = [word for word in dict.fromkeys(of_tokens) if word is not None]
    assert found == sorted(found) and len(found) == facts["words"]
    for word in found:
        mine = [labels[place] for place, of in enumerate(of_tokens) if of == word]
        if at == "all":
            assert mine[0] == tags[word] and -100 not in mine
        else:
            place = 0 if at == "first" else len(mine) - 1
            assert mine == [-100] * place + [tags[word]] + [-100] * (len(mine) - 1 - place)
    assert all(label == -100 for label, word in zip(labels, of_tokens) if word is None)


def test_empty_sentences_are_skipped_and_counted(prepare, tmp_path):
    path = tagged(tmp_path / "rows.jsonl", 20)
    with path.open("a") as file:
        file.write('{"tokens": [], "tags": []}\n{"tokens": [" "], "tags": ["O"]}\n')
    prepared = prepare(**on_rows(tmp_path, path))
    assert len(prepared.rows["train"]) == 20
    assert "2 sentences without a word skipped" in prepared.reads.describe(prepared, prepared.rows["train"])
    assert len(list(prepared.reads.with_rows(prepared, prepared.sources["train"]))) == 20


GOOD = [{"tokens": ["anna", "runs"], "tags": ["B-PER", "O"]}] * 8
MISTAKES = {
    "lengths": ([*GOOD, {"tokens": ["a"], "tags": ["O", "O"]}], {}, r"line 9 holds 2 tags for 1 word of task.tokens_f"),
    "text": ([{"tokens": "anna runs", "tags": ["O"]}], {}, r"tokens_field='tokens': .*line 1 holds str, not a list of"),
    "no-word": ([{"tokens": ["a", None], "tags": ["O", "O"]}], {}, r"line 1, word 2 is null, not text"),
    "no-tags": ([{"tokens": ["a"], "tags": None}], {}, r"tags_field='tags': .*line 1 holds null, not a list of tags"),
    "no-tag": ([*GOOD, {"tokens": ["a"], "tags": [0.5]}], {}, r"line 9, tag 1 holds 0.5, which is no class"),
    "scheme": (GOOD, {"scheme": "bioes", "label_names": ["O", "B-PER", "X"]}, "scheme=bioes: 'X' is no tag of it"),
    "numbers": ([{"tokens": ["a", "b"], "tags": [0, 1]}] * 4, {}, r"'entity_f1' counts entities, but the tags LABEL_0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_tagged_words_is_one_sentence_before_training(name, refused):
    metric = "entity_f1" if name == "numbers" else "tag_accuracy"
    if METRICS[metric].missing() is not None:
        pytest.skip("the extra `metrics` is not installed")
    refused(*MISTAKES[name], evaluation={"every_steps": None, "metrics": [metric]})


@pytest.mark.skipif(METRICS["entity_f1"].missing() is not None, reason="the extra `metrics` is not installed")
@pytest.mark.parametrize("side", ["left", "right"])
def test_entities_of_padded_batches_are_seqevals_of_the_sentences(prepare, side):
    import seqeval.metrics

    metrics = ["entity_f1", "entity_precision", "entity_recall", "tag_accuracy"]
    data = prepare(tokenizer=CHARACTERS, evaluation={"metrics": metrics})
    data.tokenizer.padding_side = side
    rows, names, scores, every = data.rows["test"], data.labels.names, data.scores(), []
    collate, given, true = data.collator, [], []
    for start in range(0, len(rows), 4):
        batch = collate([rows[i] for i in range(start, min(start + 4, len(rows)))])
        labels, mask = batch["labels"], batch.get("attention_mask", torch.ones_like(batch["labels"]))
        assert (labels[mask == 0] == -100).all()
        right = torch.nn.functional.one_hot(labels.clamp_min(0), len(names))
        logits = torch.randn(*labels.shape, len(names)) + 2 * right
        every.append(scores.predictions(logits, labels))
        for row, best in zip(labels, logits.argmax(-1)):
            true.append([names[label] for label in row if label >= 0])
            given.append([names[tag] for tag, label in zip(best, row) if label >= 0])
    found = scores.scored(torch.cat(every).numpy()).values
    for name in ("f1", "precision", "recall"):
        assert found[f"entity_{name}"] == getattr(seqeval.metrics, f"{name}_score")(true, given)
    assert found["tag_accuracy"] == seqeval.metrics.accuracy_score(true, given)
    assert 0 < found["entity_f1"] < 1


def test_entities_are_the_main_metric_where_tags_mark_some(prepare, tmp_path):
    logits, labels = torch.eye(4)[torch.tensor([[0, 1, 2, 3]])], torch.tensor([[0, 1, 2, 3]])
    marked = prepare(tokenizer=CHARACTERS).scores()
    assert next(iter(marked.scored(marked.predictions(logits, labels).numpy()).values)) == "entity_f1"
    rows = [{"tokens": ["a", "b", "c", "d"], "tags": ["NOUN", "VERB", "ADJ", "DET"]}] * 8
    plain = prepare(**on_rows(tmp_path, rows)).scores()
    assert plain.scored(plain.predictions(logits, labels).numpy()).values == {"tag_accuracy": 1.0}


SPELLED = {  # scheme -> marks of an entity of one word, and of the first, middle and last of several
    "bio": "BBII",
    "io": "IIII",
    "bioes": "SBIE",
    "bilou": "UBIL",
    "bmes": "SBME",
    "bmewo": "WBME",
}
FORMS = ["{mark}-{kind}", "{mark}_{kind}", "{kind}-{mark}", "{kind}_{mark}"]


@pytest.mark.parametrize("scheme, form", a_share(product(SPELLED, FORMS), 5))
def test_every_scheme_and_spelling_of_the_same_entities_is_learned_and_measured_alike(scheme, form, prepare, tmp_path):
    sentences = [[("creative-work", 3), ("", 1), ("PER", 1)], [("PER", 2), ("", 2), ("LOC", 1)], [("", 1), ("LOC", 4)]]

    def rows(scheme, form):
        one, first, middle, last = SPELLED[scheme]
        for sentence in sentences * 6:
            tags = []
            for kind, length in sentence:
                marks = [one] if length == 1 else [first, *[middle] * (length - 2), last]
                tags += [form.format(mark=mark, kind=kind) for mark in marks] if kind else ["O"] * length
            yield {"tokens": [f"w{i}" for i in range(len(tags))], "tags": tags}

    found = []
    for number, spelling in enumerate([(scheme, form), ("io" if scheme == "io" else "bio", FORMS[0])]):
        sections = on_rows(tmp_path, write_lines(tmp_path / f"{number}.jsonl", rows(*spelling)))
        data = prepare(**sections)
        scores, train = data.scores(), data.rows["train"]
        said = data.reads.describe(data, train)
        assert f"tags: {spelling[0]}" in said and "no such scheme" not in said
        labels = torch.nn.utils.rnn.pad_sequence([row["labels"] for row in train], True, -100)
        names = data.labels.names
        torch.manual_seed(0)
        noise = {name: torch.randn(labels.shape) for name in sorted(names)}
        logits = torch.stack([noise[name] + 2 * (labels == i) for i, name in enumerate(names)], -1)
        found.append((sorted(names), scores.scored(scores.predictions(logits, labels).numpy()).values))
    assert found[0] == found[1] and 0 < found[0][1]["entity_f1"] < 1


@pytest.mark.parametrize("odd", ["X", "PER", "0", "-", "b-per"])
@pytest.mark.parametrize("others", [(), ("[CLS]", "[SEP]", "None", "?")], ids=["alone", "of five"])
def test_odd_tags_among_many_are_named_and_entities_are_still_measured(odd, others, prepare, tmp_path):
    rows = [json.loads(line) for line in tagged(tmp_path / "rows.jsonl", 40).read_text().splitlines()]
    rows[7]["tags"][0] = odd
    rows += [{"tokens": ["w"], "tags": [other]} for other in others]
    data = prepare(**on_rows(tmp_path, rows))
    scores, said = data.scores(), data.reads.describe(data, data.rows["train"])
    number = "1 tag" if not others else "5 tags"
    assert "tags: bio, " in said and f"{number} of no such scheme, part of no entity: " in said and f"{odd!r} 1" in said
    labels = torch.tensor([[data.labels.names.index(tag) for tag in rows[7]["tags"]]])
    right = torch.nn.functional.one_hot(labels, len(data.labels.names)).float()
    scored = scores.scored(scores.predictions(right, labels).numpy())
    is_marked = any(tag[1:2] == "-" and tag != odd for tag in rows[7]["tags"])
    assert scored.values == {"entity_f1": float(is_marked), "tag_accuracy": 1}
    report = scores._judged_classes(scored.judged)
    assert {one["name"] for one in report["classes"]} <= {"PER", "LOC"}


def test_a_report_on_tags_counts_entities_by_type_and_shows_the_word_in_its_sentence(prepare):
    data = prepare(tokenizer=CHARACTERS)
    scores, rows = data.scores(), data.rows["test"]
    assert data.labels.names == ["B-LOC", "B-PER", "I-PER", "O"]
    every = []
    for number in range(len(rows)):
        labels = rows[number]["labels"][None]
        wrong = torch.where(labels >= 0, 3, labels).clamp_min(0)  # every word is called O
        every.append(scores.predictions(torch.nn.functional.one_hot(wrong, 4).float(), labels))
    scored = scores.scored(torch.cat(every).numpy())
    report = scores.class_report(scored, rows, range(len(rows)), data.sources["test"])
    assert [one["name"] for one in report["classes"]] == ["LOC", "PER"] and report["unit"] == "words"
    places = sum(int((rows[number]["labels"] == 0).sum()) for number in range(len(rows)))  # but for those cut off
    assert report["matrix"]["names"] == ["LOC", "PER", "O"] and report["matrix"]["counts"][0] == [0, 0, places]
    sentences = {place: row for place, row in data.sources["test"]}
    for one in report["mistakes"]:
        before, word, _ = one["text"].replace("]]", "[[").split("[[")
        row = sentences[one["place"]]
        # the characters of a text without spaces are as many as those of its words
        at = len("".join(before.split()))
        place = next(n for n in range(len(row["tokens"])) if sum(map(len, row["tokens"][:n])) == at)
        assert row["tokens"][place].startswith("".join(word.split())) and word  # the last one may be cut
        assert (one["true"], one["given"]) == (row["tags"][place], "O")


def test_a_tagger_learns_and_a_pipeline_finds_its_entities(tmp_path, command, capsys):
    recipe = task_recipe(
        tmp_path,
        "token_classification",
        tokenizer={"vocab_size": 330},  # names are one token
        training={"max_steps": 100, "learning_rate": 0.01},
        evaluation={"every_steps": 50, "metrics": ["tag_accuracy"], "best_metric": "tag_accuracy"},
    )
    assert command("train", recipe) == 0
    run, printed = tmp_path / "run", capsys.readouterr().out
    metrics = json.loads((run / "run.json").read_text())["metrics"]
    assert metrics["test_tag_accuracy"] > 0.95 and f"anyformer predict {run} FILE" in printed

    tag = transformers.pipeline("token-classification", str(run), aggregation_strategy="first")
    found = tag("the film with anna maria was long and in paris")
    assert [(one["entity_group"], one["word"].strip()) for one in found] == [("PER", "anna maria"), ("LOC", "paris")]
    assert "token-classification" in (run / "README.md").read_text()
    assert command("preview", recipe) == 0
    assert "/B-PER" in capsys.readouterr().out


SENTENCES = [  # entities of one to three words, none of them a single token; neighbours of one type and of two
    [("PER", "alexandra de quentin"), ("", "flew to"), ("LOC", "buenos aires")],
    [("", "in"), ("LOC", "rome"), ("PER", "maria otto"), ("PER", "anna"), ("", "were seen")],
    [("LOC", "buenos aires"), ("LOC", "rome"), ("", "and so on")],
    [("", "we met"), ("PER", "anna"), ("", "and"), ("PER", "alexandra quentin")],
]
WORD_PIECES, BYTES = {"type": "wordpiece", "vocab_size": 60}, {"type": "byte_bpe", "vocab_size": 290}


def bioes(kind: str, words: list[str]) -> list[str]:
    if not kind:
        return ["O"] * len(words)
    marks = ["S"] if len(words) == 1 else ["B", *["I"] * (len(words) - 2), "E"]
    return [f"{mark}-{kind}" for mark in marks]


@pytest.mark.parametrize(
    "tokenizer, labelled, strategy",
    [
        pytest.param(WORD_PIECES, "first", "first", marks=pytest.mark.slow),
        pytest.param(CHARACTERS, "first", "first", marks=pytest.mark.slow),
        (BYTES, "all", "simple"),
    ],
    ids=["wordpiece", "characters", "all"],
)
def test_a_pipeline_finds_entities_of_several_tokens_by_the_strategy_of_the_labelled_tokens(
    tmp_path, command, capsys, tokenizer, labelled, strategy
):
    """Learned by heart, of bioes tags, which no pipeline knows."""
    rows = []
    for sentence in SENTENCES:
        parts = [(kind, text.split()) for kind, text in sentence]
        tokens = [word for _, words in parts for word in words]
        rows.append({"tokens": tokens, "tags": [tag for part in parts for tag in bioes(*part)]})
    path = write_lines(tmp_path / "bioes.jsonl", rows * 2)
    recipe = task_recipe(
        tmp_path,
        "token_classification",
        tokenizer=tokenizer,
        data={"files": str(path), "test_files": None, "validation_fraction": 0.0},
        task={"labelled_token": labelled},
        training={"max_steps": 60, "learning_rate": 0.02, "save_steps": 60},
        evaluation={"every_steps": None},
    )
    assert command("train", recipe) == 0
    run, printed = tmp_path / "run", capsys.readouterr().out
    assert "tags: bioes, learned as bio" in printed

    tag = transformers.pipeline("token-classification", str(run), aggregation_strategy=strategy)
    for sentence in SENTENCES:
        text = " ".join(text for _, text in sentence)
        found = [(entity["entity_group"], text[entity["start"] : entity["end"]].strip()) for entity in tag(text)]
        assert found == [(kind, words) for kind, words in sentence if kind]
    # The model's classes are of bio, those of the data of bioes.
    assert command("evaluate", run, f"data.validation_files={path}", "data.test_files=null") == 0
    assert json.loads(next(run.glob("evaluation-*.json")).read_text())["metrics"]["tag_accuracy"] == 1


def test_spaces_that_are_tokens_are_inside_entities_that_go_on(prepare, tmp_path):
    """In training alone: a pipeline takes them for words, and an evaluation counts words."""
    rows = [{"tokens": ["in", "rom", "anna", "maria", "otto"], "tags": ["O", "B-LOC", "B-PER", "I-PER", "B-PER"]}] * 8
    data = {"files": str(write_lines(tmp_path / "rows.jsonl", rows)), "test_files": None, "validation_fraction": 0.25}
    prepared = prepare(data=data, tokenizer=CHARACTERS)
    names = prepared.labels.names
    for split, spaces in (("train", ["O", "O", "I-PER", "O"]), ("validation", [None] * 4)):
        row = prepared.rows[split][0]
        text = prepared.tokenizer.convert_ids_to_tokens(row["input_ids"].tolist())
        tags = [names[label] if label >= 0 else None for label in row["labels"].tolist()]
        assert [tag for token, tag in zip(text, tags) if token == " "] == spaces
        assert len([tag for tag in tags if tag is not None]) == 5 + sum(tag is not None for tag in spaces)


def test_numbers_of_bioes_tags_are_read_by_their_names_and_learned_as_bio(prepare, tmp_path):
    names = ["O", "S-PER", "B-PER", "I-PER", "E-PER"]
    features = {"tokens": datasets.Sequence(datasets.Value("string"))}
    features = datasets.Features(features | {"tags": datasets.Sequence(datasets.ClassLabel(names=names))})
    row = {"tokens": ["anna", "by", "anna", "de", "rom"], "tags": [1, 0, 2, 3, 4]}
    datasets.Dataset.from_list([row] * 20, features=features).to_parquet(tmp_path / "data" / "train.parquet")
    sections = on_rows(tmp_path, [])
    sections["data"] |= {"dataset": str(tmp_path / "data"), "files": None}
    for task in ({}, {"label_names": names}, {"label_names": names, "class_weights": [1, 2, 3]}):
        fields = (prepared := prepare(**sections | {"task": task})).learns().config_fields()
        assert list(fields["id2label"].values()) == ["O", "B-PER", "I-PER"]
        assert fields["label2id"] == {"O": 0, "B-PER": 1, "I-PER": 2}
        assert dict(prepared.rows["train"].facts["tags"])["B-PER"] == 40
    with pytest.raises(UserError, match="must be 3 numbers, for O, B-PER, I-PER"):
        prepare("task.class_weights=[1, 1, 1, 1, 1]", **sections)


def test_decoders_tag_words_at_their_last_token(tmp_path, command, capsys):
    model, task = {"family": "decoder"}, {"labelled_token": "last"}
    recipe = task_recipe(tmp_path, "token_classification", model=model, task=task)
    assert command("train", recipe, "--dry-run") == 0
    assert "gradients finite" in capsys.readouterr().out
