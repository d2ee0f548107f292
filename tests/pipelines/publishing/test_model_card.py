"""The card says what is in the folder, all of it and nothing else."""

import json
import math

import pytest
import yaml
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.publishing.model_card import MARKER, render_model_card, write_model_card
from anyformer.pipelines.publishing.publish import files_to_publish
from anyformer.pipelines.publishing.run_facts import RunFacts
from anyformer.pipelines.recipes.compose import load_recipe, recipe_from_dict
from anyformer.pipelines.recipes.own_settings import own_settings
from anyformer.pipelines.recipes.recipe_files import shipped
from anyformer.pipelines.recipes.schema import Recipe
from anyformer.pipelines.recipes.strict_yaml import format_yaml, parse_yaml
from anyformer.pipelines.storage.model_folder import open_model_folder
from anyformer.pipelines.training.checkpoints.same_run import resume_difference
from family_variants import a_share
from hypothesis import given
from hypothesis import strategies as st

from anyformer import AnyformerDecoderForCausalLM

SPLIT = {"documents": 12, "tokens": 3456, "bytes": 7890}
RUN = {
    "status": "finished",
    "seed": 1234,
    "versions": {"python": "3.11.9", "torch": "2.15.0"},
    "data": {"fingerprint": "c0ffee", "train": SPLIT, "validation": SPLIT | {"documents": 3}},
    "metrics": {"validation_loss": 1.25, "validation_perplexity": 3.4903, "validation_unigram_perplexity": 512.7},
    "parameters": 1,
    "steps": 4321,
    "world_size": 2,
    "wall_seconds": 61.5,
    "samples": [{"prompt": "def", "text": "def f():\n```python\n````\n"}],
}


@pytest.fixture
def model_folder(tiny_config, tmp_path):
    folder = tmp_path / "my-model"
    AnyformerDecoderForCausalLM(tiny_config()).save_pretrained(folder)
    return folder


def recipe(**data) -> Recipe:
    return Recipe(name="tiny", description="a test").with_(data=data, training={"output_dir": "run"})


def card_of(folder, recipe=None, **how):
    """(front matter, text below it) of the card that is written for a folder, with a run's files where there is one."""
    if recipe is not None:
        (folder / "recipe.yaml").write_text(recipe.to_yaml())
        (folder / "run.json").write_text(json.dumps(RUN | {"recipe": recipe.to_dict()}))
    _, front, text = write_model_card(folder, **how).read_text().split("---\n", 2)
    return yaml.safe_load(front), text


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_a_run_s_card_holds_every_fact_of_the_run(model_folder):
    front, text = card_of(
        model_folder, recipe(dataset="owner/corpus", config_name="small"), repo_id="me/my-model", license="mit"
    )
    assert front["library_name"] == "transformers" and front["pipeline_tag"] == "text-generation"
    assert front["license"] == "mit" and front["tags"] == ["anyformer", "decoder"]
    assert front["datasets"] == ["owner/corpus"] and front["metrics"] == ["perplexity"]
    (result,) = front["model-index"][0]["results"]
    assert front["model-index"][0]["name"] == "my-model"
    assert result["dataset"] == {"name": "owner/corpus", "type": "owner/corpus", "split": "validation"}
    assert {m["type"]: m["value"] for m in result["metrics"]} == {"loss": 1.25, "perplexity": 3.4903}

    assert "`tiny`" in text and "Training took 4,321 optimizer steps on 2 processes and 62 seconds." in text
    assert "| train | 12 | 3,456 | 7,890 |" in section(text, "Data") and "c0ffee" in section(text, "Data")
    assert "| validation | unigram perplexity | 512.7 |" in section(text, "Results")
    assert "| torch | 2.15.0 |" in section(text, "Environment") and "| seed | 1234 |" in section(text, "Environment")
    assert 'from_pretrained("me/my-model", trust_remote_code=True)' in section(text, "How to load")


def test_the_recipe_in_the_card_is_the_recipe_that_ran(model_folder):
    ran = recipe(source="stdlib")
    text = section(card_of(model_folder, ran)[1], "Training recipe")
    own, whole = (parse_yaml(block.split("\n```")[0], "card") for block in text.split("```yaml\n")[1:])
    assert whole == ran.to_dict()
    assert own["data"] == {"source": "stdlib"} and own["training"] == {"output_dir": "run"}
    shown, folded = text.split("<details>")
    assert "per_device_train_batch_size" in folded and "per_device_train_batch_size" not in shown


@pytest.mark.parametrize("name", a_share(sorted(shipped("recipes")), 4))
def test_what_a_recipe_says_itself_composes_to_the_same_recipe(name):
    whole = load_recipe(name, ["training.learning_rate=0.0123"]).to_dict()
    own = own_settings(whole)
    assert recipe_from_dict(own).to_dict() == whole
    assert own["training"]["learning_rate"] == 0.0123
    assert len(format_yaml(own).splitlines()) < 0.8 * len(format_yaml(whole).splitlines())


