"""Laws of the command line: light start, one sentence and exit code 2 for user errors, thin doors."""

import errno
import json
import os
import signal
import subprocess
import sys
import types
from unittest.mock import Mock

import anyformer.pipelines.cli.commands as cli
import pytest
from anyformer.pipelines.cli import train_command
from anyformer.pipelines.cli.listing import TABLES
from anyformer.pipelines.cli.parser import parse
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.compose import load_recipe, recipe_from_dict
from anyformer.pipelines.recipes.strict_yaml import parse_yaml

from anyformer_main import main

HEAVY = ("torch", "transformers", "datasets", "tokenizers", "accelerate", "numpy")


def words_id(value) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)[:20]


def failing(capsys, *argv) -> tuple[int, str]:
    """(exit code, the one line on stderr) of a command that must fail without a traceback and print nothing else."""
    code = main(list(argv))
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("anyformer: ") and err.count("\n") == 1 and "Traceback" not in err
    return code, err.removeprefix("anyformer: ").rstrip("\n")


@pytest.fixture
def fake_module(monkeypatch):
    """Stand in for a heavy module behind a verb: records the call, returns or raises what is given."""

    def install(name, result):
        module = types.ModuleType(f"anyformer.pipelines.{name}")
        fails = isinstance(result, BaseException)
        module.train = Mock(side_effect=result) if fails else Mock(return_value=result)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module.train

    return install


WITHOUT_TORCH = [
    (["--help"], 0),
    (["train", "--help"], 0),
    (["--version"], 0),
    (["list"], 0),
    (["train", "quickstart", "training.learnig_rate=1"], 2),
    (["train", "quickstart", "model.num_attention_heads=7"], 2),
    (["train", "no_such_recipe"], 2),
    (["train", "quickstart", "--print-recipe"], 0),
    (["train", "fashion_mnist_vit", "--print-recipe"], 0),
    (["train", "imdb_classify", "--print-recipe"], 0),
    (["preview", "quickstart", "data.files=x"], 2),
    (["plan", "quickstart", "--devices", "8xH100", "--zero", "3"], 2),
    (["evaluate", "no/such/model", "quickstart"], 2),
    (["evaluate", os.path.dirname(__file__), "quickstart", "task.num_beams=1"], 2),
    (["generate", "no/such/model", "text"], 2),
    (["convert", "gpt2", os.path.dirname(__file__)], 2),
]


def test_nothing_heavy_is_imported_where_nothing_is_trained():
    """One command after the other in one process: what the first heavy one imports would show from there on."""
    program = (
        "import json, sys, anyformer_main\n"
        "for argv in json.loads(sys.argv[1]):\n"
        "    try:\n        code = anyformer_main.main(argv)\n"
        "    except SystemExit as exit:\n        code = exit.code\n"
        f"    print('loaded:', code, [name for name in {HEAVY} if name in sys.modules])"
    )
    commands = json.dumps([argv for argv, _ in WITHOUT_TORCH])
    done = subprocess.run([sys.executable, "-c", program, commands], capture_output=True, text=True, timeout=120)
    found = [line for line in done.stdout.splitlines() if line.startswith("loaded:")]
    assert found == [f"loaded: {code} []" for _, code in WITHOUT_TORCH], done.stderr


