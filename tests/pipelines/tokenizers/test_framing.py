"""Laws of framing: what stands around a text, in every kind of tokenizer, loaded by transformers alone."""

from types import SimpleNamespace

import pytest
from anyformer.pipelines.data.token_store import framing_tokens
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.tokens import tokenizer_section
from anyformer.pipelines.plugins import OBJECTIVES, objective_of
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.schema import ModelSection, Recipe
from anyformer.pipelines.recipes.tokenizer_section import WRITES_EVERY_TEXT, sentinel, special_tokens
from tiny_tokenizers import trained_on

TEXT = "".join(
    f"{a}{b}{c} {c}{a}\n"
    for a in ("wan", "der", "lust", "ig", "the ", "quick ")
    for b in ("ma", "ri", "to", "", "fox ")
    for c in ("nen", "sel", "ka", "dog", "lazy")
)
TYPES = {
    "byte_bpe": 390,
    "wordpiece": 190,
    "unigram": None,
    "char": None,
}  # None: as many as the text yields
SENTINELS = 100


def trained(folder, type, framing, **settings):
    size = TYPES[type] and TYPES[type] - (0 if settings.get("sentinels") else 80)
    return trained_on(TEXT, folder, type=type, vocab_size=size, framing=framing, **settings)


def loaded(folder, *arguments, **settings):
    """The tokenizer as AutoTokenizer reads it from its files."""
    from transformers import AutoTokenizer

    trained(folder, *arguments, **settings).save_pretrained(folder / "saved")
    return AutoTokenizer.from_pretrained(folder / "saved")


