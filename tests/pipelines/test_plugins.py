"""A plug-in is one file: the examples of docs/plugins.md are loaded from the command line, trained and measured."""

import inspect
import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from anyformer.pipelines import plugins
from anyformer.pipelines.plugins import METRICS, OBJECTIVES, OPTIMIZERS, PARTS, SCHEDULES, SOURCES
from anyformer.pipelines.storage.plugin_code import _with_siblings
from local_hub import run_without_anyformer
from processes import logged_losses
from run_folders import facts_of
from transformers import AutoModelForCausalLM
from unregister import unregister

from anyformer import AnyformerDecoderConfig, AnyformerDecoderForCausalLM, load_recipe, prepare_data

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {"objective": 40, "task": 40, "metric": 10, "data source": 20}
LIMITS |= {"attention kind": 20, "attention class": 15, "optimizer": 15, "schedule": 10, "position scheme": 45}
OF_ATTENTION = ("dilated_attention", "fading_attention")
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 64}
CLOSE = {"atol": 1e-5, "rtol": 0}  # fp32, sums in another order


def examples() -> dict[str, str]:
    """{"objective": source, ...} of the documentation."""
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## An? ([\w ]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", text, flags=re.M | re.S))


@pytest.fixture
def files(tmp_path):
    """The examples as files, and the registries as they were before."""
    registries = (OBJECTIVES, METRICS, SOURCES, OPTIMIZERS, SCHEDULES)
    before = [dict(registry.items()) for registry in registries]
    found = {}
    for kind, source in examples().items():
        found[kind] = tmp_path / f"my_{kind.replace(' ', '_')}.py"
        found[kind].write_text(source)
    yield found
    for name in OF_ATTENTION:
        unregister(name)
    for registry, rows in zip(registries, before):
        for name in set(registry) - set(rows):
            registry.remove(name)
    plugins._loaded.clear()


def test_the_documentation_has_an_example_of_each_kind_as_short_as_it_promises():
    found = examples()
    assert found.keys() == LIMITS.keys()
    for kind, source in found.items():
        assert len([line for line in source.splitlines() if line.strip()]) <= LIMITS[kind], kind


def test_the_methods_that_the_documentation_gives_to_a_part_are_its_own():
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    of_parts = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \|([^|]*)\|$", text, re.M))
    assert tuple(of_parts) == PARTS
    for kind, names in of_parts.items():
        part = getattr(OBJECTIVES["translation"], kind)
        assert [name for name in re.findall(r"`(\w+)`", names) if not callable(getattr(part, name, None))] == []


def test_the_distances_of_the_documented_position_scheme_reach_the_loss():
    namespace: dict = {}
    try:
        exec(compile(examples()["position scheme"], "plugins.md", "exec"), namespace)
        assert namespace["slopes_model"].model.position_encoding.slopes.weight.grad.abs().sum() > 0
    finally:
        unregister("learned_slopes")


def recipe_file(folder: Path, **sections) -> Path:
    path = folder / "mine.yaml"
    recipe = {
        "model": {"family": "seq2seq", **TINY},
        "tokenizer": {"type": "byte_bpe", "vocab_size": 512},
        "training": {"output_dir": str(folder / "run"), "max_steps": 8, "bf16": False, "learning_rate": 1e-2},
    }
    recipe["training"] |= {"logging_steps": 1, "per_device_train_batch_size": 4}
    path.write_text(yaml.safe_dump(recipe | sections))
    return path


def watched(cls: type, monkeypatch) -> set[str]:
    """The names of the methods that a class and its parts define; each is taken out when it is called."""
    waiting, own = set(), [cls, *(getattr(cls, kind, None) for kind in PARTS)]
    for owner in [one for one in own if one is not None and one.__module__ == cls.__module__]:
        for name, method in list(vars(owner).items()):
            if inspect.isfunction(method) and name != "__init__":

                def call(self, *args, _name=name, _method=method, **kwargs):
                    waiting.discard(_name)
                    return _method(self, *args, **kwargs)

                waiting.add(name)
                monkeypatch.setattr(owner, name, call)
    return waiting


