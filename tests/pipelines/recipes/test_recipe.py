"""Laws of recipes: layers, strictness, round trips, and agreement with the sources field names are read from."""

import copy
import dataclasses
import json
import os
import pickle
import re
from pathlib import Path
from typing import get_args

import pytest
from anyformer.modeling.traits import POSITION_SCHEMES
from anyformer.pipelines.aliases import ALIASES
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.plugins import METRICS, OBJECTIVES
from anyformer.pipelines.recipes import introspection
from anyformer.pipelines.recipes.checks import ARGUMENT_BOUNDS, OWNED_ARGUMENTS, READ_WITH, SCHEDULE_BOUNDS
from anyformer.pipelines.recipes.compose import load_recipe, recipe_from_dict
from anyformer.pipelines.recipes.field_docs import describe_fields
from anyformer.pipelines.recipes.recipe_files import is_file_of, shipped
from anyformer.pipelines.recipes.schema import Recipe, TrainingSection, parts_of_recipe
from anyformer.pipelines.recipes.strict_yaml import format_yaml, parse_yaml
from anyformer.pipelines.training.checkpoints.same_run import resume_difference
from family_variants import a_share
from hypothesis import given
from hypothesis import strategies as st

RECIPES = sorted(shipped("recipes"))
SETTINGS = [row for row in describe_fields() if "*" not in row.name and ".N." not in row.name and "." in row.name]


def sentence(recipe="quickstart", *overrides) -> str:
    """The one-line message of the UserError that loading raises."""
    with pytest.raises(UserError) as caught:
        load_recipe(str(recipe), overrides)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


@pytest.fixture
def recipe_file(tmp_path):
    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


SMALL = "model: {family: decoder}\ntokenizer: {type: char}\ndata: {source: stdlib}\ntraining: {output_dir: out}\n"


# ---------------------------------------------------------------------------------------------------- layers


def sections_in(value) -> list:
    """The dataclasses at every depth of a recipe's fields, lists and mappings."""
    if dataclasses.is_dataclass(value):
        return [value, *sections_in([getattr(value, row.name) for row in dataclasses.fields(value)])]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [section for each in values for section in sections_in(each)]


def refuses_edits(section) -> bool:
    names = [row.name for row in dataclasses.fields(section)] + ["no_field"]
    for name in names:
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            setattr(section, name, getattr(section, name, None))
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            delattr(section, name)
    return True


@pytest.mark.parametrize("name", RECIPES)
def test_a_loaded_recipe_cannot_be_edited_at_any_depth(name):
    sections = sections_in(load_recipe(name))
    assert len(sections) >= 8 and all(map(refuses_edits, sections))


def test_every_objectives_settings_and_a_plugins_cannot_be_edited_but_are_replaced_copied_and_pickled():
    @dataclasses.dataclass
    class Own(OBJECTIVES["causal"].Settings):
        rate: float = 0.5

        def __post_init__(self):
            super().__post_init__()
            self.rate = 2 * self.rate

    for cls in [Own, *(objective.Settings for _, objective in OBJECTIVES.items())]:
        assert refuses_edits(cls())
    assert Own().rate == 1 and dataclasses.replace(Own(), rate=3.0).rate == 6 and "_is_made" not in repr(Own())
    settings = load_recipe("quickstart").learned
    for same in (copy.copy(settings), copy.deepcopy(settings), pickle.loads(pickle.dumps(settings))):
        assert same == settings and refuses_edits(same)


def test_a_changed_recipe_is_another_one():
    recipe = load_recipe("quickstart", trust_remote_code=True)
    before = recipe.to_dict()
    other = recipe.with_(training={"seed": 7}, stages=[], name="other", chosen={})
    assert recipe.to_dict() == before and other.trust_remote_code
    expected = before | {"training": before["training"] | {"seed": 7}, "stages": [], "name": "other"}
    assert other.to_dict() == expected


@pytest.mark.parametrize("name", a_share(RECIPES, 3))
def test_every_shipped_recipe_loads_and_its_saved_form_yields_an_equal_recipe(name, recipe_file):
    recipe = load_recipe(name)
    assert recipe.description and recipe.name == name
    assert load_recipe(str(recipe_file(recipe.to_yaml(), "other.yaml"))) == recipe


