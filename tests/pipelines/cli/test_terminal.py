"""Laws of what commands print: readable at 80 columns, JSON alone for scripts, completion, a next step for people."""

import json
import shutil
import subprocess

import pytest
from anyformer.pipelines.cli import commands as cli
from anyformer.pipelines.cli import listing, settings_help
from anyformer.pipelines.cli.completion_command import completion, known_words
from anyformer.pipelines.cli.parser import VERBS, build_parser
from anyformer.pipelines.recipes.recipe_files import shipped
from rich.console import Console


@pytest.mark.parametrize("kind", list(listing.TABLES))
def test_lists_are_json_with_a_name_and_the_same_records(kind, capsys):
    assert cli.main(["list", kind, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["name"] for record in records] == [row[0] for row in listing.TABLES[kind][0]()]


def test_everything_and_one_objective_are_json_too(capsys):
    assert cli.main(["list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(listing.TABLES)
    assert cli.main(["list", "masked", "--json"]) == 0
    masked = json.loads(capsys.readouterr().out)
    assert masked["families"] == ["decoder", "moe", "encoder"] and masked["settings"]
    assert cli.main(["list", "--legal", "--json"]) == 2
    assert capsys.readouterr().err == "anyformer: --legal prints no JSON; leave out --json\n"


@pytest.fixture
def terminal(monkeypatch, capsys):
    """What is printed where the standard output is a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(settings_help, "_width", lambda: 79)
    real = Console.__init__
    wide = {"width": 80, "force_terminal": True, "color_system": None}
    monkeypatch.setattr(Console, "__init__", lambda self, **kwargs: real(self, **(kwargs | wide)))
    return lambda: capsys.readouterr().out


@pytest.mark.parametrize("kind", list(listing.TABLES))
def test_no_line_of_a_list_is_longer_than_80_columns_and_no_name_is_broken(kind, terminal):
    listing.print_tables(kind)
    printed = terminal()
    assert max(map(len, printed.splitlines())) <= 80
    assert all(row[0] in printed for row in listing.TABLES[kind][0]())


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_into_80_columns_but_for_examples_which_can_be_copied(verb, terminal):
    with pytest.raises(SystemExit, match="0"):
        cli.main([verb, "--help"])
    text, _, examples = terminal().partition("examples:\n")
    assert examples.startswith(f"  anyformer {verb}")
    assert max(map(len, text.splitlines())) <= 80
    assert max(map(len, examples.splitlines())) <= 100


# ------------------------------------------------------------------------------------------------- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_verbs_options_recipes_and_settings(shell):
    pytest.importorskip("shtab")
    script = completion(build_parser(), shell)
    words = known_words()
    assert set(shipped("recipes")) <= set(words["recipes"]) and "masked" in words["kinds"]
    assert {"training.learning_rate=", "model.hidden_size=", "data.files="} <= set(words["settings"])
    assert all(word in script for kind in words.values() for word in kind)
    assert all(verb in script for verb in VERBS) and "dry-run" in script


@pytest.mark.parametrize(
    "typed, found",
    [
        (["pl"], {"plan"}),
        (["train", "quicks"], {"quickstart"}),
        (["train", "quickstart", "training.learning_r"], {"training.learning_rate="}),
        (["train", "--dry"], {"--dry-run"}),
        (["list", "mask"], {"masked", "masked_image"}),
    ],
    ids=lambda words: " ".join(sorted(words)),
)
def test_bash_completes(typed, found, tmp_path):
    pytest.importorskip("shtab")
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    (tmp_path / "script").write_text(completion(build_parser(), "bash"))
    words = " ".join(["anyformer", *typed])
    program = (
        f"source {tmp_path / 'script'}; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; "
        f'_anyformer anyformer "{typed[-1]}" "{typed[-2] if len(typed) > 1 else "anyformer"}"; '
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run([bash, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == found