def learned(recipe: Path, named: list, command, least: float) -> dict:
    """run.json of a run that is previewed, trained until its loss has fallen so much, and measured again alike."""
    run = recipe.parent / "run"
    assert command("preview", recipe, "--rows", "1", *named) == 0
    assert command("train", recipe, *named) == 0
    losses = logged_losses(run)[:8]
    assert losses[-1] < losses[0] - least
    assert command("evaluate", run, recipe, *named) == 0
    found, facts = json.loads((run / "evaluation-mine.json").read_text())["metrics"], facts_of(run)
    assert {f"validation_{name}": pytest.approx(value, rel=1e-5) for name, value in found.items()} == facts["metrics"]
    return facts


def test_an_objective_and_a_source_train_preview_and_evaluate(files, tmp_path, command, capsys, monkeypatch):
    recipe = recipe_file(
        tmp_path,
        data={"source": "docstrings", "validation_fraction": 0.1},
        objective={"name": "token_deletion", "sequence_length": 32, "deletion_rate": 0.3},
    )
    named = ["--plugin", files["objective"], "--plugin", files["data source"]]
    assert command(*named, "list", "token_deletion") == 0
    uncalled = [watched(cls, monkeypatch) for cls in (OBJECTIVES["token_deletion"], SOURCES["docstrings"])]
    assert "objective.deletion_rate" in capsys.readouterr().out
    run = learned(recipe, named, command, least=0.2)
    assert run["metrics"]["validation_perplexity"] > 1 and run["recipe"]["objective"]["deletion_rate"] == 0.3
    assert [Path(row["plugin"]).name for row in run["plugins"]] == ["my_objective.py", "my_data_source.py"]
    assert all(len(row["sha256"]) == 64 for row in run["plugins"])
    assert "token_deletion" in (tmp_path / "run" / "README.md").read_text()
    assert uncalled == [set(), set()]


def test_the_objective_of_contributing_trains_previews_and_evaluates(files, tmp_path, command, capsys, monkeypatch):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    assert len(source.splitlines()) <= 66 and len([line for line in source.splitlines() if line.strip()]) <= 50
    plugin = tmp_path / "replaced_tokens.py"
    plugin.write_text(source)
    (tmp_path / "text.txt").write_text("".join(f"the dog number {i} runs very far away\n" for i in range(200)))
    recipe = recipe_file(
        tmp_path,
        model={"family": "encoder", **TINY},
        tokenizer={"type": "char"},
        data={"files": str(tmp_path / "text.txt"), "validation_fraction": 0.1},
        objective={"name": "replaced_tokens", "sequence_length": 32, "replaced": 0.5},
    )
    named = ["--plugin", plugin]
    assert command(*named, "list", "replaced_tokens") == 0
    uncalled = watched(OBJECTIVES["replaced_tokens"], monkeypatch)
    assert learned(recipe, named, command, least=0.05)["metrics"]["validation_f1"] > 0.5
    assert "nothing calls" not in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["id2label"] == {"0": "kept", "1": "replaced"}
    assert not uncalled