def test_each_layer_wins_over_the_one_before(recipe_file):
    path = recipe_file(SMALL.replace("{family: decoder}", "{preset: gpt2, num_hidden_layers: 3}"))
    fields = load_recipe(str(path), ["model.num_attention_heads=6"]).model.fields
    assert (fields["hidden_size"], fields["num_hidden_layers"], fields["num_attention_heads"]) == (768, 3, 6)
    assert load_recipe(str(path), ["model.num_hidden_layers=2"]).model.fields["num_hidden_layers"] == 2
    assert load_recipe(str(path)).training.learning_rate == TrainingSection().learning_rate


def test_an_override_can_choose_the_preset_and_reach_into_its_mappings(recipe_file):
    path = recipe_file(SMALL)
    overrides = ["model.preset=llama_1b", "model.rope_parameters.factor=8"]
    rope = load_recipe(str(path), overrides).model.fields["rope_parameters"]
    assert (rope["factor"], rope["rope_theta"]) == (8, 500000.0)
    assert load_recipe("llama_1b").model.fields["rope_parameters"]["factor"] == 32  # the preset itself is untouched


def test_overrides_reach_list_entries(recipe_file):
    text = SMALL.replace("{source: stdlib}", "{mixture: [{source: stdlib}, {files: a.txt, weight: 3}]}")
    recipe = load_recipe(str(recipe_file(text)), ["data.mixture.0.weight=2", "data.mixture.1.files=*.txt"])
    assert [(s.weight, s.files) for s in recipe.data.mixture] == [(2.0, None), (3.0, "*.txt")]
    assert "2 entries" in sentence(recipe_file(text), "data.mixture.2.weight=2")


def test_a_preset_given_as_a_path_is_written_into_the_recipe(recipe_file):
    preset = recipe_file("family: decoder\nhidden_size: 64\nnum_attention_heads: 2\n", "preset.yaml")
    path = recipe_file(SMALL.replace("{family: decoder}", f"{{preset: {preset}}}"))
    recipe = load_recipe(str(path))
    preset.unlink()
    assert recipe.model.preset is None and recipe.model.fields["hidden_size"] == 64
    assert recipe_from_dict(recipe.to_dict()) == recipe


def test_a_presets_vocabulary_goes_only_with_a_pretrained_tokenizer():
    assert load_recipe("gpt2_small").model.fields["vocab_size"] == 50257
    assert "vocab_size" not in load_recipe("quickstart").model.fields


def test_a_checkpoint_brings_architecture_and_tokenizer(recipe_file):
    path = recipe_file(SMALL.replace("{family: decoder}", "{name_or_path: some/model}").replace("{type: char}", ""))
    recipe = load_recipe(str(path))
    assert recipe.tokenizer.name_or_path == "some/model" and recipe.model.family is None
    assert recipe_from_dict(recipe.to_dict()) == recipe
    assert "model.preset and model.name_or_path" in sentence(path, "model.preset=gpt2")
    assert sentence(path, "model.hidden_size=8").startswith("model.hidden_size cannot be set with model.name_or_path")
    assert "remove the tokenizer section" in sentence(path, "tokenizer.type=char")


# ------------------------------------------------------------------------------------------------ round trips

