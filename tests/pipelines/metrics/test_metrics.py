"""Laws of the metrics: the numbers of scikit-learn, scipy and sacrebleu, through evaluate's interface, offline."""

import importlib.util
import math
import re
import unicodedata

import evaluate
import pytest
import sacrebleu
import scipy.stats
import sklearn.metrics
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.metrics import AVERAGES, METRICS, check_metrics, compute_metrics, load_metric
from anyformer.pipelines.recipes.compose import load_recipe
from hypothesis import given, settings
from hypothesis import strategies as st
from task_data import task_recipe
from test_comparison import examples_of

import anyformer

OF_TWO = [name for name, row in METRICS.items() if row.two_classes]
COMPARED = [name for name, row in METRICS.items() if row.load is not None and row.missing() is None]
few = settings(max_examples=8, deadline=None)


def pairs(values, **kwargs):
    """(predictions, references) of equal length."""
    return st.lists(st.tuples(values, values), min_size=1, **kwargs).map(lambda rows: tuple(map(list, zip(*rows))))


numbers = st.integers(-1000, 1000).map(lambda i: i / 8)
words = st.lists(st.sampled_from(["the", "a", "cat", "dog", "sits", "on", "Mat", "mat", "."]), min_size=1, max_size=9)
texts = words.map(" ".join)


def value(name, predictions, references, **kwargs) -> float:
    result = load_metric(name, **kwargs).compute(predictions=predictions, references=references)
    assert set(result) == {name} and type(result[name]) is float
    return result[name]


@few
@given(pairs(st.integers(0, 3)))
def test_class_metrics_are_scikit_learns(rows):
    predictions, references = rows
    assert value("accuracy", *rows) == sklearn.metrics.accuracy_score(references, predictions)
    assert value("matthews_correlation", *rows) == sklearn.metrics.matthews_corrcoef(references, predictions)
    for name in ("f1", "precision", "recall"):
        function = getattr(sklearn.metrics, f"{name}_score")
        for average in filter(None, AVERAGES):
            expected = function(references, predictions, average=average, zero_division=0)
            assert value(f"{name}_{average}", *rows) == expected
            assert load_metric(name).compute(predictions=predictions, references=references, average=average) == {
                name: expected
            }


@few
@given(pairs(numbers, max_size=20))
def test_correlations_are_scipys_and_nan_where_there_is_none(rows):
    for name, function in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
        found = value(name, *rows)
        if min(len(set(column)) for column in rows) == 1:
            assert math.isnan(found)
        else:
            assert found == pytest.approx(function(*rows).statistic, abs=1e-12)


@few
@given(pairs(texts))
def test_text_metrics_are_sacrebleus(rows):
    predictions, references = rows
    lowercase = sacrebleu.corpus_bleu(predictions, [references], lowercase=True).score
    assert value("bleu_lowercase", *rows) == lowercase
    assert value("exact_match", *rows) == sum(p == r for p, r in zip(*rows)) / len(predictions)


@few
@given(st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=1))
def test_several_references_may_be_given_and_not_equally_many(rows):
    predictions, references = map(list, zip(*rows))
    streams = [[r[i] if i < len(r) else None for r in references] for i in range(max(map(len, references)))]
    assert value("bleu", predictions, references) == sacrebleu.corpus_bleu(predictions, streams).score
    assert value("chrf", predictions, references) == sacrebleu.corpus_chrf(predictions, streams).score
    assert value("exact_match", predictions, references) == sum(p in r for p, r in rows) / len(rows)


@pytest.mark.skipif(METRICS["rouge1"].missing() is not None, reason="the extra `metrics` is not installed")
def test_rouge_is_the_mean_of_the_best_references():
    predictions, references = ["the cat sat", "a dog"], [["the cat", "a bird sat there"], ["a dog"]]
    assert value("rouge1", predictions, references) == pytest.approx((0.8 + 1) / 2)  # 2 of 3 and 2 of 2 words: 0.8
    assert value("rouge2", predictions, references) == pytest.approx((2 / 3 + 1) / 2)
    assert value("rougeL", predictions, references) == pytest.approx((0.8 + 1) / 2)


TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "E-LOC", "S-PER"]