def test_a_task_and_a_metric_train_and_report(files, tmp_path, command, capsys, monkeypatch):
    rows = [{"long": f"the dog number {i} runs very far away", "short": f"dog {i}"} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"name": "summarization", "source_field": "long", "target_field": "short", "max_length": 48, "num_beams": 1}
    recipe = recipe_file(
        tmp_path,
        tokenizer={"type": "char"},
        data={"files": str(tmp_path / "rows.jsonl")},
        task=task,
        evaluation={"metrics": ["chrf", "length_ratio"]},
    )
    named = ["--plugin", files["task"], "--plugin", files["metric"]]
    assert command(*named, "list", "summarization") == 0
    uncalled = watched(OBJECTIVES["summarization"], monkeypatch)
    capsys.readouterr()
    assert command("train", recipe, *named) == 0
    captured = capsys.readouterr()
    printed = captured.out
    assert not uncalled and captured.err == ""  # no method that nothing calls
    assert f"next: anyformer --plugin {files['task']} --plugin {files['metric']} predict" in printed
    assert "validation length ratio" in printed and "summary of" in printed
    card = (tmp_path / "run" / "README.md").read_text()
    assert "length ratio" in card
    data = prepare_data(load_recipe(str(recipe)))
    tokenizer, row = data.tokenizer, data.rows["train"][0]
    (read,) = tokenizer.batch_decode(data.collator([row])["input_ids"], skip_special_tokens=True)
    assert re.match(r"summarize: the dog number \d+ runs", read)  # also the tokenizer's characters
    (tmp_path / "asked.jsonl").write_text(json.dumps({"long": "the dog runs"}) + "\n")
    given, encode = [], type(tokenizer).__call__

    def encoded(self, *texts, **options):
        given.extend(texts)
        return encode(self, *texts, **options)

    with monkeypatch.context() as patched:
        patched.setattr(type(tokenizer), "__call__", encoded)
        answers = ["--out", tmp_path / "out.jsonl"]
        assert command("predict", tmp_path / "run", tmp_path / "asked.jsonl", *answers, *named) == 0
    assert ["summarize: the dog runs"] in given
    other = load_recipe(str(recipe), task={"prefix": "tl;dr: "})  # another prefix, another tokenizer
    assert set("tl;dr: ") <= prepare_data(other).tokenizer.get_vocab().keys()


@pytest.mark.parametrize(
    "kind, before, after, words",
    [
        ("objective", "def collator(", "def colator(", "ReadsDeleted.colator; did you mean collator?"),
        ("task", "def encoding_key(", "def encode_key(", "Summarization.encode_key; did you mean encoding_key?"),
        ("data source", "def identity(", "def identiy(", "Docstrings.identiy; did you mean identity?"),
        ("task", "def read(", "def source_text(", "nothing calls Summarization.source_text"),
    ],
)
def test_a_method_that_overrides_nothing_is_named(files, command, capsys, kind, before, after, words):
    files[kind].write_text(files[kind].read_text().replace(before, after))
    assert command("--plugin", files[kind], "list") == 0
    message = capsys.readouterr().err
    assert words in message and message.count("\n") == 1
    helper = files[kind].read_text().replace(after, "def helper(self):\n        self.helper()\n\n    " + before)
    files[kind].write_text(helper)
    plugins._loaded.clear()
    assert command("--plugin", files[kind], "list") == 0 and capsys.readouterr().err == ""


def forget_plugins() -> None:
    """As in a new process: no plug-in is loaded."""
    plugins._loaded.clear()
    for name in OF_ATTENTION:
        unregister(name)
    for registry, name in ((OPTIMIZERS, "sign_sgd"), (SCHEDULES, "sawtooth")):
        if name in registry:
            registry.remove(name)


def doors_of(run: Path, recipe: Path, folder: Path) -> list[list]:
    """Commands that open a run, its checkpoint, its recipe, or a copy of its model, and need the plug-ins for it."""
    (folder / "rows.jsonl").write_text(json.dumps({"text": "the dog"}) + "\n")
    out = ["--out", folder / "out.html"]
    return [
        ["evaluate", run],
        ["evaluate", run / "checkpoint-8", recipe],
        ["predict", run, folder / "rows.jsonl", "--out", folder / "out.jsonl"],
        ["generate", run, "the dog"],
        ["inspect", run, "the dog", *out],
        ["check", run],
        ["convert", run, folder / "native"],
        ["publish", run, "me/mine", "--dry-run", "--no-check"],
        ["train", run / "recipe.yaml"],
        ["preview", run / "recipe.yaml"],
        ["train", "quickstart", f"model.name_or_path={run}", f"training.output_dir={folder / 'next'}", "--dry-run"],
    ]


LOAD_AND_SAVE_AGAIN = """
import torch
from transformers import AutoModelForCausalLM

folder, ids = args
found = []
for path in (folder, folder + "-again"):
    model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True).eval()
    with torch.no_grad():
        found.append(model(torch.tensor(ids)).logits[0, -1].tolist())
    model.save_pretrained(folder + "-again")
report(found)
"""