yaml_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NO_TEXT = ("1e-4", "1E5", "1.", ".5", "-.inf", ".nan", "2024-01-01", "null", "~", "yes", "0x1f", "1_000")
looks_like_something_else = st.sampled_from([*NO_TEXT, "=", "<<", "*", "- a"])
yaml_data = st.recursive(
    yaml_scalars | looks_like_something_else,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | looks_like_something_else, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(yaml_data)
def test_yaml_is_read_back_equal(data):
    back = parse_yaml(format_yaml(data), "test")
    assert back == data and repr(back) == repr(data)  # repr: 1 and 1.0 and True are equal but not the same


@given(
    description=st.text(),
    prompts=st.lists(st.text() | looks_like_something_else, max_size=3),
    kwargs=st.dictionaries(st.text() | looks_like_something_else, yaml_data, max_size=3),
    rate=st.floats(min_value=1e-12, max_value=1e3),
    seed=st.integers(0, 2**32 - 1),
    layers=st.integers(1, 100),
    run_name=st.none() | st.text() | looks_like_something_else,
)
def test_any_recipe_survives_being_saved(description, prompts, kwargs, rate, seed, layers, run_name):
    data = load_recipe("quickstart").to_dict()
    data["description"] = description
    data["evaluation"]["sample_prompts"] = prompts
    data["training"] |= {"lr_scheduler_kwargs": kwargs, "learning_rate": rate, "seed": seed, "run_name": run_name}
    data["model"]["num_hidden_layers"] = layers
    recipe = recipe_from_dict(data)
    assert recipe_from_dict(parse_yaml(recipe.to_yaml(), "test")) == recipe
    assert resume_difference(recipe.to_dict(), parse_yaml(recipe.to_yaml(), "test")) is None


# ------------------------------------------------------------------------------------------------ strictness


def in_its_section(setting) -> list[str]:
    """Overrides that make quickstart a recipe that has the setting."""
    section = setting.name.partition(".")[0]
    chosen = [f"{section}={{name: {setting.owners[0]}}}"] if setting.owners else []
    chosen += ["stages=[{until: 1.0}]"] if section == "stages" else []
    return (["objective=null"] if section == "task" else []) + chosen


def name_of(setting) -> str:
    """Its dotted name, of a stage's in the first stage."""
    return setting.name.replace("stages.", "stages.0.")


def test_every_setting_has_help_and_misspelt_is_refused_with_its_dotted_name_and_the_right_one():
    assert all(row.help and row.type for row in describe_fields())
    for setting in SETTINGS:
        name = name_of(setting)
        message = sentence("quickstart", *in_its_section(setting), f"{name}x=1")
        assert message == f"{name}x: no such setting; did you mean {name}?"


def test_every_setting_refuses_a_value_of_another_type():
    for setting in SETTINGS:
        wrong, name = "[[]]" if "mapping" in setting.type else "{a: 1}", name_of(setting)
        message = sentence("quickstart", *in_its_section(setting), f"{name}={wrong}")
        assert message.startswith((f"{name}=", "model.preset", f"{name}.a:")) and "is not" in message


FLASH = "model.attn_implementation=flash_attention_2"
NONSENSE = {"fsdp_config": "{a: 1}", "gradient_checkpointing_kwargs": "{a: 1}", "liger_kernel_config": "{a: true}"}
NONSENSE |= {"dataloader_persistent_workers": "true"}


@pytest.mark.parametrize(
    "overrides, words",
    [
        ("data.mixture=[{wieght: 1}]", "data.mixture.0.wieght: no such setting; did you mean data.mixture.0.weight?"),
        ("training.max_steps=1e3", "training.max_steps=1000.0 is not an integer; write 1000"),
        (f"training.learning_rate={'9' * 400}", "is not a number"),
        ("training.learning_rate=.nan", "training.learning_rate=nan is not a number"),
        ("training.run_name=3", "training.run_name=3 is not text; put it in quotes"),
        ("training.bf16=atuo", "training.bf16='atuo' is not true or false or 'auto'; did you mean auto?"),
        ("model=llama", "model='llama' is not a section of settings, such as model: {key: value}"),
        ("training.lr_scheduler_type=cosin", "training.lr_scheduler_type='cosin' is not known; did you mean cosine?"),
        ("model.hidden_act=siluu", "model.hidden_act='siluu' is not known; did you mean silu?"),
        ("model.preset=lama", "model.preset 'lama': no such file, and no shipped one; did you mean llama?"),
        ("model.num_attention_heads=7", "model.num_attention_heads=7 does not divide model.hidden_size=256; 4, 8 and"),
        ("model.rope_parameters.rope_type=x", "model.rope_parameters.rope_type='x' is not known; known: default"),
        ("model.rope_parameters={a: 1}", "model.rope_parameters.a: no such setting; known: attention_factor"),
        ("model.attention_pattern=[sliding_attention]", "model.sliding_window is not set, but sliding_attention"),
        (f"model.attention_pattern=[{', '.join(['full_attention'] * 7)}]", "model.attention_pattern names 7 layers"),
        ("batch_size=8", "batch_size: no such section; did you mean training.per_device_train_batch_size?"),
        ("training.hidden_size=8", "training.hidden_size: no such setting; did you mean model.hidden_size?"),
        ("model.n_layer=2", "model.n_layer: no such setting; did you mean model.num_hidden_layers?"),
        ("objective.sequence_length=9999", "set model.max_position_embeddings=9999 or objective.sequence_length="),
        ("evaluation.metrics=[ppl]", "evaluation.metrics='ppl' is not known; did you mean"),
        ("task=translation", "task='translation' is not a section of settings; write task.name=translation"),
        ("data.source=null", "data names no data; set one of source, files, dataset and mixture"),
        ("tokenizer.vocab_size=null", "tokenizer.vocab_size is not set; tokenizer.type=byte_bpe needs it, such as"),
        ("model.vocab_size=300", "model.vocab_size=300 is smaller than tokenizer.vocab_size=2048; remove"),
        ("training.max_steps.x=1", "training.max_steps.x: training.max_steps=220 has no settings in it"),
        ("training.report_to=[none, wandb]", "training.report_to=['none', 'wandb'] must be none, or any of wandb"),
        ("training.output_dir=''", "training.output_dir is not set; it is the folder of the run, such as runs/mine"),
        ("publish.repo_id=''", "publish.repo_id='' is no value; leave it out, or set it to null"),
        ("nonsense", "override 'nonsense' is not of the form section.key=value"),
        (["model.position_encoding=alibi", FLASH], "flash_attention_2 cannot compute model.position_encoding='alibi'"),
        (["model.attention_pattern=[strided_attention]", "model.attention_stride=4", FLASH], "compute strided_att"),
        (["model.attn_logit_softcapping=30", "model.attn_implementation=sdpa"], "sdpa cannot compute model.attn_logit"),
        (["model.attn_implementation=flash"], "model.attn_implementation='flash' is not known"),
        (["data.streaming=true"], "data.streaming=true needs data.dataset"),
        (["data.source=null", "data.dataset=x", "data.streaming=true", "training.max_steps=-1"], "training.max_steps"),
        (["data.validation_split=test"], "no effect without data.dataset"),
        (["training.bf16=true", "training.fp16=true"], "exclude each other"),
        (["training.warmup_steps=221"], "training.warmup_steps=221.0 is more than all 220 steps"),
        (["training.lr_scheduler_type=wsd", "training.warmup_steps=30", "training.decay_steps=200"], "take 230 of 220"),
        *(([f"training.{name}={NONSENSE.get(name, 2)}"], f"training.{name} has no effect without training.{other};")
          for name, other in READ_WITH.items()),
        (["training.optim_args=a=1"], "training.optim_args has no effect with training.optim="),
        (["training.lr_scheduler_kwargs={lr_end: 1}"], "lr_scheduler_kwargs.lr_end=1 is above training.learning_rate="),
        (["training.lr_scheduler_type=constant", "training.lr_scheduler_kwargs={min_lr_rate: 0.1}"],
         "has no effect with training.lr_scheduler_type=constant; remove it"),
        (["training.lr_scheduler_type=wsd", "training.lr_scheduler_kwargs={num_decay_steps: true}"],
         "num_decay_steps=true is not a number"),
        (["training.lr_scheduler_type=wsd", "training.lr_scheduler_kwargs={num_stable_steps: 3}"],
         "num_stable_steps=3 ends the decay before the last of 220 steps"),
        (["training.lr_scheduler_kwargs={power: x}"], "lr_scheduler_kwargs.power='x' is not a number"),
        (["model.bos_token_id=99999"], "model.bos_token_id=99999 is no entry of the vocabulary, which has"),
        (["model.eos_token_id=[0, -1]"], "model.eos_token_id=[0, -1] is no entry of the vocabulary"),
        (["model.num_hidden_layers=1000000000000"], "model.num_hidden_layers=1000000000000 must be at most 10000"),
        (["model={family: moe}", "model.router_aux_loss_coef=1e30"], "model.router_aux_loss_coef=1e+30 must be at"),
        (["model.position_encoding=learned", "objective.sequence_length=2048"], "model.max_position_embeddings=1024"),
        (["objective.evaluation_overlap=256"], "evaluation_overlap=256 leaves no token to predict in a row of"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_before_torch_is_imported(overrides, words):
    assert words in sentence("quickstart", *([overrides] if isinstance(overrides, str) else overrides))


def test_other_libraries_names_lead_to_a_tasks_own():
    assert sentence("imdb_classify", "evaluation.metrics=[acc]").endswith("is not known; did you mean accuracy?")
    for other, ours in {"ner": "token_classification", "qa": "question_answering", "swag": "multiple_choice"}.items():
        assert sentence("imdb_classify", f"task.name={other}").endswith(f"did you mean {ours}?")


def test_every_alias_leads_to_a_setting_or_a_value_that_there_is():
    names = {row.name.rpartition(".")[2] for row in SETTINGS}
    names = names.union(*map(introspection.family_fields, introspection.family_names()))
    values = {
        *(word for row in SETTINGS for word in re.findall(r"'(\w+)'", row.type)),
        *(*METRICS, *OBJECTIVES, *POSITION_SCHEMES, "adamw", "decoder", "encoder", "seq2seq", "moe", "vit"),
    }
    for ours in {name for names in ALIASES.values() for name in names}:
        assert ours.partition(".")[2].partition(".")[0] in names if "." in ours else ours in names | values, ours


def test_no_suggestion_is_what_was_refused_and_a_field_of_other_families_names_them():
    fields = {family: introspection.family_fields(family) for family in introspection.family_names()}
    for family, known in fields.items():
        model = [f"model={{family: {family}}}"]
        for name in set().union(*fields.values()) - known.keys():
            others = ", ".join(other for other in fields if name in fields[other])
            expected = f"model.{name} is a setting of {others}; this model's family is {family}"
            assert sentence("quickstart", *model, f"model.{name}=1") == expected
    near = "model.num_experts is a setting of moe, encoder, seq2"
    assert sentence("quickstart", "model.n_experts=4").startswith(near)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex_attention", "flash_attention_2"])
def test_a_backend_that_computes_the_model_is_taken_and_may_change_on_resuming(backend):
    recipe = load_recipe("quickstart", [f"model.attn_implementation={backend}"])
    assert recipe.model.attn_implementation == backend
    assert resume_difference(load_recipe("quickstart").to_dict(), recipe.to_dict()) is None


REPLACED = {
    ("quickstart", "data.files=a.txt"): "data.files='a.txt' replaces the recipe's data.source='stdlib_code'",
    ("quickstart", "data.dataset=o/d"): "data.dataset='o/d' replaces the recipe's data.source='stdlib_code'",
    ("imdb_mlm", "data.source=stdlib"): "data.source='stdlib' replaces the recipe's data.files=",
    ("gpt2_small", "data.files=[a.txt]"): "data.files=['a.txt'] replaces the recipe's data.dataset=",
}


@pytest.mark.parametrize("recipe, override", REPLACED)
def test_a_source_of_data_on_the_command_line_replaces_the_recipes_and_what_belongs_to_it(recipe, override):
    notes = []
    data = load_recipe(recipe, [override], notes).data
    kind = override.partition("=")[0].removeprefix("data.")
    assert [name for name in ("source", "files", "dataset", "mixture") if getattr(data, name)] == [kind]
    assert len(notes) == 1 and notes[0].startswith(REPLACED[recipe, override])
    assert (data.config_name, data.validation_split, data.validation_files, data.streaming) == (None, None, None, False)


def test_the_same_kind_of_source_replaces_nothing_else_and_two_new_ones_exclude_each_other():
    notes = []
    assert load_recipe("wikitext2_decoder", ["data.files=a.txt"], notes).data.validation_files and notes == []
    assert load_recipe("quickstart", [], notes).data.source == "stdlib_code" and notes == []
    both = sentence("quickstart", "data.files=a.txt", "data.source=stdlib")
    assert both == "data.source and data.files are both set; keep one and set the other to null"


def bounds():
    """(overrides before it, setting, its bounds) of every setting that has some, of every objective and task."""
    for section in parts_of_recipe():
        value = getattr(Recipe(), section.name)
        if dataclasses.is_dataclass(value) and section.name != "objective":
            for row in dataclasses.fields(value):
                yield [], f"{section.name}.{row.name}", row.metadata.get("bounds", {})
    for name, cls in OBJECTIVES.items():
        before = ["objective=null"] if cls.section == "task" else []  # a recipe has one of the two
        for row in dataclasses.fields(cls.Settings):
            chosen = f"{cls.section}={{name: {name}}}"
            yield [*before, chosen], f"{cls.section}.{row.name}", row.metadata.get("bounds", {})


def test_every_number_of_the_training_arguments_has_bounds():
    numbers = {int, float}
    fields = introspection.training_argument_fields()
    ours = {f.name for f in dataclasses.fields(TrainingSection)}
    settable = {n for n, f in fields.items() if numbers & {f.type, *get_args(f.type)}} - OWNED_ARGUMENTS.keys()
    assert settable - ours == ARGUMENT_BOUNDS.keys() and not ours & OWNED_ARGUMENTS.keys()


def test_every_bound_is_enforced():
    beyond = {"at least": -1, "0 or at least": -1, "above": 0, "at most": 1, "below": 0}
    rows = [(before, path, words, limit) for before, path, found in bounds() for words, limit in found.items()]
    for section, names in (("training", ARGUMENT_BOUNDS), ("training.lr_scheduler_kwargs", SCHEDULE_BOUNDS)):
        rows += [([], f"{section}.{name}", *bound) for name, found in names.items() for bound in found.items()]
    assert len(rows) > 80
    for before, path, words, limit in rows:
        wrong = limit + beyond[words]
        message = sentence("quickstart", *before, f"{path}={wrong}")
        assert re.fullmatch(rf"{path}={wrong}(\.0)? must be {words} {limit}", message)


def test_a_value_of_the_command_line_keeps_its_signs_and_its_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    overrides = ["training.output_dir=~/run #1", "model.name_or_path=~/base", "training.learning_rate=1e-3 # high"]
    recipe = load_recipe("trec_tuned", overrides)
    assert recipe.training.output_dir == "/home/me/run #1" and recipe.model.name_or_path == "/home/me/base"
    assert recipe.training.learning_rate == 1e-3


@pytest.mark.parametrize("argument", OWNED_ARGUMENTS)
def test_arguments_we_own_are_refused_with_the_setting_to_use(argument):
    assert sentence("quickstart", f"training.{argument}=1").startswith(f"training.{argument} cannot be set; ")


SECRETS = {
    "an access token of the Hub": "hf_" + "a1B2" * 9,
    "an access token of GitHub": "ghp_" + "a1B2" * 9,
    "an API key": "sk-proj-" + "a1B2" * 9,
    "a password in an address": "S3://me:hunter2@bucket/rows.jsonl",
}


@pytest.mark.parametrize("words", SECRETS)
@pytest.mark.parametrize("where", ["training.run_name", "data.files", "evaluation.sample_prompts.1", "a file"])
def test_a_secret_in_a_recipe_is_refused_and_not_repeated(words, where, recipe_file):
    secret = SECRETS[words]
    if where == "a file":
        where = "training.deepspeed.monitor.key"
        text = f"training: {{output_dir: x, deepspeed: {{monitor: {{key: '{secret}'}}}}}}\n"
        message = sentence(recipe_file(text))
    else:
        name, is_list = where.removesuffix(".1"), where.endswith(".1")
        message = sentence("quickstart", f"{name}={json.dumps(['a', secret] if is_list else secret)}")
    assert message.startswith(f"{where} holds {words}") and "HF_TOKEN" in message and secret not in message


SIGNATURE = "a1B2c3D4e5"
SIGNED_ADDRESSES = {  # queries as object stores sign them: what is saved of each
    f"X-Amz-Credential=AKID%2Fus&X-Amz-Expires=60&X-Amz-Signature={SIGNATURE}&versionId=3": "?versionId=3",
    f"AWSAccessKeyId=AKID&Expires=1900000000&Signature={SIGNATURE}": "",
    f"sv=2024-11-04&se=2027-01-01T00%3A00Z&sr=b&sp=r&sig={SIGNATURE}": "",
    f"X-Goog-Credential=x&X-Goog-Signature={SIGNATURE}": "",
    f"file=a.txt&token={SIGNATURE}": "?file=a.txt",
    f"access%5Ftoken={SIGNATURE}": "",
    "version=2&sp=3": "?version=2&sp=3",  # no signature among them
}


@pytest.mark.parametrize("query, saved", SIGNED_ADDRESSES.items(), ids=[*map(str, range(len(SIGNED_ADDRESSES)))])
def test_the_signature_of_an_address_is_used_and_neither_saved_nor_compared(query, saved):
    address = "https://bucket.example/rows.jsonl"
    settings = {"files": [f"{address}?{query}"], "source": None, "description": f"of {address}?{query}."}
    recipe = load_recipe("quickstart", data=settings)
    assert recipe.data.files == [f"{address}?{query}"]
    written = recipe.to_dict()["data"]
    assert (written["files"], written["description"]) == ([address + saved], f"of {address}{saved}.")
    assert SIGNATURE not in recipe.to_yaml()
    unsigned = load_recipe("quickstart", data=settings | {"files": [address + saved], "description": None})
    assert resume_difference(unsigned.to_dict(), recipe.to_dict()) is None


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "is empty"),
        ("- a\n- b\n", "not sections with settings"),
        ("training:\n  seed: 1\n  seed: 2\n", ":3: the key 'seed' stands twice, first in line 2"),
        ("training:\n  seed: 1\n   max_steps: 2\n", ":3: "),
        ("data:\n  files: *.txt\n", "needs quotes"),
        ("a: {b: [1, 2}\n", ":1: "),
        (b"name: \xff\n", "not UTF-8"),
        (b"name: \x00\n", "mine.yaml"),
    ],
)
def test_a_broken_file_is_one_sentence_with_its_place(text, words, recipe_file):
    path = recipe_file(text)
    message = sentence(path)
    assert words in message and str(path) in message


def test_missing_recipes_name_the_nearest(tmp_path):
    assert sentence("quikstart").endswith("did you mean quickstart?")
    assert sentence(tmp_path / "none.yaml").endswith("no such file")
    assert "is a folder" in sentence(tmp_path)


LAUGHS = "\n".join(["l0: &l0 [lol]", *(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 40))])
ENDLESS = {
    "laughs": (f"name: x\n{LAUGHS}\n", ":1: its aliases stand for more than 4,194,304 characters"),
    "a long text": (f"name: &a {'x' * 10_000}\nb: [{'*a, ' * 1000}]\n", "aliases stand for more than"),
    "in itself": ("name: &a [*a]\n", ":1: an alias stands for what it is in"),
    "large": (f"name: {'x' * 2**22}\n", "has 4,194,311 bytes, and no file of settings has more than 4,194,304"),
    "device": (Path("/dev/zero"), "is a device or a pipe, which may have no end; give a file"),
    "pipe": (None, "is a device or a pipe, which may have no end; give a file"),
    "kernel": (Path("/proc/kmsg"), "is empty"),
}