@pytest.mark.parametrize("type", TYPES)
def test_cls_sep_frames_a_text_and_a_pair_with_segments(tmp_path, type):
    tokenizer = loaded(tmp_path, type, "cls_sep")
    a, b = (tokenizer(text, add_special_tokens=False).input_ids for text in ("the fox", "lazy dog"))
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert tokenizer.convert_ids_to_tokens([cls, sep]) == ["<|cls|>", "<|sep|>"]
    one, two = tokenizer("the fox"), tokenizer("the fox", "lazy dog")
    assert one.input_ids == [cls, *a, sep] and one.token_type_ids == [0] * (len(a) + 2)
    assert two.input_ids == [cls, *a, sep, *b, sep]
    assert two.token_type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert tokenizer.model_input_names == ["input_ids", "token_type_ids", "attention_mask"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (cls, sep)
    assert tokenizer.mask_token == "<|mask|>" and tokenizer.pad_token == "<|pad|>"
    padded = tokenizer(["the fox", "the"], padding=True)
    assert padded.input_ids[1][-1] == tokenizer.pad_token_id and padded.attention_mask[1][-1] == 0
    assert tokenizer.decode(one.input_ids, skip_special_tokens=True) == "the fox"


@pytest.mark.parametrize("type", TYPES)
def test_the_mask_is_one_token_in_place_of_a_word_and_its_space(tmp_path, type):
    tokenizer = loaded(tmp_path, type, "cls_sep")
    ids = tokenizer("the <|mask|> dog", add_special_tokens=False).input_ids
    word = {"char": "the _ dog"}.get(type, "the_ dog")  # a character is no word: its space stays
    before, after = (tokenizer(part, add_special_tokens=False).input_ids for part in word.split("_"))
    assert ids == [*before, tokenizer.mask_token_id, *after]


@pytest.mark.parametrize("type", TYPES)
def test_eos_ends_a_text_and_sentinels_are_one_token_each(tmp_path, type):
    tokenizer = loaded(tmp_path, type, "eos", sentinels=SENTINELS)
    a, b = (tokenizer(text, add_special_tokens=False).input_ids for text in ("the fox", "dog"))
    end = tokenizer.eos_token_id
    assert tokenizer("the fox").input_ids == [*a, end]
    assert tokenizer("the fox", "dog").input_ids == [*a, end, *b, end]
    assert "token_type_ids" not in tokenizer("the fox") and tokenizer.bos_token is None
    names = [sentinel(number) for number in range(SENTINELS)]
    ids = tokenizer.convert_tokens_to_ids(names)
    assert len(set(ids)) == SENTINELS and set(ids) <= set(tokenizer.all_special_ids)
    assert [tokenizer(name).input_ids for name in names] == [[number, end] for number in ids]
    assert sentinel(SENTINELS) not in tokenizer.get_vocab()


@pytest.mark.parametrize("type", TYPES)
def test_without_framing_nothing_has_changed(tmp_path, type):
    (tmp_path / "other").mkdir()
    plain, none = trained(tmp_path / "other", type, None), trained(tmp_path, type, "none")
    assert plain.backend_tokenizer.to_str() == none.backend_tokenizer.to_str()
    special = ["<|endoftext|>", "<|pad|>"] + (["<|unk|>"] if type not in WRITES_EVERY_TEXT else [])
    assert sorted(none.all_special_ids) == sorted(none.convert_tokens_to_ids(special))
    assert none("the fox").input_ids == none("the fox", add_special_tokens=False).input_ids
    assert none.mask_token is None and none.model_input_names == ["input_ids", "attention_mask"]


# What a recipe needs


def test_each_objective_gets_the_framing_it_names(tiny_recipe):
    families = {"causal": "decoder", "masked": "encoder", "span_corruption": "seq2seq"}
    for name, family in families.items():
        path = tiny_recipe(model={"family": family}, objective={"name": name}, evaluation={"metrics": ["perplexity"]})
        section = tokenizer_section(objective_of(load_recipe(str(path))))
        assert section.framing == {"causal": "none", "masked": "cls_sep", "span_corruption": "eos"}[name]
        assert section.sentinels == (100 if name == "span_corruption" else 0)
        assert ("<|mask|>" in special_tokens(section)) == (name == "masked")


@pytest.mark.parametrize(
    ("task", "family", "framing"),
    [
        ("sequence_classification", "encoder", "cls_sep"),
        ("sequence_classification", "decoder", "none"),
        ("sequence_classification", "seq2seq", "eos"),
        ("translation", "seq2seq", "eos"),
        ("translation", None, "eos"),
    ],
)
def test_a_task_gets_the_framing_that_its_family_reads(task, family, framing):
    recipe = Recipe(objective=None, task=OBJECTIVES[task].Settings(), model=ModelSection(family=family))
    section = tokenizer_section(objective_of(recipe))
    assert (section.framing, section.sentinels) == (framing, 0)
    recipe = recipe.with_(tokenizer={"framing": "none"})
    assert tokenizer_section(objective_of(recipe)).framing == "none"


def test_documents_are_framed_with_cls_and_sep_where_there_is_no_beginning_of_text():
    bert = SimpleNamespace(bos_token_id=None, eos_token_id=None, cls_token_id=7, sep_token_id=8)
    assert framing_tokens(bert, add_bos=True, add_eos=True) == (7, 8)
    roberta = SimpleNamespace(bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    assert framing_tokens(roberta, add_bos=True, add_eos=False) == (1, None)
    bare = SimpleNamespace(bos_token_id=None, eos_token_id=None, cls_token_id=None, sep_token_id=None)
    with pytest.raises(UserError, match=r"objective\.add_bos=true needs a tokenizer with a beginning-of-text token"):
        framing_tokens(bare, add_bos=True, add_eos=False)


# Recipes

MASKED = {"model": {"family": "encoder"}, "objective": {"name": "masked"}, "evaluation": {"metrics": ["perplexity"]}}
SPANS = {
    "model": {"family": "seq2seq"},
    "objective": {"name": "span_corruption"},
    "evaluation": {"metrics": ["perplexity"]},
}


def test_documents_begin_with_a_token_for_encoders_alone_unless_the_recipe_says_so(tiny_recipe):
    assert load_recipe(str(tiny_recipe())).objective.add_bos is False
    assert load_recipe(str(tiny_recipe(**SPANS))).objective.add_bos is False
    assert load_recipe(str(tiny_recipe(**MASKED))).objective.add_bos is True
    assert load_recipe(str(tiny_recipe(**MASKED)), ["objective.add_bos=false"]).objective.add_bos is False


@pytest.mark.parametrize(
    ("sections", "overrides", "sentence"),
    [
        (MASKED, ["objective.mask_replace=0.95"], "together they must be at most 1"),
        (MASKED, ["objective.noise_density=0.2"], "no effect with objective.name=masked; it belongs to span"),
        (MASKED, ["tokenizer.framing=eos"], "tokenizer.framing=eos does not go with objective.name=masked"),
        (MASKED, ["model.family=seq2seq"], "model.family=seq2seq does not go with objective.name=masked; it takes"),
        ({}, ["objective.name=span_corruption"], "it takes seq2seq"),
        (MASKED, ["evaluation.metrics=[word_perplexity]"], "compares tokens and is not for objective.name=masked"),
        (MASKED, ["evaluation.sample_prompts=[x]"], "sample_prompts.0='x' has no mask for objective.name=masked"),
        (SPANS, ["objective.noise_density=0.9"], "objective.mean_span_length=3.0 must be at least 9"),
        (SPANS, ["tokenizer.sentinels=0"], "tokenizer.sentinels=0 does not go with objective.name=span_corruption"),
        (SPANS, ["tokenizer.vocab_size=300"], "tokenizer.vocab_size=300 must be at least 358: 256 bytes and the"),
        (MASKED, ["tokenizer.name_or_path=x", "tokenizer.framing=cls_sep"], "no effect with tokenizer.name_or_path"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_one_sentence(tiny_recipe, sections, overrides, sentence):
    with pytest.raises(UserError) as caught:
        load_recipe(str(tiny_recipe(**sections)), overrides)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