@pytest.mark.parametrize("backend", ["eager", "sdpa", "anyformer"])
def test_an_attention_class_adds_its_scores_in_every_backend_to_packed_padded_and_cached_rows(files, backend):
    exec(compile(files["attention class"].read_text(), "plugins.md", "exec"), {"__name__": "of_a_page"})
    sizes = TINY | {"num_hidden_layers": 2, "num_key_value_heads": 2, "position_encoding": "none"}
    config = AnyformerDecoderConfig(vocab_size=97, attention_pattern=["fading_attention"], **sizes)
    model = AnyformerDecoderForCausalLM(config).eval()
    torch.nn.init.normal_(model.model.layers[0].self_attn.gate.weight, std=0.5)
    model.set_attn_implementation(backend)
    ids = torch.arange(3, 35).view(2, 16)
    before, after = ids.split(8, dim=1)
    positions = torch.arange(8).repeat(2).expand(2, -1)
    mask = torch.ones(2, 20, dtype=torch.long).index_fill(1, torch.arange(4), 0)
    with torch.no_grad():
        apart = torch.cat([model(part).logits for part in (before, after)], dim=1)
        cached = model(after, past_key_values=model(before, use_cache=True).past_key_values).logits
        padded = model(torch.nn.functional.pad(ids, (4, 0)), attention_mask=mask).logits[:, 4:]
        whole = model(ids).logits
        torch.testing.assert_close(model(ids, position_ids=positions).logits, apart, **CLOSE)
        torch.testing.assert_close(cached, whole[:, 8:], **CLOSE)
        torch.testing.assert_close(padded, whole, **CLOSE)
        for layer in model.model.layers:
            layer.self_attn.score_bias = lambda q, k, **kwargs: (None, kwargs)
        assert (model(ids).logits - whole).abs().max() > 1e-3  # the gates reach the answer
    with pytest.raises(ValueError, match="Flash Attention 2"):
        model.set_attn_implementation("flash_attention_2")


@pytest.fixture
def three_kinds(files, tmp_path, command):
    """(a recipe, the words that name its plug-ins) of a run in tmp_path / "run"."""
    (tmp_path / "text.txt").write_text("the dog runs very far away and the cat runs after it\n" * 200)
    recipe = recipe_file(
        tmp_path,
        model={"family": "decoder", **TINY, "num_hidden_layers": 2, "attention_pattern": list(OF_ATTENTION)}
        | {"dilation": 2},
        tokenizer={"type": "char"},
        data={"files": str(tmp_path / "text.txt"), "validation_fraction": 0.1},
        objective={"name": "causal", "sequence_length": 32},
    )
    kinds = ("attention kind", "attention class", "optimizer", "schedule")
    named = [part for kind in kinds for part in ("--plugin", files[kind])]
    own = ["training.optim=sign_sgd", "training.learning_rate=1e-3", "training.lr_scheduler_type=sawtooth"]
    own += ["training.lr_scheduler_kwargs={teeth: 2}", "training.warmup_steps=2"]
    assert command("train", recipe, *own, *named) == 0
    return recipe, named