@pytest.mark.parametrize("of", ENDLESS)
def test_what_has_no_end_is_refused_at_once_as_recipe_and_as_preset(of, recipe_file, tmp_path):
    content, words = ENDLESS[of]
    if isinstance(content, str):
        path = recipe_file(content)
    elif content is None:
        path = tmp_path / "pipe.yaml"
        os.mkfifo(path)
    elif not (path := content).exists():
        pytest.skip(f"no {path} here")
    assert words in sentence(path)
    assert words in sentence("quickstart", f"model.preset={path}")
    if of in ("device", "pipe", "kernel"):
        assert not is_file_of(str(path), "experiments", "sweep")
    elif of != "large":
        with pytest.raises(UserError):
            parse_yaml(content, "x")


def test_an_alias_stands_for_what_it_names():
    assert parse_yaml("a: &a {b: 1}\nc: [*a, {d: *a}]\n", "x") == {"a": {"b": 1}, "c": [{"b": 1}, {"d": {"b": 1}}]}


@pytest.mark.parametrize("name, value", [("torch_compile_backend", "eager"), ("torch_compile_mode", "default")])
def test_how_torch_compile_works_asks_for_it_as_in_transformers(name, value):
    recipe = load_recipe("quickstart", [f"training.{name}={value}"])
    assert recipe.training.torch_compile and recipe_from_dict(recipe.to_dict()) == recipe
    assert not load_recipe("quickstart", [f"training.{name}=null"]).training.torch_compile