def test_a_command_loads_the_files_that_it_runs_alone():
    program = (
        "import sys, anyformer_main\n"
        "anyformer_main.main(sys.argv[1:])\n"
        "print(*(name for name in sys.modules if name.partition('.')[0] in ('anyformer', 'anyformer_main')))"
    )
    words = [sys.executable, "-c", program, "train", "quickstart", "--print-recipe"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    files = done.stdout.splitlines()[-1].split()
    assert len(files) <= 53, files  # eight of them are the interface of what is learned: a row and its parts
    assert not [name for name in files if name.endswith(("_command", ".masked")) and "train_" not in name]


@pytest.mark.parametrize(
    "argv, words",
    [
        (["train", "--help", "trainig"], "--help trainig: no such section; did you mean training?"),
        (["trian"], "'trian': no such command; did you mean train?"),
        (["train", "quickstart", "--dry"], "'--dry': no such argument"),
        (["train", "training.seed=1"], "anyformer train RECIPE training.seed=1"),
        (["preview", "quickstart", "--rows", "x"], "whole number"),
        (["list", "recipe"], "recipes"),
        (["evaluate", "runs"], "TASK"),
        (["evaluate", "runs", "task.num_beams=1"], "anyformer evaluate MODEL TASK task.num_beams=1"),
        (["evaluate", os.path.dirname(__file__), "task.num_beams=1"], "no model in this folder"),
        (["list", "fields", "decodr"], "did you mean decoder?"),
        (["generate", "runs", "text", "--greedy", "--top-k", "3"], "top_k=3 has no effect without sampling"),
        (["generate", "runs", "text", "--top-p", "1.5"], "top_p=1.5"),
        (["publish", "runs"], "REPO_ID"),
    ],
    ids=words_id,
)
def test_wrong_arguments_are_one_sentence_with_exit_code_2(argv, words, capsys):
    code, sentence = failing(capsys, *argv)
    assert code == 2 and words in sentence


def test_no_command_shows_the_help(capsys):
    assert main([]) == 2
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--debug", "train"], ["train", "--debug"]])
def test_debug_shows_the_traceback_before_or_after_the_command(argv, capsys):
    assert main([*argv, "quickstart", "training.sead=1"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err and err.endswith("did you mean training.seed?\n")


FULL_DISK = (
    "the disk is full, or a quota or limit of file sizes (ulimit -f) is reached; nothing that is half written was "
    "kept; free some space and run the same again"
)


@pytest.mark.parametrize(
    "error, code, words",
    [
        (UserError("one sentence"), 2, "one sentence"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 2, f"/x/y: {FULL_DISK}"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 2, "/x: Permission denied"),
        (OSError("a library's\nlong story"), 2, "a library's long story"),
        (ValueError("a bug"), 1, "unexpected ValueError: a bug; run again with --debug for the traceback"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_ends_in_its_exit_code(error, code, words, fake_module, capsys):
    fake_module("training.run", error)
    assert failing(capsys, "train", "quickstart") == (code, words)


def test_the_rank_is_named_where_there_are_several(fake_module, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    fake_module("training.run", UserError("stop"))
    assert main(["train", "quickstart"]) == 2
    assert capsys.readouterr().err == "anyformer (rank 1): stop\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["quickstart", "training.seed=7", "--dry-run"],
        ["quickstart", "--dry-run", "training.seed=7"],
        ["--local_rank=0", "quickstart", "--dry-run", "training.seed=7"],
        ["--local-rank", "1", "--dry-run", "quickstart", "training.seed=7"],
    ],
    ids=" ".join,
)
def test_train_passes_recipe_and_flags_in_any_order(argv, fake_module, monkeypatch):
    ignored = []  # in this process, which lives on, the signal keeps its meaning
    monkeypatch.setattr("anyformer_main.signal.signal", lambda *given: ignored.append(given))
    train = fake_module("training.run", 143)
    assert main(["train", *argv]) == 143 and ignored == [(signal.SIGTERM, signal.SIG_IGN)]
    given = {"dry_run": True, "began": train_command.BEGAN}
    train.assert_called_once_with(load_recipe("quickstart", ["training.seed=7"]), **given)


def test_the_printed_recipe_is_the_composed_one(capsys):
    assert main(["train", "quickstart", "training.seed=7", "--print-recipe"]) == 0
    printed = recipe_from_dict(parse_yaml(capsys.readouterr().out, "stdout"))
    assert printed == load_recipe("quickstart", ["training.seed=7"])


def test_help_names_every_setting_by_section_and_explains_a_section(capsys, monkeypatch):
    from anyformer.pipelines.recipes.field_docs import describe_fields

    def shown(*words):
        with pytest.raises(SystemExit) as exit:
            main(["train", "--help", *words])
        assert exit.value.code == 0
        return capsys.readouterr().out

    rows = [row for row in describe_fields() if "*" not in row.name]
    overview, training, everything = shown(), shown("training"), shown("all")
    assert all(row.name.partition(".")[2] in overview for row in rows)
    weight_decay = "training.weight_decay: decoupled weight decay on matrices (a number, at least 0, at most 100"
    assert f"{weight_decay}, default 0.1)" in training.splitlines()
    assert "evaluation." not in training and all(f"{row.name}: {row.help}" in everything for row in rows)
    assert shown("quickstart") == overview  # no section
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, shown("training").splitlines())) < 80


def test_list_names_what_a_recipe_may_say():
    from anyformer.pipelines.plugins import METRICS, OBJECTIVES

    listed = {kind: make() for kind, (make, _) in TABLES.items()}
    names = {kind: [row[0] for row in rows] for kind, rows in listed.items()}
    assert all(len(set(rows)) == len(rows) for rows in names.values())
    assert all(cell for rows in listed.values() for row in rows for cell in row)
    assert sorted([*names["objectives"], *names["tasks"]]) == sorted(OBJECTIVES) and names["metrics"] == list(METRICS)


@pytest.mark.parametrize(
    "words, option",
    [
        (["sweep", "quickstart"], "out"),
        (["evaluate", "runs"], "output"),
        (["evaluate", "runs"], "predictions"),
        (["predict", "runs", "a.csv"], "out"),
        (["inspect", "runs", "a text"], "out"),
        (["report", "runs"], "figures"),
        (["report", "runs"], "out"),
        (["check", "runs"], "html"),
    ],
    ids=lambda given: given if isinstance(given, str) else given[0],
)
def test_what_is_written_may_lie_in_the_home_folder(words, option):
    assert getattr(parse([*words, f"--{option}=~/x"]), option) == os.path.expanduser("~/x")


@pytest.mark.parametrize("words", [["train", "quickstart", "--print-recipe"], ["list"]])  # by print, and by rich
def test_a_reader_that_leaves_early_is_no_error(words):
    reader, writer = os.pipe()
    os.close(reader)
    door = [sys.executable, "-P", "-m", "anyformer_main", *words]
    done = subprocess.run(door, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert (done.returncode, done.stderr) == (cli.EXIT_BROKEN_PIPE, "")


def test_closed_streams_are_no_error_and_nothing_is_opened_in_their_place():
    words = f"{sys.executable} -P -m anyformer_main list <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("code", [128 + signal.SIGKILL, 128 + signal.SIGTERM, 255])
def test_every_code_of_a_command_is_that_of_the_process(code, monkeypatch):
    """Also of a rank that was killed, or that ended with a number which is no signal's."""
    monkeypatch.setattr(cli, "main", lambda argv: code)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["train", "quickstart"]) == code
    signal.signal(signal.SIGTERM, before)


def test_the_file_for_launchers_is_the_same_command(repo_root, tmp_path):
    door = [sys.executable, str(repo_root / "scripts" / "train.py"), "--no-such-option"]
    done = subprocess.run(door, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("anyformer: ") and done.stderr.count("\n") == 1
