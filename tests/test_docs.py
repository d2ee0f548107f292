"""The documentation is true: what can be named is explained, links lead somewhere, blocks run, quoted errors exist."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from anyformer.pipelines.cli import commands as cli
from anyformer.pipelines.cli.listing import TABLES
from anyformer.pipelines.cli.parser import VERBS
from anyformer.pipelines.experiments.story import read_story
from anyformer.pipelines.plugins import OBJECTIVES
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.field_docs import describe_fields
from anyformer.pipelines.recipes.introspection import family_fields, family_names, training_argument_fields
from anyformer.pipelines.recipes.recipe_files import is_file_of, shipped
from docs_site import docs_pages
from test_readme import NEWCOMERS, blocks

import anyformer

ROOT = Path(__file__).resolve().parents[1]
# Pages with tests of their own: plugins (test_plugins.py), clusters (test_clusters.py), tasks
# (pipelines/objectives/test_question_answering.py).
OWN_TESTS = ("plugins.md", "clusters.md", "learning/tasks.md")
ELSEWHERE = {*(f"{name}.md" for name in NEWCOMERS), *OWN_TESTS}
HAND_WRITTEN = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return docs_pages.pages()


def slug(heading: str) -> str:
    """The anchor of a heading, as markdown's table of contents makes it."""
    own = re.search(r"\{#([\w-]+)\}$", heading)
    return own[1] if own else re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def anchors(text: str) -> set[str]:
    outside_code = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", outside_code, re.MULTILINE)
    return {slug(heading) for heading in headings} | set(re.findall(r'<a id="([\w-]+)"', text))


def test_everything_that_can_be_listed_has_its_place(pages):
    places = {"recipes": ["recipes.md"], "objectives": docs_pages.LEARNING, "tasks": docs_pages.LEARNING}
    places["experiments"] = ["experiments.md"]
    for kind, (make, _) in TABLES.items():
        found = set().union(*(anchors(pages[name]) for name in places.get(kind, ["reference/lists.md"])))
        assert {row[0] for row in make()} <= found, kind


def test_each_recipe_is_explained_by_its_own_header_and_names_what_it_learns(pages):
    sections = re.split(r"^### ", pages["recipes.md"], flags=re.MULTILINE)[1:]
    found = {section.split()[0]: section for section in sections}
    assert set(found) == set(shipped("recipes"))
    for name, section in found.items():
        assert f"anyformer train {name}\n" in section and "It learns [" in section
        for line in docs_pages.recipe_source(name).splitlines():
            if line.startswith("# "):
                assert line[2:].strip() in section, name
    assert "39.72 BLEU" in found["multi30k_en_de"] and "No measured result yet." in found["llama_1b"]


def test_every_setting_and_command_and_public_name_is_in_the_reference(pages):
    settings = pages["reference/settings.md"]
    for row in describe_fields():
        assert row.owners or row.name.split(".")[0] in ("objective", "task") or f"`{row.name}`" in settings, row.name
    assert all(f"\n## {verb}\n" in pages["reference/commands.md"] for verb in VERBS)
    named = re.findall(r"^::: ([\w.]+)$", pages["reference/python.md"], re.MULTILINE)
    assert {name.rpartition(".")[2] for name in named} == set(anyformer._EXPORTS)
    for name in named:
        module = ROOT / (name.rpartition(".")[0].removeprefix("anyformer.").replace(".", "/") + ".py")
        assert module.is_file() or module.with_suffix("").joinpath("__init__.py").is_file(), name


def test_what_the_page_of_words_from_elsewhere_names_exists(pages):
    text = pages["known_as.md"]
    settings = {row.name for row in describe_fields()} | {f"training.{name}" for name in training_argument_fields()}
    for family in ("decoder", "moe", "encoder", "seq2seq", "vit"):
        settings |= {f"model.{name}" for name in family_fields(family)}
    named = set(re.findall(r"`((?:data|tokenizer|model|objective|task|training|evaluation|publish)\.[\w.]+)", text))
    assert len(named) > 50 and named <= settings, named - settings
    for name, value in re.findall(r"`task\.(name|loss)=(\w+)`", text):
        assert name == "loss" or f"#{value}" in docs_pages.places_of_learning()[value]
    for words in map(shlex.split, re.findall(r"`(anyformer [^`]+)`", text)):
        assert words[1] in VERBS and (len(words) == 2 or "--help" in words or cli.parse(words[1:]))


def test_each_objective_and_task_is_in_the_table_of_what_can_be_learned(pages):
    rows = pages["learning/index.md"].splitlines()
    for name, place in docs_pages.places_of_learning().items():
        (row,) = [row for row in rows if f"[`{name}`]({place.removeprefix('learning/')})" in row]
        if row.count("|") == 4 and name != "mixture":  # objectives, with their families
            assert row.endswith(f" | {', '.join(OBJECTIVES[name].families)} |"), name