def test_exponents_without_a_dot_are_numbers(recipe_file):
    assert load_recipe("quickstart", ["training.learning_rate=1e-4"]).training.learning_rate == 1e-4
    found = parse_yaml("a: 1e-4\nb: 12e3\nc: 2024-01-01\nd: 010\n", "x")
    assert found == {"a": 1e-4, "b": 12e3, "c": "2024-01-01", "d": 8}


# ------------------------------------------------------------------------------------------------- resuming


OF_NO_MATHEMATICS = ["training.report_to=wandb", "training.output_dir=o", "training.save_steps=9", "name=z"]
OF_NO_MATHEMATICS += ["training.dataloader_num_workers=2", "training.run_name=r", "training.resume=false"]
OF_NO_MATHEMATICS += ["evaluation.every_steps=7", "publish.repo_id=a/b"]


def test_a_run_may_be_resumed_with_other_settings_that_leave_its_mathematics_alone():
    old = load_recipe("quickstart").to_dict()
    for override in OF_NO_MATHEMATICS:
        assert resume_difference(old, load_recipe("quickstart", [override]).to_dict()) is None, override


def test_a_run_is_not_resumed_with_other_mathematics():
    old = load_recipe("quickstart").to_dict()
    new = load_recipe("quickstart", ["model.hidden_size=128", "training.seed=1"]).to_dict()
    assert resume_difference(old, new) == "model.hidden_size is 256 there and 128 here"
    workers = load_recipe("quickstart", ["training.adam_beta1=0.8"]).to_dict()
    assert resume_difference(old, workers) == "training.adam_beta1 is null there and 0.8 here"
    assert resume_difference(workers, old) == "training.adam_beta1 is 0.8 there and null here"
    sources = load_recipe("quickstart", data={"source": None, "mixture": [{"source": "stdlib"}]}).to_dict()
    assert resume_difference(sources, old) == "data.source is null there and 'stdlib_code' here"
    floor = load_recipe("quickstart", ["training.lr_scheduler_kwargs.min_lr_rate=0.1"]).to_dict()
    assert resume_difference(floor, old) == "training.lr_scheduler_kwargs.min_lr_rate is 0.1 there and null here"