@pytest.mark.skipif(METRICS["entity_f1"].missing() is not None, reason="the extra `metrics` is not installed")
@few
@given(st.lists(st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1), min_size=1))
def test_entities_are_counted_by_seqeval(sentences):
    import seqeval.metrics

    predictions, references = ([[pair[i] for pair in pairs] for pairs in sentences] for i in (0, 1))
    for name in ("f1", "precision", "recall"):
        expected = getattr(seqeval.metrics, f"{name}_score")(references, predictions, zero_division=0)
        assert value(f"entity_{name}", predictions, references) == pytest.approx(expected, abs=1e-12)
    assert value("tag_accuracy", predictions, references) == seqeval.metrics.accuracy_score(references, predictions)


ANSWERS = [  # (given, right ones, exact match, F1), by hand from the rules of SQuAD's evaluate-v1.1.py and v2.0.py
    ("The Norman Dynasty!", ["norman dynasty"], 1, 1),
    ("in the 10th century", ["10th and 11th centuries", "in the 10th century"], 1, 1),
    ("the 10th century", ["10th and 11th centuries"], 0, 2 / 6),
    ("a b b", ["b b b"], 0, 4 / 5),  # words count as often as they occur; the article does not
    ("", [], 1, 1),
    ("something", [], 0, 0),
    ("", ["something"], 0, 0),
    ("well-known", ["wellknown"], 1, 1),
]


def test_answers_are_compared_as_squads_scripts_do():
    for answer, right, exact, f1 in ANSWERS:
        assert value("answer_exact_match", [answer], [right]) == exact, answer
        assert value("answer_f1", [answer], [right]) == pytest.approx(f1), answer
    answers, right, exact, f1 = zip(*ANSWERS)
    assert value("answer_f1", list(answers), list(right)) == pytest.approx(sum(f1) / len(f1))


def test_a_metric_whose_package_is_missing_names_the_extra(monkeypatch):
    from anyformer.pipelines.cli.listing import metric_rows

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"rouge1' needs the package rouge_score; install anyformer\[metrics\]"):
        check_metrics(["rouge1"], ["rouge1"], "task.name=translation")
    assert {name: text for name, _, text in metric_rows()}["rouge1"].endswith("install anyformer[metrics])")


def test_what_is_listed_can_be_used_by_an_objective():
    from anyformer.pipelines.plugins import OBJECTIVES

    used = {cls.compares for _, cls in OBJECTIVES.items()}
    assert [name for name, row in METRICS.items() if not any(map(row.fits, used))] == []


def test_bleu_says_how_it_was_computed():
    metric = load_metric("bleu_lowercase")
    assert metric.signature is None
    metric.compute(predictions=["a b c d"], references=["a b c d"])
    assert metric.signature.startswith("nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:")