def test_a_card_names_base_model_and_licence(model_folder):
    (model_folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[MASK]"}))
    tuned = recipe(dataset="owner/corpus").with_(model={"name_or_path": "owner/base"}, publish={"license": "mit"})
    front, text = card_of(model_folder, tuned)
    assert front["base_model"] == "owner/base" and "Fine-tuned from `owner/base`." in text
    assert front["license"] == "mit" and "Licence: mit." in text
    (model_folder / "run.json").unlink()
    tuned = tuned.with_(model={"name_or_path": "/home/someone/secret-place/base"})
    (model_folder / "recipe.yaml").write_text(tuned.to_yaml())
    front, text = card_of(model_folder)
    assert "base_model" not in front and "Fine-tuned from `base`." in text and "secret-place" not in text


def test_a_card_says_what_the_data_were_as_the_recipe_does(model_folder):
    described = recipe(files=["/data/train.jsonl.gz"], description="Letters of the 19th century, 12 authors")
    front, text = card_of(model_folder, described)
    assert "Trained on: Letters of the 19th century, 12 authors." in section(text, "Data")
    assert front["model-index"][0]["results"][0]["dataset"]["name"] == "Letters of the 19th century, 12 authors"
    assert resume_difference(recipe(files=["/data/train.jsonl.gz"]).to_dict(), described.to_dict()) is None


def test_parameters_are_counted_from_the_weights_and_a_tied_head_once(tiny_config, tmp_path):
    for tied in (True, False):
        model = AnyformerDecoderForCausalLM(tiny_config(tie_word_embeddings=tied))
        model.save_pretrained(tmp_path / str(tied))
        (tmp_path / str(tied) / "run.json").write_text('{"parameters": 1}')
        table = section(card_of(tmp_path / str(tied))[1], "Architecture")
        assert f"| parameters | {sum(p.numel() for p in model.parameters()):,} |" in table
        assert f"| tied embeddings | {'yes' if tied else 'no'} |" in table


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ({}, ["| layers | 2 |", "| key/value heads | 2 |", "| rotary | default, rope_theta=10000 |"]),
        ({"position_encoding": "learned"}, ["| positions | learned |", "| context | 64 tokens |"]),
        ({"norm_position": "post", "norm_type": "layernorm"}, ["| norm | layernorm, post-norm |"]),
        ({"norm_position": {"full_attention": "inside"}}, ["| norm | rmsnorm, inside-norm (full_attention) |"]),
    ],
)
def test_the_architecture_table_is_the_config(tiny_config, tmp_path, fields, rows):
    AnyformerDecoderForCausalLM(tiny_config(**fields)).save_pretrained(tmp_path)
    table = section(write_model_card(tmp_path).read_text(), "Architecture")
    for row in rows:
        assert row in table
    assert "None" not in table


def test_a_plain_saved_model_has_a_short_card_that_claims_nothing(model_folder):
    front, text = card_of(model_folder)
    assert front.keys() == {"library_name", "pipeline_tag", "tags"}
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["Architecture", "How to load", "How to serve"]
    assert "AutoTokenizer" not in text  # there is no tokenizer


@pytest.mark.parametrize("missing", sorted(RUN))
def test_every_fact_may_be_missing(model_folder, missing):
    run = {key: value for key, value in RUN.items() if key != missing}
    (model_folder / "run.json").write_text(json.dumps(run))
    write_model_card(model_folder)
    assert "None" not in (model_folder / "README.md").read_text()


def test_a_checkpoint_s_own_record_serves_where_the_run_folder_s_files_are_not(model_folder):
    (model_folder / "anyformer_run.json").write_text(
        json.dumps({"recipe": recipe(source="stdlib").to_dict(), "seed": 5})
    )
    text = card_of(model_folder)[1]
    assert "Python standard library" in section(text, "Data") and "| seed | 5 |" in text


def test_local_data_is_named_by_file_and_never_as_a_hub_data_set(model_folder, tmp_path):
    (tmp_path / "on-disk").mkdir()
    front, text = card_of(model_folder, recipe(files=["/home/someone/secret-place/notes.txt"]))
    assert "datasets" not in front and "secret-place" not in text
    assert "Trained on: local data.\n\nRead from `notes.txt`, which is not published here." in section(text, "Data")
    assert front["model-index"][0]["results"][0]["dataset"]["name"] == "local data"
    assert "Read from `Übung <1>.txt`, `b.txt`, which are not published" in section(
        card_of(model_folder, recipe(files=["/data/Übung <1>.txt", "b.txt"]))[1], "Data"
    )
    assert "datasets" not in card_of(model_folder, recipe(dataset=str(tmp_path / "on-disk")))[0]