# --------------------------------------------------------------------------------- agreement with the sources


def test_family_fields_read_from_source_are_the_configs_own_fields():
    from transformers import PreTrainedConfig

    from anyformer import AnyformerDecoderConfig

    inherited = {f.name for f in dataclasses.fields(PreTrainedConfig)}
    real = {f.name: f.default for f in dataclasses.fields(AnyformerDecoderConfig) if f.name not in inherited}
    read = introspection.family_fields("decoder")
    assert real.keys() <= read.keys()
    assert {name: read[name].default for name in real} == real


def test_training_arguments_read_from_source_are_the_real_ones():
    from transformers import TrainingArguments
    from transformers.activations import ACT2CLS
    from transformers.trainer_utils import SchedulerType
    from transformers.training_args import OptimizerNames

    real = {f.name for f in dataclasses.fields(TrainingArguments) if not f.name.startswith("_")}
    assert set(introspection.training_argument_fields()) == real
    for file, enum in (("training_args.py", OptimizerNames), ("trainer_utils.py", SchedulerType)):
        assert introspection.enum_values(file, enum.__name__) == {member.value for member in enum}
    assert introspection.activation_names() == set(ACT2CLS)


ROWS = ["training.max_steps=-1", "training.global_batch_size=8", "objective.sequence_length=64"]


