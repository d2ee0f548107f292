"""What `publish` sends to the Hub, what it keeps back, and what it answers where it cannot."""

import json
import re
import shutil

import pytest
import torch
from anyformer.pipelines.cli.parser import parse
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.publishing.model_card import MARKER
from anyformer.pipelines.publishing.publish import files_to_publish, prepare_folder, resolve_repo_id
from anyformer.pipelines.publishing.trajectory import branch_names
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.strict_yaml import format_yaml, parse_yaml
from anyformer.pipelines.storage.checkpoints import commit
from anyformer.pipelines.storage.local_facts import path_name
from anyformer.pipelines.storage.model_folder import open_model_folder
from local_hub import WITHOUT_ANYFORMER, LocalHub, run_python, run_script
from tiny_tokenizers import of_words
from transformers import LlamaConfig, LlamaForCausalLM

from anyformer import AnyformerDecoderForCausalLM, AnyformerImageProcessor, AnyformerViTForImageClassification


@pytest.fixture
def hub(tmp_path):
    with LocalHub(tmp_path) as hub:
        yield hub


@pytest.fixture
def run_folder(tiny_config, tmp_path):
    """A finished run: model, tokenizer, recipe and metrics, and beside them what is nobody else's business."""
    folder = tmp_path / "run"
    AnyformerDecoderForCausalLM(tiny_config(vocab_size=30)).save_pretrained(folder)
    of_words(["<|endoftext|>", "Once", "upon", "a", "time"], eos="<|endoftext|>").save_pretrained(folder)
    (folder / "recipe.yaml").write_text("name: tiny\npublish:\n  license: apache-2.0\n")
    (folder / "run.json").write_text(json.dumps({"status": "finished", "seed": 7, "metrics": {"validation_loss": 1.5}}))
    (folder / "metrics.jsonl").write_text('{"loss": 2.0}\n')
    for name in ("checkpoint-4/model.safetensors", "checkpoint-4/optimizer.pt", "training_args.bin", "train.log"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"private")
    (folder / ".incomplete").mkdir()
    return folder


PUBLISHED = {
    *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    *("README.md", "recipe.yaml", "run.json", "metrics.jsonl", ".gitattributes"),
}


def publish(hub, *words, **environment):
    return hub.command("publish", *words, "--no-check", **environment)


def published(hub, folder, *words) -> dict[str, bytes]:
    """The files in the repository tester/tiny after a command that must succeed and leave the folder as it is."""
    before = snapshot(folder)
    done = publish(hub, folder, "tester/tiny", *words)
    assert done.returncode == 0, done.stderr
    assert snapshot(folder) == before
    return hub.files("tester/tiny")


def to_publish(folder) -> dict:
    return files_to_publish(open_model_folder(folder))


def would_publish(folder, capsys) -> dict[str, bytes]:
    """The files of a dry run, and what it prints of the card."""
    args = parse(["publish", str(folder), "tester/tiny", "--no-check", "--dry-run"])
    capsys.readouterr()
    assert not args.run(args)
    files = {name: file if isinstance(file, bytes) else file.read_bytes() for name, file in to_publish(folder).items()}
    return files | {"README.md": capsys.readouterr().out.encode()}


