"""Laws of minimal pairs: scores in batches are those of one text at a time, and ties are no points."""

import json

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.likelihoods.minimal_pairs import is_right, open_pairs, share_right, shares_of_groups
from anyformer.pipelines.likelihoods.whole_texts import check_texts, text_scores
from anyformer.pipelines.recipes.schema import MinimalPairsSettings
from family_variants import a_share
from run_folders import facts_of
from task_data import write_lines
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import anyformer

EXACT = 1e-10  # float64, sums in another order
TEXTS = ["the film was good", "a story", "the film was goods", "actors", "a very long story about two bad actors"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def tokenizer_of(framed: bool):
    """WordPiece with several tokens for most words; with CLS and SEP around a text, or nothing."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>"]
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=44, special_tokens=special))
    if framed:
        around = [("[CLS]", 2), ("[SEP]", 3)]
        backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]", "bos_token": "<s>"}
    names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def model_of(kind: str, vocabulary: int):
    torch.manual_seed(0)
    common = {"vocab_size": vocabulary, "max_position_embeddings": 64}
    if kind == "bert":
        return BertForMaskedLM(BertConfig(**common, **SIZES)).double().eval()
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=2)).double().eval()
    if kind == "encoder":
        config = anyformer.AnyformerEncoderConfig(**common, **SIZES)
        return anyformer.AnyformerEncoderForMaskedLM(config).double().eval()
    config = anyformer.AnyformerDecoderConfig(**common, **SIZES, mask_token_id=4)
    return anyformer.AnyformerDecoderForCausalLM(config).double().eval()


@torch.no_grad()
def one_at_a_time(model, tokenizer, text: str, score: str, add_bos: bool) -> float:
    """By the definition: one forward pass for each token."""
    writes, found = model.can_generate(), tokenizer(text)
    ids, words = found["input_ids"], found.word_ids()
    if writes and add_bos:
        ids, words = [tokenizer.bos_token_id, *ids], [None, *words]
    total = 0.0
    for at in range(1 if writes else 0, len(ids)):
        if words[at] is None:
            continue
        if score == "log_probability":
            logits = model(torch.tensor([ids[:at]])).logits[0, -1]
        else:
            hides = [at] + [k for k in range(at + 1, len(ids)) if words[k] == words[at]] * score.endswith("l2r")
            hidden = torch.tensor([[4 if k in hides else token for k, token in enumerate(ids)]])
            options = {"prefix_mask": torch.ones_like(hidden)} if writes else {}
            logits = model(hidden, **options).logits[0, at - writes]
        total += logits.log_softmax(-1)[ids[at]].item()
    return total


SCORED = [(kind, "log_probability") for kind in ("decoder", "gpt2")]
SCORED += [(kind, "pseudo_log_likelihood") for kind in ("decoder", "encoder", "bert")]
SCORED += [("bert", "pseudo_log_likelihood_l2r")]
# (kind, score, the most tokens of a batch, add_bos)
CASES = [(*scored, tokens, bos) for scored in SCORED for tokens in (1 << 14, 30) for bos in (True, False)]


@pytest.mark.parametrize("kind, score, tokens, add_bos", a_share(CASES, 5))
def test_scores_in_batches_are_those_of_one_text_at_a_time(kind, score, tokens, add_bos, monkeypatch):
    from anyformer.pipelines.likelihoods import whole_texts

    monkeypatch.setattr(whole_texts, "TOKENS", tokens)
    monkeypatch.setattr(whole_texts, "LOGITS", tokens * 64)
    tokenizer = tokenizer_of(framed=kind in ("encoder", "bert"))
    model = model_of(kind, len(tokenizer))
    texts = [*TEXTS, TEXTS[0]]
    found = text_scores(model, tokenizer, texts, score, add_bos)
    assert found == pytest.approx([one_at_a_time(model, tokenizer, text, score, add_bos) for text in texts], abs=EXACT)
    assert found[0] == found[-1] and len(set(found)) == len(TEXTS)


@pytest.mark.parametrize("kind, score", [("bert", "pseudo_log_likelihood"), ("gpt2", "log_probability")])
def test_texts_of_the_same_tokens_are_a_tie(kind, score, monkeypatch):
    """In single precision, each text in a batch of its own."""
    from anyformer.pipelines.likelihoods import whole_texts

    monkeypatch.setattr(whole_texts, "TOKENS", 1)
    tokenizer = tokenizer_of(framed=kind == "bert")
    model, asked = model_of(kind, len(tokenizer)).float(), []
    model.register_forward_hook(lambda module, args, kwargs, output: asked.append(1), with_kwargs=True)
    one = text_scores(model, tokenizer, ["a story"], score)
    passes = len(asked)
    assert text_scores(model, tokenizer, ["a story", "a  story"], score) == 2 * one
    assert len(asked) == 2 * passes  # not asked twice


@pytest.mark.parametrize(
    "kind, score, sentence",
    [
        ("bert", "log_probability", "score=log_probability is of models that write text"),
        ("gpt2", "pseudo_log_likelihood", "GPT2LMHeadModel has not learned to fill in masks"),
    ],
)
def test_a_score_that_a_model_has_not_learned_is_refused(kind, score, sentence):
    tokenizer = tokenizer_of(framed=True)
    with pytest.raises(UserError, match=sentence):
        text_scores(model_of(kind, len(tokenizer)), tokenizer, TEXTS, score)


def test_a_text_that_nothing_predicts_is_refused_where_it_would_be_certain():
    tokenizer = tokenizer_of(framed=False)
    model = model_of("gpt2", len(tokenizer))
    assert text_scores(model, tokenizer, ["a"])[0] < 0
    for ask in (text_scores, check_texts):
        with pytest.raises(UserError, match=r"'a' is one token, .* add_bos=true"):
            ask(model, tokenizer, ["a story", "a"], add_bos=False)


@pytest.mark.parametrize("kind, add_bos", [("gpt2", True), ("gpt2", False), ("bert", True)])
def test_a_text_longer_than_the_model_reads_is_refused(kind, add_bos):
    tokenizer = tokenizer_of(framed=kind == "bert")
    model = model_of(kind, len(tokenizer))
    most = 64 - 2 * (kind == "bert") + (kind == "gpt2" and not add_bos)
    model.config.max_position_embeddings = 64
    check_texts(model, tokenizer, ["a " * most], add_bos=add_bos)
    for ask in (text_scores, check_texts):
        with pytest.raises(UserError, match=r"has 65 tokens, and the model reads 64; shorten it"):
            ask(model, tokenizer, ["a story", "a " * (most + 1)], add_bos=add_bos)


PAIRS = [
    {"good": f"The cat number {n} {words[0]}.", "bad": f"The cat number {n} {words[1]}."}
    | {"phenomenon": f"kind {n % 3}", "UID": n}
    for n in range(12)
    for words in [("sleeps", "sleep") if n % 4 else ("walk", "walks")]
]


def test_a_tie_is_no_point_and_shares_of_groups_add_up(tmp_path):
    pairs = open_pairs(MinimalPairsSettings(files=str(write_lines(tmp_path / "pairs.jsonl", PAIRS))))
    right = [is_right(scores) for scores in [(-1.0, -2.0), (-2.0, -1.0), (-1.0, -1.0)] * 4]
    assert right == [True, False, False] * 4
    of_groups = shares_of_groups(pairs, right)
    shares = {name: row["share"] for name, row in of_groups["phenomenon"].items()}
    assert shares == {"kind 0": 1, "kind 1": 0, "kind 2": 0}
    assert share_right(right)["share"] == 1 / 3 and len(of_groups["UID"]) == 12
    assert share_right(right)["low"] < 1 / 3 < share_right(right)["high"]
    path = write_lines(tmp_path / "null.jsonl", [PAIRS[0] | {"phenomenon": None}, *PAIRS[1:]])
    of_groups = shares_of_groups(open_pairs(MinimalPairsSettings(files=str(path))), right)
    assert list(of_groups["phenomenon"]) == ["kind 1", "kind 2", "kind 0"]  # a pair of no group is in none
    path = write_lines(tmp_path / "none.jsonl", [PAIRS[0], {"good": "a", "bad": "b"}])
    with pytest.raises(UserError, match=r"minimal_pairs.files: .*none.jsonl, line 2 has no column 'phenomenon'"):
        open_pairs(MinimalPairsSettings(files=str(path)))


def test_some_pairs_are_spread_over_all_and_columns_have_any_name(tmp_path):
    rows = [{"yes": row["good"], "no": row["bad"], "rule": row["phenomenon"]} for row in PAIRS]
    path = tmp_path / "pairs.csv"
    path.write_text("yes,no,rule\n" + "".join(",".join(row.values()) + "\n" for row in rows))
    named = {"files": str(path), "good_field": "yes", "bad_field": "no", "group_fields": ["rule"]}
    pairs = open_pairs(MinimalPairsSettings(**named, max_pairs=4))
    assert pairs.good == [row["yes"] for row in rows[::3]] and pairs.groups == {"rule": ["kind 0"] * 4}
    for wrong, sentence in [({"bad_field": "nein"}, "bad_field=nein"), ({"group_fields": ["rules"]}, "mean rule")]:
        with pytest.raises(UserError, match=sentence):
            open_pairs(MinimalPairsSettings(**named | wrong))


@pytest.mark.parametrize("learned, score", [("causal", "log_probability"), ("masked", "pseudo_log_likelihood")])
def test_validations_measure_pairs_and_the_command_measures_the_same(tmp_path, tiny_recipe, command, learned, score):
    """The share of each validation stands in the log, chooses the best model, and is that of the saved one."""
    file = write_lines(tmp_path / "pairs.jsonl", PAIRS)
    evaluation = {"metrics": ["perplexity"], "every_steps": 3, "best_metric": "minimal_pairs"}
    evaluation["minimal_pairs"] = {"files": str(file)}
    model = {"family": "encoder", "num_key_value_heads": None} if learned == "masked" else {}
    training = {"max_steps": 9, "learning_rate": 0.02, "save_steps": 3}
    recipe = tiny_recipe(model=model, objective={"name": learned}, evaluation=evaluation, training=training)
    assert command("train", recipe) == 0
    run = recipe.parent / "run"
    facts = facts_of(run)
    shares = [entry["minimal_pairs"] for entry in facts["validations"]]
    assert len(shares) == 3 and shares.index(max(shares)) == facts["best_step"] // 3 - 1
    assert facts["metrics"]["validation_minimal_pairs"] == max(shares) and "test_minimal_pairs" not in facts["metrics"]

    answers = tmp_path / "answers.jsonl"
    assert command("evaluate", run, file, "--predictions", answers) == 0
    found = json.loads((run / "evaluation-pairs.json").read_text())
    assert (found["share"], found["score"], found["pairs"]) == (max(shares), score, 12)
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert sum(line["good_score"] > line["bad_score"] for line in lines) / 12 == max(shares)


def test_the_shipped_suite_and_its_mistakes(tmp_path, tiny_recipe, command, capsys):
    from anyformer.pipelines.evaluation.request import is_pairs, pairs_request

    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    pairs = write_lines(tmp_path / "pairs.jsonl", PAIRS)
    assert is_pairs("blimp") and not is_pairs("sentences") and not is_pairs("quickstart")
    _, name, settings = pairs_request(str(tmp_path), "blimp", ["minimal_pairs.files=x.jsonl"], 10)
    assert (name, settings.files, settings.dataset, settings.max_pairs) == ("blimp", "x.jsonl", None, 10)
    for wrong, sentence in [
        ("minimal_pairs.file=x", "did you mean minimal_pairs.files"),
        ("data.files=x", "minimal_pairs.KEY=VALUE"),
        ("minimal_pairs.files=x", "no such file"),
    ]:
        assert command("evaluate", tmp_path, "blimp", wrong) == 2
        assert sentence in capsys.readouterr().err
    for evaluation, sentence in [
        ({"minimal_pairs": {}}, "needs files or dataset"),
        ({"best_metric": "minimal_pairs", "every_steps": 3}, "not measured during training"),
        ({"minimal_pairs": {"files": str(pairs), "score": "pseudo_log_likelihood"}}, "has not learned to fill in"),
    ]:
        assert command("train", tiny_recipe(evaluation=evaluation)) == 2
        assert sentence in capsys.readouterr().err and not (tmp_path / "run" / "metrics.jsonl").exists()