def test_an_attention_kind_an_optimizer_and_a_schedule_train_and_are_asked_for_at_every_door(
    three_kinds, files, tmp_path, command, capsys
):
    run, (recipe, named) = tmp_path / "run", three_kinds
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[:8]]
    rates = [round(row["learning_rate"] * 1e3, 6) for row in logged]
    assert rates[2:] == [round(1 - i / 3, 6) for i in (0, 1, 2, 0, 1, 2)] and rates[0] == round(1 / 3, 6)
    assert logged[-1]["loss"] < logged[0]["loss"]

    mixed = files["attention kind"].read_text() + "\nfrom anyformer import register_metric\n"
    forget_plugins()
    # Beside the plug-ins, which are then named as one would.
    asked = [f"--plugin {file.name}" for file in named[1::2]]
    for argv in doors_of(run, recipe, tmp_path):
        capsys.readouterr()
        assert command(*argv) == 2, argv
        message = capsys.readouterr().err
        assert message.endswith(f"add {' '.join(asked)}\n"), message
        assert message.count("\n") == 1 and "did you mean" not in message and "known:" not in message
    assert command("evaluate", run, *named[:2]) == 2  # one of four is given: the others are named
    assert capsys.readouterr().err.endswith(f"add {' '.join(asked[1:])}\n")
    forget_plugins()
    files["attention kind"].write_text(mixed)
    again = [f"training.output_dir={tmp_path / 'other'}", *named[:4]]
    capsys.readouterr()
    assert command("train", recipe, *again) == 2
    assert "keep position schemes and kinds of attention in a file of their own" in capsys.readouterr().err


@pytest.mark.slow
def test_the_folder_of_an_attention_kind_loads_without_it(three_kinds, tmp_path):
    run, ids = tmp_path / "run", [[5, 9, 3, 7, 11]]
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(run).eval()(torch.tensor(ids)).logits[0, -1].tolist()
    assert run_without_anyformer(LOAD_AND_SAVE_AGAIN, run, ids, cwd=tmp_path) == [expected, expected]


@pytest.mark.parametrize(
    "argv, words",
    [
        (["train", "mine.yaml", "training.optim=sign_sdg"], "did you mean sign_sgd"),
        (["train", "mine.yaml", "training.lr_scheduler_type=sawtoth"], "did you mean sawtooth"),
        (["--plugin"], "--plugin: expected one argument"),
        (["--plugin", "nowhere.py", "list"], "--plugin nowhere.py: no such file"),
        (["--plugin", "no_such_module_of_ours", "list"], "cannot be loaded: ModuleNotFoundError"),
        (["train", "mine.yaml", "objective.deletion_rat=1"], "did you mean objective.deletion_rate"),
        (["train", "mine.yaml", "objective.name=summarization"], "write task.name=summarization"),
    ],
)
def test_mistakes_are_one_sentence_and_know_the_names_of_plug_ins(
    files, tmp_path, command, capsys, monkeypatch, argv, words
):
    recipe_file(tmp_path, data={"source": "docstrings"}, objective={"name": "token_deletion", "sequence_length": 32})
    monkeypatch.setenv("ANYFORMER_PLUGINS", ",".join(str(path) for path in files.values()))
    assert command(*argv) == 2
    message = capsys.readouterr().err
    assert words in message and message.count("\n") == 1


@pytest.mark.parametrize(
    "source, saved",
    [
        ("if A:\n\tfrom anyformer.modeling.base import B\n", "if A:\n\tfrom .base import B\n"),
        ("é = 1; from anyformer.modeling.base import (\n  B,\n)  # b\n", "é = 1; from .base import B  # b\n\n\n"),
        ("a = 1\n\x0c\nfrom anyformer.modeling.base import B\n", "a = 1\n\x0c\nfrom .base import B\n"),
    ],
)
def test_imports_of_a_saved_plug_in_stay_in_their_place(tmp_path, source, saved):
    (tmp_path / "part.py").write_text(source)
    assert _with_siblings(tmp_path / "part.py") == saved


def test_two_rows_of_one_name_are_refused(files):
    plugins.load_plugins([str(files["metric"])])
    with pytest.raises(plugins.UserError, match="metric 'length_ratio' is registered already"):
        METRICS.add("length_ratio", object())
    registry = plugins.Registry("thing", "json")
    registry.announce({"mine": "a.module.that.is.not.imported"})
    with pytest.raises(plugins.UserError, match="thing 'mine' is registered already"):
        registry.add("mine", object())


def test_a_downloaded_recipe_cannot_name_a_plug_in(tmp_path, command, capsys):
    recipe = recipe_file(tmp_path, data={"source": "stdlib"}, plugins=["evil.py"])
    assert command("train", recipe) == 2
    assert "plugins: no such section" in capsys.readouterr().err