@pytest.mark.parametrize("family", family_names())
def test_every_field_of_a_familys_config_is_on_its_page_with_a_meaning_as_the_command_prints_it(family, pages, capsys):
    assert cli.main(["list", "fields", family]) == 0
    printed, page = capsys.readouterr().out.splitlines(), pages[f"reference/fields_{family}.md"]
    for name, field in family_fields(family).items():
        assert field.meaning, name
        (row,) = re.findall(rf"^\| `model\.{name}` \| (.+?) \|", page, re.MULTILINE)
        assert row == docs_pages.cell(field.meaning)
        assert any(line.startswith(f"model.{name}: {field.meaning} (") for line in printed), name
    (file,) = [file for file, made in docs_pages.INCLUDED.items() if made == f"reference/fields_{family}.md"]
    assert f"(../{file})" in pages["families.md"]


def test_every_relative_link_leads_to_a_file_that_github_has():
    """Pages that are generated for the site are linked to by what they are made of: docs_pages.INCLUDED."""
    files = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RESULTS.md")]
    for file in [*files, *sorted((ROOT / "docs").rglob("*.md"))]:
        prose = re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        missing = [link for _, link, _ in docs_pages.LINK.findall(prose) if not (file.parent / link).exists()]
        assert not missing, file


def sources() -> str:
    """The sources with strings joined where a line ends and another begins, so that a whole sentence is found."""
    folders = ("pipelines", "modeling")
    text = "\n".join(
        path.read_text(encoding="utf-8") for name in folders for path in sorted((ROOT / name).rglob("*.py"))
    )
    return re.sub(r'"\s*\n\s*f?"', "", text)


def test_each_error_explained_is_one_that_the_code_says():
    quoted = re.findall(r"^> (.+)$", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), re.MULTILINE)
    code = sources()
    assert len(quoted) > 15
    assert [sentence for sentence in quoted if sentence not in code] == []


# ------------------------------------------------------------------------------------------------- blocks


def commands(text: str) -> list[str]:
    lines = [line for block in blocks("bash", text) for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.split("#")[0].strip()]


OTHER = [page for page in HAND_WRITTEN if page not in ELSEWHERE]


@pytest.mark.parametrize("page", OTHER)
def test_the_commands_of_a_page_parse_and_name_recipes_that_exist(page):
    for line in commands((ROOT / "docs" / page).read_text(encoding="utf-8")):
        words = shlex.split(line.split(" > ")[0], comments=True)
        if words[:6] == ["pip", "install", "uv", "&&", "uv", "run"]:
            words = words[6:]
        if words[0] == "sbatch":
            assert any((ROOT / word).is_file() for word in words), line
            continue
        if words[:2] == ["uv", "run"]:
            assert f"\n{words[3]} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8"), line
            continue
        assert words[0] == "anyformer", line
        args = cli.parse(words[1:])
        if words[1] in ("train", "preview") and not args.recipe.endswith(".yaml"):
            (read_story if is_file_of(args.recipe, "stories", "steps") else load_recipe)(args.recipe, args.overrides)


# The first needs datatrove (test_tokenising_large_corpora), the second a trained story (test_story), the third a
# trained quickstart (test_predict).
PYTHON = [page for page in OTHER if page not in ("data.md", "story.md", "predict.md")]


@pytest.mark.parametrize("page", [page for page in PYTHON if "```python" in (ROOT / "docs" / page).read_text()])
def test_the_python_of_a_page_runs(page, capsys):
    namespace: dict = {}
    for block in blocks("python", (ROOT / "docs" / page).read_text()):
        exec(compile(block, page, "exec"), namespace)
    assert capsys.readouterr().out


def built_as_in_the_gate(site: Path, *options: str) -> subprocess.CompletedProcess:
    """The line of .ci/run that builds the site, with further options."""
    program = Path(sys.executable).parent / "mkdocs"
    if not program.exists():
        pytest.skip("needs the extra docs")
    (words,) = re.findall(r"^.* mkdocs (build .+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    command = [str(program), *shlex.split(words.replace("$fresh/site", str(site))), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("text, code", [("A page.", 0), ("[One] [two]", 1)], ids=["whole", "broken"])
def test_a_broken_link_fails_the_gate(text, code, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(text)
    (tmp_path / "mkdocs.yml").write_text("site_name: one page\nplugins: [autorefs]\n")
    done = built_as_in_the_gate(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode == code, done.stderr


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path):
    done = built_as_in_the_gate(tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert not loaded, (page, loaded)
    assert "recipes.md" in (tmp_path / "site" / "llms.txt").read_text()
    shutil.rmtree(tmp_path / "site")