def snapshot(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def sentence_of(done) -> str:
    """The one sentence a failed command wrote, after the progress bars and retries of huggingface_hub."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    *before, sentence = done.stderr.strip().splitlines()
    assert sentence.startswith("anyformer: ") and not any(line.startswith("anyformer") for line in before)
    return sentence


def test_publishing_sends_the_model_in_one_commit_and_again_updates_it_without_touching_the_folder(hub, run_folder):
    before = snapshot(run_folder)
    done = publish(hub, run_folder, "tester/tiny")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{hub.server.url}/tester/tiny"
    assert re.search(r"\d+ files, \d+\.\d MB, going to http", done.stdout)
    files = hub.files("tester/tiny")
    code = {name for name in files if name.endswith(".py")}
    assert files.keys() == PUBLISHED | code
    assert "decoder.py" in code and "registration.py" not in code
    for name in files.keys() - {"README.md", ".gitattributes"}:
        assert files[name] == (run_folder / name).read_bytes()
    card = files["README.md"].decode()
    assert "no licence" not in done.stdout
    assert MARKER in card and "license: apache-2.0" in card and '"tester/tiny", trust_remote_code=True' in card

    assert snapshot(run_folder) == before
    (run_folder / "metrics.jsonl").write_text('{"loss": 1.0}\n')
    assert publish(hub, run_folder, "tiny", "--revision", "second").returncode == 0  # the user's own `tiny`
    files = published(hub, run_folder)
    assert files["metrics.jsonl"] == b'{"loss": 1.0}\n' == hub.files("tester/tiny", "second")["metrics.jsonl"]
    assert files["README.md"].decode() == card
    commits = [r for r in hub.server.requests if "/commit/" in r[1]]
    assert len(commits) == 3


def test_branches_are_called_by_words_without_exponents_and_apart(tmp_path):
    facts = {"rows_per_step": 1000, "data": {"train": {"words": 5 * 10**9, "rows": 10**6}}}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    assert branch_names(tmp_path, [1, 250, 1000], "words") == ["5M-words", "1250M-words", "5000M-words"]
    assert branch_names(tmp_path, [2000, 2001], "words") == ["10000M-words", "10005M-words"]


LOAD_REVISIONS = """
from transformers import AutoModelForCausalLM

repository, branches = args
found = {}
for name in branches:
    model = AutoModelForCausalLM.from_pretrained(repository, revision=name, trust_remote_code=True)
    found[name] = float(model.lm_head.weight[0, 0]), type(model).__module__.split(".")[0]
report(found)
"""


@pytest.mark.slow
@pytest.mark.parametrize("by, names", [("steps", ["step-4", "step-40"]), ("words", ["0.001M-words", "0.01M-words"])])
def test_a_trajectory_is_a_branch_for_each_checkpoint_and_each_loads(hub, run_folder, tiny_config, tmp_path, by, names):
    shutil.rmtree(run_folder / "checkpoint-4")
    for step in (4, 40):
        staged, model = run_folder / "staged", AnyformerDecoderForCausalLM(tiny_config(vocab_size=30))
        torch.nn.init.constant_(model.lm_head.weight, step)
        model.save_pretrained(staged)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(run_folder / name, staged / name)
        (staged / "optimizer.pt").write_bytes(b"private")
        commit(staged, run_folder / f"checkpoint-{step}")
    facts = {"status": "finished", "rows_per_step": 5, "data": {"train": {"words": 500, "rows": 10}}}
    facts["validations"] = [{"step": 4, "loss": 2.5}, {"step": 40, "loss": 1.5}]
    (run_folder / "run.json").write_text(json.dumps(facts))
    published(hub, run_folder, "--trajectory", by)
    for step, loss, name in ((4, 2.5, names[0]), (40, 1.5, names[1])):
        files = hub.files("tester/tiny", name)
        assert "optimizer.pt" not in files and "decoder.py" in files
        card = files["README.md"].decode()
        assert f"{loss:.4f}" in card and f"{step} optimizer steps" in card
    found = run_script(LOAD_REVISIONS, "tester/tiny", ["main", *names], env=hub.env, cwd=tmp_path)
    assert [found[name][0] for name in names] == [4.0, 40.0]
    assert all(module == "transformers_modules" for _, module in found.values())


@pytest.mark.slow
def test_a_dry_run_lists_what_the_hub_gets_and_the_hub_is_not_asked(hub, run_folder):
    listed = publish(hub, run_folder, "tester/tiny", "--dry-run")
    assert (listed.returncode, hub.server.requests) == (0, []), listed.stderr
    assert listed.stdout.endswith("nothing was uploaded\n")
    files = published(hub, run_folder)
    del files[".gitattributes"]
    sizes = {name: size for size, name in re.findall(r"^ +(\S+) MB  (\S+)$", listed.stdout, re.M)}
    assert sizes == {name: f"{len(content) / 1e6:.3f}" for name, content in files.items()}
    assert files["README.md"].decode() in listed.stdout


def test_a_dry_run_needs_no_name_and_a_publication_does(run_folder, capsys):
    nameless = parse(["publish", str(run_folder), "--no-check", "--dry-run"])
    assert not nameless.run(nameless) and " would go to run; README.md:" in capsys.readouterr().out
    with pytest.raises(UserError, match="REPO_ID is missing"):
        parse(["publish", str(run_folder)]).run(parse(["publish", str(run_folder)]))


@pytest.mark.slow
def test_what_a_check_finds_is_published_as_a_line_of_the_card_and_a_file(hub, run_folder):
    before = snapshot(run_folder)
    done = hub.command("publish", run_folder, "tester/checked")
    assert done.returncode == 0, done.stderr
    files = hub.files("tester/checked")
    findings = json.loads(files["check.json"])
    assert findings["holds"] and findings["laws"]["packing"]["verdict"] == "holds"
    assert re.search(r"\n## Checks\n\n\d+ laws asked of a tiny twin: \d+ hold", files["README.md"].decode())
    assert snapshot(run_folder) == before


@pytest.mark.slow
def test_a_private_repository_is_private_and_a_public_one_is_not_taken_for_it(hub, run_folder):
    assert publish(hub, run_folder, "tester/secret", "--private").returncode == 0
    assert hub.server.repos["tester/secret"]["private"]
    assert publish(hub, run_folder, "tester/open").returncode == 0
    assert not hub.server.repos["tester/open"]["private"]
    commits = len(hub.server.requests)
    assert "exists and is public" in sentence_of(publish(hub, run_folder, "tester/open", "--private"))
    assert not any("/commit/" in path for _, path, _ in hub.server.requests[commits:])


@pytest.mark.slow
def test_a_failed_upload_changes_nothing_and_the_same_command_repeats_it(hub, run_folder):
    before = snapshot(run_folder)
    hub.server.failures = {"/commit/": 503}
    sentence = sentence_of(publish(hub, run_folder, "tester/tiny"))
    assert "answered 503" in sentence and sentence.endswith("run the same again")
    assert snapshot(run_folder) == before
    assert hub.files("tester/tiny").keys() == {".gitattributes"}
    hub.server.failures = {}
    assert "model.safetensors" in published(hub, run_folder)


def test_without_the_hub_nothing_is_published(run_folder):
    args = parse(["publish", str(run_folder), "tester/x", "--no-check"])
    with pytest.raises(UserError, match=r"not logged in.*hf auth login|HF_HUB_OFFLINE"):
        args.run(args)


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment, expected",
    [
        ({"HF_TOKEN": None}, "not logged in.*hf auth login"),
        ({"HF_TOKEN": "hf_wrong"}, "does not accept the token"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "no connection"),
    ],
)
def test_who_cannot_publish_is_told_what_to_do_before_anything_is_created(hub, run_folder, environment, expected):
    assert re.search(expected, sentence_of(publish(hub, run_folder, "tester/x", **environment)))
    assert "tester/x" not in hub.server.repos


@pytest.mark.parametrize("repo_id", ["a/b/c", "", "my name/x", "-x/y", "a--b/c", "tester/x.git", "tester/", "x" * 97])
def test_a_malformed_repository_name_is_refused_before_the_hub_is_asked(repo_id):
    with pytest.raises(UserError, match=r"write owner/name") as error:
        resolve_repo_id(repo_id)
    assert repr(repo_id) in str(error.value)


def test_what_is_no_model_folder_is_refused_with_what_would_be(tmp_path, tiny_config, run_folder):
    with pytest.raises(UserError, match="is no folder"):
        open_model_folder(tmp_path / "nowhere")
    unfinished = tmp_path / "unfinished"
    (unfinished / "checkpoint-10").mkdir(parents=True)
    with pytest.raises(UserError, match=r"config.json is missing; finish the run, or name .*checkpoint-10"):
        open_model_folder(unfinished)
    for config, sentence in (("{}", "holds no model.safetensors"), ("{", "not readable as JSON")):
        (unfinished / "config.json").write_text(config)
        with pytest.raises(UserError, match=sentence):
            open_model_folder(unfinished)
    weights = run_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="is damaged"):
        to_publish(run_folder)


def test_shards_are_published_whole_or_not_at_all(tiny_config, tmp_path):
    AnyformerDecoderForCausalLM(tiny_config()).save_pretrained(tmp_path, max_shard_size="20KB")
    model = open_model_folder(tmp_path)
    shards = {file.name for file in tmp_path.glob("model-*.safetensors")}
    assert len(shards) > 1
    assert shards | {"model.safetensors.index.json"} <= files_to_publish(model).keys()
    assert model.parameter_count() == AnyformerDecoderForCausalLM(tiny_config()).num_parameters()
    (tmp_path / min(shards)).unlink()
    with pytest.raises(UserError, match="which is missing"):
        files_to_publish(model)


def test_an_access_token_is_never_published(run_folder):
    (run_folder / "recipe.yaml").write_text("training:\n  hub_token: hf_" + "a1B2" * 9 + "\n")
    with pytest.raises(UserError, match=r"recipe.yaml holds an access token"):
        to_publish(run_folder)


def test_signatures_of_addresses_in_a_run_of_an_older_version_are_not_published(run_folder, capsys):
    recipe = {"name": "tiny", "data": {"files": "https://bucket.example/rows.jsonl?X-Amz-Signature=a1B2c3D4e5"}}
    (run_folder / "recipe.yaml").write_text(format_yaml(recipe))
    (run_folder / "run.json").write_text(json.dumps({"recipe": recipe, "seed": 7}))
    files = would_publish(run_folder, capsys)
    assert not [name for name, content in files.items() if b"a1B2c3D4e5" in content]
    assert b"https://bucket.example/rows.jsonl" in files["README.md"] and b"rows.jsonl" in files["run.json"]


def test_published_paths_are_names(run_folder, capsys):
    """Folders of the machine that trained say who trained, on what; the files on it keep them, to run again."""
    private = "/home/someone/secret-place"
    recipe = {
        "name": "tiny",
        "description": "/ is a slash",
        "model": {"name_or_path": f"{private}/base"},
        "data": {"files": [f"{private}/**/*.txt", "here.txt"], "cache_dir": "~/secret-place/cache"},
        "training": {"output_dir": f"{private}/runs/mine", "deepspeed": {"path": "../secret-place/ds.json"}},
        "evaluation": {"sample_prompts": ["/usr/bin/env"]},
    }
    (run_folder / "recipe.yaml").write_text(format_yaml(recipe))
    plugins = [{"path": f"{private}/plugin.py"}, {"path": "C:\\secret-place\\other.py"}]
    (run_folder / "run.json").write_text(json.dumps({"recipe": recipe, "seed": 7, "plugins": plugins}))
    settings = json.loads((run_folder / "tokenizer_config.json").read_text())
    settings |= {"is_local": True, "local_files_only": True, "name_or_path": f"{private}/base"}
    (run_folder / "tokenizer_config.json").write_text(json.dumps(settings))
    files = would_publish(run_folder, capsys)
    assert not [name for name, content in files.items() if b"secret-place" in content]
    public = recipe | {
        "model": {"name_or_path": "base"},
        "data": {"files": ["*.txt", "here.txt"], "cache_dir": "cache"},
        "training": {"output_dir": "mine", "deepspeed": {"path": "ds.json"}},
    }
    assert parse_yaml(files["recipe.yaml"].decode(), "recipe.yaml") == public
    run = json.loads(files["run.json"])
    assert run["recipe"] == public and run["plugins"] == [{"path": "plugin.py"}, {"path": "other.py"}]
    assert not {"is_local", "local_files_only"} & json.loads(files["tokenizer_config.json"]).keys()
    assert "local" not in files["README.md"].decode().split("## How to load")[1].split("With anyformer")[0]


@pytest.mark.parametrize("text", ["a/b", "/", "runs/mine", "owner/name", "/tmp", "and/or", "~", "</s>", "s3://b/k"])
def test_a_text_that_is_no_path_of_a_machine_is_published_as_it_is(text):
    assert path_name(text) == text


def test_a_tokenizer_is_saved_without_facts_of_its_loading(tiny_recipe, tmp_path):
    recipe = load_recipe(str(tiny_recipe()))
    for _ in range(2):  # trained, then from the cache
        prepare_data(recipe).tokenizer.save_pretrained(tmp_path / "trained")
        saved = json.loads((tmp_path / "trained" / "tokenizer_config.json").read_text())
        assert not {"is_local", "local_files_only"} & saved.keys()
    again = recipe.with_(tokenizer={"name_or_path": str(tmp_path / "trained")})
    prepare_data(again).tokenizer.save_pretrained(tmp_path / "again")
    assert "is_local" not in (tmp_path / "again" / "tokenizer_config.json").read_text()


def test_the_code_of_a_processor_is_published_with_the_model(tiny_vit_config, tmp_path):
    AnyformerViTForImageClassification(tiny_vit_config()).save_pretrained(tmp_path)
    AnyformerImageProcessor(size={"height": 12, "width": 16}).save_pretrained(tmp_path)
    assert {"image_processing.py", "vit.py"} <= to_publish(tmp_path).keys()
    (tmp_path / "image_processing.py").unlink()
    assert "image_processing.py" in to_publish(tmp_path)
    # A processor of several parts keeps their settings in its own file.
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").unlink()
    assert "image_processing.py" not in to_publish(tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    assert "image_processing.py" in to_publish(tmp_path)


def test_missing_code_is_supplied_but_never_mixed_with_another_version(run_folder):
    written = {file.name: file.read_bytes() for file in run_folder.glob("*.py")}
    for name in written:
        (run_folder / name).unlink()
    assert written.keys() <= to_publish(run_folder).keys()
    prepare_folder(run_folder)
    assert {file.name: file.read_bytes() for file in run_folder.glob("*.py")} == written
    (run_folder / "block.py").unlink()
    (run_folder / "decoder.py").write_text((run_folder / "decoder.py").read_text() + "# changed\n")
    with pytest.raises(UserError, match=r"lacks block.py, and its decoder.py is of another anyformer version"):
        prepare_folder(run_folder)
    config = json.loads((run_folder / "config.json").read_text())
    (run_folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "auto_map"}))
    with pytest.raises(UserError, match="has no auto_map"):
        prepare_folder(run_folder)


def test_a_native_model_needs_no_code(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes)).save_pretrained(tmp_path)
    prepare_folder(tmp_path)
    assert to_publish(tmp_path).keys() == {"config.json", "generation_config.json", "model.safetensors"}
    assert "trust_remote_code" not in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_the_loading_examples_of_a_published_card_run_as_they_stand(hub, run_folder, tmp_path):
    card = published(hub, run_folder)["README.md"].decode()
    remote, local = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    proof = '\nassert type(model).__module__.startswith("{}"), type(model)\n'
    for script in (
        WITHOUT_ANYFORMER + remote + proof.format("transformers_modules"),
        local + proof.format("anyformer"),
    ):
        done = run_python("-c", script, env=hub.env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