@pytest.mark.parametrize(
    "stages, tokens, steps",
    [
        ("[]", 512 * 10, 10),
        ("[]", 512 * 10 + 1, 11),
        ("[{until: 0.5, global_batch_size: 4}, {until: 1.0, sequence_length: 128}]", 640 * 10, 10),
        ("[{until: 6, global_batch_size: 4}, {until: 1.0}]", 6 * 256 + 512 * 7, 13),
    ],
)
def test_tokens_are_the_fewest_steps_that_read_them_in_the_batches_and_lengths_of_the_stages(stages, tokens, steps):
    recipe = load_recipe("quickstart", [*ROWS, f"stages={stages}", f"training.max_tokens={tokens}"])
    assert (recipe.training.max_steps, recipe.training.max_tokens) == (steps, None)
    assert f"{tokens:,} tokens" in recipe.chosen["training.max_steps"]
    again = recipe_from_dict(recipe.to_dict())
    assert again.to_dict() == recipe.to_dict() and again.training.max_steps == steps


@pytest.mark.parametrize(
    "words, said",
    [
        (["training.max_steps=5"], "training.max_steps=5 both say how long the run is; set max_tokens to null, or"),
        (["training.global_batch_size=null"], "needs training.global_batch_size"),
        (["objective.name=fill_in_the_middle"], "needs rows of sequence_length tokens"),
        (["stages=[{until: 99, global_batch_size: 4}, {until: 1.0}]"], "stages.1.until=1.0 is step 62 of 62"),
    ],
)
def test_tokens_whose_steps_the_recipe_leaves_open_are_refused(words, said):
    assert said in sentence("quickstart", *ROWS, "training.max_tokens=6000", *words)