@pytest.mark.parametrize("name", COMPARED)
def test_batches_added_are_the_whole_computed_once_and_nothing_is_written(name, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path / "cache")
    predictions, references = examples_of(METRICS[name].compares, 5).inputs(name)
    metric = load_metric(name)
    assert isinstance(metric, evaluate.Metric) and metric.description == METRICS[name].description
    for rows in (slice(0, 2), slice(2, 5)):
        metric.add_batch(predictions=predictions[rows], references=references[rows])
    first = metric.compute()
    assert first == {name: value(name, predictions, references)}
    assert metric.compute(predictions=predictions, references=references) == first  # a second use starts anew
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name, compares, sentence",
    [
        ("acuracy", "classes", "evaluation.metrics='acuracy' is not known; did you mean accuracy?"),
        ("bleu", "classes", "compares texts and is not for task.name=x; known: accuracy"),
        ("pearson", "texts", "compares numbers and is not for task.name=x; known: bleu, bleu_lowercase, chrf"),
        *((name, "classes", f"'{name}' is of two classes, here are 3; use {name}_macro") for name in OF_TWO),
    ],
)
def test_a_metric_that_does_not_fit_is_one_sentence_before_any_work(name, compares, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        check_metrics([name], [name for name, row in METRICS.items() if row.fits(compares)], "task.name=x", 3)


def test_an_unknown_metric_names_the_nearest():
    with pytest.raises(UserError, match=r"metric 'chrff' is not known; did you mean chrf\?"):
        load_metric("chrff")
    found = anyformer.load_metric("accuracy").compute(predictions=[1, 0, 1, 1], references=[1, 0, 0, 1])
    assert found == {"accuracy": 0.75}


SCRIPTS = {  # a text of four words or more, and a part of it
    "Hindi": ("भारत की राजधानी दिल्ली है।", "दिल्ली"),
    "Russian": ("Столица России — город Москва.", "город Москва"),
    "Arabic": ("عاصمة مصر هي القاهرة، أليس كذلك؟", "القاهرة"),
    "Persian": ("می‌خواهم به خانه بروم", "خانه بروم"),
    "Korean": ("대한민국의 수도는 서울 입니다.", "수도는 서울"),
    "Chinese": ("中国的首都是北京。", "北京"),
    "Japanese": ("日本の首都はトーキョーです。", "トーキョー"),
    "Thai": ("ประเทศไทยมีเมืองหลวง", "เมืองหลวง"),
    "Vietnamese": ("Thủ đô của nước này là Hà Nội", "Hà Nội"),
    "English": ("The capital of the country is London", "London"),
}
UNSPACED = ("Chinese", "Japanese", "Thai")


@pytest.mark.parametrize("language", SCRIPTS)
def test_a_text_of_any_script_is_equal_to_itself_and_like_a_part_of_itself(language, capsys):
    text, part = SCRIPTS[language]
    names = [name for name in ("rouge1", "rouge2", "rougeL") if METRICS[name].missing() is None]
    for prediction, low, high in ((text, 1, 1), (part, 0.01, 0.99), ("xyz", 0, 0)):
        found, _ = compute_metrics([*names, "exact_match"], [prediction], [text])
        found |= compute_metrics(["answer_f1", "answer_exact_match"], [prediction], [[text]])[0]
        for name, value in found.items():
            few = (name == "rouge2" and len(part.split()) < 2 and language not in UNSPACED) or name.endswith("_match")
            assert (0 if few else low) <= value <= high, (name, prediction)
            assert value == 1 or prediction != text
    for how in ("char", "none" if language not in UNSPACED else "char", "zh" if language == "Chinese" else "char"):
        found, signatures = compute_metrics(["bleu", "chrf"], [text], [text], tokenize=how)
        assert found == {"bleu": pytest.approx(100), "chrf": 100} and f"tok:{how}|" in signatures["bleu"]
    assert capsys.readouterr().out == ""
    number = len(SCRIPTS) + list(SCRIPTS).index(language)  # another one each time, as a line is printed once
    compute_metrics(["bleu"], [text] * number, ["a b", *[text] * (number - 1)])
    told = (
        f"bleu: {number - 1} of {number} references are of a script without spaces, not cut here; set evaluation.bleu_"
    )
    assert (told in capsys.readouterr().out) == (language in UNSPACED)


@few
@given(
    st.lists(
        st.tuples(st.text(st.characters(max_codepoint=127)), st.text(st.characters(max_codepoint=127))), min_size=1
    )
)
@pytest.mark.skipif(METRICS["rouge1"].missing() is not None, reason="the extra `metrics` is not installed")
def test_rouge_of_ascii_is_rouge_scores(rows):
    from rouge_score.rouge_scorer import RougeScorer

    for name in ("rouge1", "rouge2", "rougeL"):
        own = RougeScorer([name])
        expected = [own.score(reference, prediction)[name].fmeasure for prediction, reference in rows]
        assert value(name, *map(list, zip(*rows))) == pytest.approx(sum(expected) / len(rows), abs=1e-12)


def test_names_in_another_script_and_texts_cut_before_are_no_texts_without_spaces(capsys):
    compute_metrics(["bleu"], ["a", "b"], ["Tokyo (東京) is the capital of Japan (日本)", "我 喜欢 苹果 和 香蕉"])
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(METRICS["rouge1"].missing() is not None, reason="the extra `metrics` is not installed")
def test_a_word_is_the_same_in_composed_and_decomposed_letters():
    for text in ("Thủ đô của Việt Nam", "été à Nîmes", "대한민국의 수도"):
        assert value("rouge2", [unicodedata.normalize("NFD", text)], [unicodedata.normalize("NFC", text)]) == 1


@pytest.mark.parametrize(
    "how, kind, sentence",
    [
        ("ja-mecab", "translation", "evaluation.bleu_tokenize=ja-mecab needs the package MeCab; install sacrebleu"),
        ("zh", "sequence_classification", "evaluation.bleu_tokenize=zh has no effect, as no bleu is measured here"),
        ("thai", "translation", "evaluation.bleu_tokenize"),
    ],
)
def test_a_tokenizer_of_bleu_that_cannot_be_used_is_one_sentence(how, kind, sentence, tmp_path):
    if importlib.util.find_spec("MeCab") is not None and how == "ja-mecab":
        pytest.skip("the package is installed")
    with pytest.raises(UserError) as error:
        load_recipe(str(task_recipe(tmp_path, kind)), [f"evaluation.bleu_tokenize={how}"])
    assert sentence in str(error.value) and "\n" not in str(error.value)