def test_a_number_that_is_not_finite_stays_out_of_the_metadata(model_folder):
    (model_folder / "run.json").write_text(json.dumps({"metrics": {"test_perplexity": math.inf, "test_loss": 800.0}}))
    front, text = card_of(model_folder)
    metrics = front["model-index"][0]["results"][0]["metrics"]
    assert [m["type"] for m in metrics] == ["loss"] and "metrics" not in front
    assert "| test | perplexity | inf |" in text


def test_our_card_is_rewritten_and_a_person_s_is_kept(model_folder, capsys):
    card = write_model_card(model_folder)
    first = card.read_text()
    card.write_text(first + "stale\n")
    assert write_model_card(model_folder).read_text() == first
    theirs = first.replace(MARKER, "") + "my words\n"
    card.write_text(theirs)
    write_model_card(model_folder)
    assert card.read_text() == theirs and "kept as it is" in capsys.readouterr().out


def test_damaged_facts_are_one_sentence(model_folder):
    (model_folder / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"run\.json is not readable as JSON"):
        write_model_card(model_folder)


# What a card says of an objective: (section of the recipe, what the loss counts, the Hub's task in the metadata).
SAID = {
    "causal": ("objective", "nats per token", "text-generation"),
    "masked": ("objective", "nats per masked token", "fill-mask"),
    "pixels": ("objective", "nats per pixel", "text-generation"),
    "sequence_classification": ("task", "nats per example", "text-classification"),
    "translation": ("task", "nats per token", "translation"),
    "a_plug_in_s": ("objective", "nats per token", "text-generation"),
}


@pytest.mark.parametrize("name", SAID)
def test_what_a_loss_counts_and_the_task_follow_from_the_recipe(model_folder, name):
    kind, unit, task = SAID[name]
    facts = RunFacts(recipe={kind: {"name": name}}, run=RUN)
    front, *_ = text = render_model_card(open_model_folder(model_folder), facts=facts).split("---\n")[1:]
    assert f"The loss is in {unit}.\n" in text[1]
    assert yaml.safe_load(front)["pipeline_tag"] == task
    answers = "```text\ndef\n=> def f():" in text[1].replace("`````", "```")
    assert answers == (name in ("translation", "masked"))  # a masked model answers with what fills the mask


def test_an_objective_s_picture_is_its_sample_and_is_published(model_folder):
    (model_folder / "completions.png").write_bytes(b"a picture")
    for name, shown in (("causal", False), ("pixels", True)):
        (model_folder / "recipe.yaml").write_text(f"objective: {{name: {name}}}\n")
        write_model_card(model_folder)
        assert ("](completions.png)" in (model_folder / "README.md").read_text()) == shown
        assert ("completions.png" in files_to_publish(open_model_folder(model_folder))) == shown


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    from anyformer import AnyformerDecoderConfig

    folder = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    AnyformerDecoderForCausalLM(AnyformerDecoderConfig(vocab_size=4, **sizes)).save_pretrained(folder)
    return open_model_folder(folder)


@given(st.lists(st.text(alphabet="`a\n", max_size=40), min_size=1, max_size=10))
def test_no_text_escapes_from_its_code_block(saved_model, texts):
    texts = [f"a{text}" for text in texts]  # a sample without text is left out
    card = render_model_card(saved_model, facts=RunFacts(run={"samples": [{"text": text} for text in texts]}))
    lines, found = iter(section(card, "Samples").splitlines()), []
    for line in lines:
        if line:
            fence = line.removesuffix("text")
            assert len(fence) >= 3 and set(fence) == {"`"}
            # A block ends with the first line that is as many backticks or more (CommonMark 4.5).
            found.append("\n".join(iter(lambda: next(lines), fence)))
            assert not any(row.strip().startswith(fence) for row in found[-1].split("\n"))
    assert found == [text.rstrip() for text in texts]


def test_a_card_says_which_engines_serve_the_model(tiny_config, tmp_path):
    """As the models refuse engines themselves; what is served by none of them has `convert`."""
    from anyformer import AnyformerDecoderForCausalLM, AnyformerDecoderModel

    cards = {}
    for name, fields in (("plain", {}), ("alibi", {"position_encoding": "alibi"})):
        AnyformerDecoderForCausalLM(tiny_config(**fields)).save_pretrained(tmp_path / name)
        cards[name] = write_model_card(tmp_path / name).read_text(encoding="utf-8")
    assert "| vLLM | `--model-impl transformers --trust-remote-code` |" in cards["plain"]
    assert "| vLLM | no: position_encoding='alibi' adds to single scores" in cards["alibi"]
    assert all("| continuous batching | yes |" in card and "anyformer export" in card for card in cards.values())
    AnyformerDecoderModel(tiny_config()).save_pretrained(tmp_path / "base")
    assert "How to serve" not in write_model_card(tmp_path / "base").read_text(encoding="utf-8")


def test_an_undefined_metric_of_a_suite_is_left_out():
    facts = RunFacts(suites=[{"tasks": {"tags": {"split": "test", "metrics": {"recall": None, "f1": 0.5}}}}])
    assert facts.suite_metrics == [("tags", "test", "f1", 0.5)]
