"""Pages of the documentation that are made from the code: mkdocs calls the `on_` functions (mkdocs.yml, `hooks`).

The pages on recipes, settings, commands, lists and Python names are generated; RESULTS.md, CONTRIBUTING.md and the
notebooks are included. In a page written by hand, `<!-- settings: causal -->` stands for the settings of an objective;
so do `presets: FAMILY`, `recipes: FAMILY` and `results: RECIPE, RECIPE` for other tables. Nothing is downloaded.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path += [str(ROOT), str(ROOT / "scripts" / "results")]  # the first where anyformer is not installed
from anyformer.pipelines.cli.legality_table import legality_markdown  # noqa: E402
from anyformer.pipelines.cli.listing import TABLES, family_rows, preset_rows, summary  # noqa: E402
from anyformer.pipelines.cli.parser import build_parser  # noqa: E402
from anyformer.pipelines.cli.settings_help import REST, by_section  # noqa: E402
from anyformer.pipelines.plugins import OBJECTIVES  # noqa: E402
from anyformer.pipelines.recipes.compose import load_preset, names_of  # noqa: E402
from anyformer.pipelines.recipes.field_docs import describe_family, describe_objective  # noqa: E402
from anyformer.pipelines.recipes.introspection import family_names, family_texts  # noqa: E402
from anyformer.pipelines.recipes.recipe_files import shipped, shipped_yaml  # noqa: E402
from results_table import FILE as RESULTS  # noqa: E402
from results_table import HEADER, rows_of  # noqa: E402

import anyformer  # noqa: E402
from anyformer import modeling  # noqa: E402

NOTEBOOKS = ROOT / "notebooks"
# Files and folders of the repository that pages link to -> the pages of the site that take their place.
INCLUDED = {
    "RESULTS.md": "results.md",
    "CONTRIBUTING.md": "contributing.md",
    "scripts/benchmarks/RESULTS.md": "benchmarks.md",
    "README.md": "index.md",
    "configs/recipes": "recipes.md",
    "pipelines/recipes/schema.py": "reference/settings.md",
    "pipelines/cli/parser.py": "reference/commands.md",
    "pipelines/cli/listing.py": "reference/lists.md",
    "modeling/rules/kinds.py": "reference/legality.md",
    "anyformer/__init__.py": "reference/python.md",
    "modeling/decoder.py": "reference/fields_decoder.md",
    "modeling/moe.py": "reference/fields_moe.md",
    "modeling/encoder.py": "reference/fields_encoder.md",
    "modeling/configuration_seq2seq.py": "reference/fields_seq2seq.md",
    "modeling/configuration_vit.py": "reference/fields_vit.md",
} | {f"notebooks/{file.name}": f"notebooks/{file.stem}.md" for file in NOTEBOOKS.glob("*.ipynb")}
LEARNING = sorted(f"learning/{page.name}" for page in (DOCS / "learning").glob("*.md"))
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)]*)?\))")


# ------------------------------------------------------------------------------------------------- small parts


def joined(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Rows as a markdown table."""
    lines = [list(header)]
    lines += [["---"] * len(lines[0]), *rows]
    return "\n".join("| " + " | ".join(cell(text) for text in line) + " |" for line in lines) + "\n"


def cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def settings_table(rows) -> str:
    """Settings (FieldDoc) with their meanings, types and defaults."""
    written = []
    for row in rows:
        default = "" if row.default in (None, "", [], {}) else f"`{row.default}`"
        written.append((f"`{row.name}`", row.help, row.type, default))
    return table(("setting", "meaning", "type", "default"), written)


def places_of_learning() -> dict[str, str]:
    """{objective or task: its page and anchor}, from the headings of docs/learning."""
    places = {}
    for page in sorted((DOCS / "learning").glob("*.md")):
        for name in re.findall(r"^## .*\{#(\w+)\}$", page.read_text(encoding="utf-8"), re.MULTILINE):
            places[name] = f"learning/{page.name}#{name}"
    return places


# ------------------------------------------------------------------------------------------------- recipes


def recipe_source(name: str) -> str:
    return (ROOT / "configs" / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def family_of(name: str) -> str:
    """The family that a recipe trains; if it starts from another recipe's run, that recipe's family."""
    model = shipped_yaml("recipes", name)["model"]
    if "family" in model:
        return model["family"]
    if "preset" in model:
        return load_preset(model["preset"])[0]
    base = Path(model["name_or_path"]).name
    return family_of(base) if base in shipped("recipes") else "encoder"  # MiniLM, which no recipe trains


def header_of(source: str) -> str:
    """The comment at the head of a recipe as markdown: its indented lines are commands and settings."""
    lines = []
    for line in source.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line[1:].removeprefix(" "))
    written, code = [], False
    for line in lines:
        if line.startswith("  ") != code:
            code = not code
            written += ["", "```text"] if code else ["```", ""]
        written.append(line.removeprefix("  ") if code else line)
    return "\n".join([*written, *(["```"] if code else [])]).strip()


def results_of(*names: str) -> str:
    """The rows of RESULTS.md that name one of the recipes, or the sentence that there is none."""
    rows = [row.cells for row in rows_of(RESULTS.read_text(encoding="utf-8"))]
    rows = [cells for cells in rows if set(re.findall(r"\w+", cells[0])) & set(names)]
    if not rows:
        return "No measured result yet.\n"
    return table(HEADER, rows) + "\nA letter names a command in [all results](../RESULTS.md).\n"


def recipes_page() -> str:
    places, families = places_of_learning(), {}
    for name in sorted(shipped("recipes"), key=lambda name: (name != "quickstart", name)):
        families.setdefault(family_of(name), []).append(name)
    parts = [
        "# Recipes",
        "A recipe is one YAML file: model, tokenizer, data, objective or task, training, evaluation. These ship with "
        "the package; `anyformer train NAME` runs one, `--print-recipe` after it shows it with every default. "
        "Their data, where they need files, are yours to provide.",
        table(
            ("recipe", "what it trains"),
            [
                (f"[{name}](#{name})", shipped_yaml("recipes", name)["description"])
                for names in families.values()
                for name in names
            ],
        ),
    ]
    for family, words, _ in family_rows():
        parts += [f"## {family}", f"{words[0].upper()}{words[1:]}: [more about it](families.md#{family})."]
        for name in families.get(family, []):
            recipe = shipped_yaml("recipes", name)
            learned = (recipe.get("task") or recipe.get("objective") or {}).get("name", "causal")
            place = f"[{learned}]({places[learned]})" if learned in places else learned
            indented = "\n".join(f"    {line}".rstrip() for line in recipe_source(name).splitlines())
            parts += [
                f"### {name} {{#{name}}}",
                f"{recipe['description'][0].upper()}{recipe['description'][1:]}. It learns {place}.",
                header_of(recipe_source(name)),
                f"```bash\nanyformer train {name}\n```",
                results_of(name),
                f'??? note "configs/recipes/{name}.yaml"\n\n    ```yaml\n{indented}\n    ```',
            ]
    return joined(*parts)


def recipes_of(family: str) -> str:
    rows = [name for name in shipped("recipes") if family_of(name) == family]
    described = [(f"[{name}](recipes.md#{name})", shipped_yaml("recipes", name)["description"]) for name in rows]
    return table(("recipe", "what it trains"), described)


# ------------------------------------------------------------------------------------------------- settings and lists


def settings_page() -> str:
    fields = ", ".join(f"[{family}](fields_{family}.md)" for family in family_names())
    parts = [
        "# Settings of a recipe",
        "Every setting that the schema names, section by section, made from the dataclasses that check recipes. "
        f"`model` takes besides {REST['model']}: {fields}. `training` takes {REST['training']}. "
        "`anyformer train --help SECTION` prints the same. The settings of each objective and task are on "
        "[their pages](../learning/index.md).",
    ]
    for section, rows in by_section().items():
        if section in ("objective", "task"):
            links = [f"[{name}](../{places_of_learning()[name]})" for name in names_of(section)]
            parts += [f"## {section}", f"`{section}.name` decides which settings there are: {', '.join(links)}."]
        else:
            parts += [f"## {section}", settings_table(rows)]
    return joined(*parts)


def fields_page(family: str) -> str:
    """What `anyformer list fields FAMILY` prints, and what the config's docstrings say of it."""
    texts = [text.partition("\n\nRaises:")[0] for text in family_texts(family)]
    return joined(
        f"# Fields of {family}",
        f"Every field that a recipe's `model` takes for the family [{family}](../families.md#{family}), as its config "
        f"does in Python; made from the config. `anyformer list fields {family}` prints the same, and [what goes "
        "together](legality.md) has the combinations.",
        settings_table(describe_family(family)),
        "## How they belong together",
        *texts,
    )


def settings_of(name: str) -> str:
    """What `anyformer list NAME` prints of an objective or task, and the recipes that use it."""
    cls = OBJECTIVES[name]
    families = ", ".join(f"[{family}](../families.md#{family})" for family in cls.families)
    metrics = ", ".join(f"`{metric}`" for metric in cls.metric_names()) or "none"
    users = [
        recipe
        for recipe in shipped("recipes")
        for learned in [shipped_yaml("recipes", recipe)]
        if (learned.get("task") or learned.get("objective") or {}).get("name", "causal") == name
    ]
    links = ", ".join(f"[{recipe}](../recipes.md#{recipe})" for recipe in users) or "none"
    rows = list(describe_objective(name))
    shown = settings_table(rows)
    details = f'??? note "settings of {name}"\n\n' + "\n".join(f"    {line}".rstrip() for line in shown.splitlines())
    return f"{summary(name, cls)}.\n\nFamilies: {families}. Metrics: {metrics}. Recipes: {links}.\n\n{details}\n"


def presets_of(family: str) -> str:
    rows = [(f"`{name}`", count, line) for name, row_family, count, line in preset_rows() if row_family == family]
    return table(("preset", "parameters", "architecture"), rows)


def lists_page() -> str:
    parts = ["# Presets, metrics, suites, sources", "What recipes can name, as `anyformer list` prints it."]
    for kind in ("presets", "metrics", "suites", "stories", "sources", "families"):
        make, columns = TABLES[kind]
        rows = [(f'<a id="{name}"></a>`{name}`', *rest) for name, *rest in make()]
        lines = table(columns, [("", *rest) for _, *rest in rows]).splitlines()
        lines[2:] = [f"| {first} |{line[4:]}" for (first, *_), line in zip(rows, lines[2:])]
        parts += [f"## {kind}", "\n".join(lines)]
    return joined(*parts)


def legality_page() -> str:
    """What `anyformer list --legal` prints."""
    return legality_markdown()


def commands_page() -> str:
    """The help of every verb, as a terminal of 100 columns shows it."""
    os.environ["COLUMNS"], before = "100", os.environ.get("COLUMNS")
    try:
        parser = build_parser()
        verbs = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parts = ["# Commands", f"```text\n{parser.format_help()}```"]
        parts += [f"## {verb}\n\n```text\n{command.format_help()}```" for verb, command in verbs.choices.items()]
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return joined(*parts)


def python_page() -> str:
    """Every public name with its docstring; mkdocstrings reads them from the sources, without importing them."""
    groups: dict[str, list[str]] = {"Runs, data and conversion": [], "Extending": [], "Models": []}
    for name, module in anyformer._EXPORTS.items():
        models, extends = module == "anyformer.modeling", name.startswith("register") or name in EXTENDING
        title = "Models" if models else "Extending" if extends else "Runs, data and conversion"
        module = f"{module}.{modeling._EXPORTS[name]}" if models else module
        file = module.removeprefix("anyformer.").replace(".", "/")
        if (ROOT / file / "__init__.py").is_file():  # a name that a package re-exports
            module = module_of(ROOT / file, name)
        groups[title].append(f"::: {module}.{name}")
    parts = [
        "# Python",
        "`import anyformer` registers the families with transformers' Auto classes; every name below is "
        "`anyformer.NAME`, loaded on first use.",
    ]
    for title, entries in groups.items():
        parts += [f"## {title}", *entries]
    return joined(*parts)


def module_of(package: Path, name: str) -> str:
    """The module of a package in which a class or function is defined."""
    for file in sorted(package.glob("*.py")):
        if re.search(rf"^(?:def|class) {name}\b", file.read_text(encoding="utf-8"), re.MULTILINE):
            dotted = f"anyformer.{package.relative_to(ROOT).as_posix().replace('/', '.')}"
            return dotted if file.stem == "__init__" else f"{dotted}.{file.stem}"
    raise LookupError(f"{name} is defined nowhere in {package}")


def included(file: str) -> str:
    """A file of the repository as a page: its links begin from `docs`."""
    text, folder = (ROOT / file).read_text(encoding="utf-8"), Path(file).parent
    return LINK.sub(lambda match: match[1] + os.path.relpath(folder / match[2], "docs") + match[3], text)


def notebook_page(file: Path) -> str:
    """A notebook's cells as markdown, outputs left out; the notebook itself lies beside the page."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    parts = []
    for entry in cells:
        source = "".join(entry["source"])
        parts.append(source if entry["cell_type"] == "markdown" else f"```python\n{source}\n```")
    parts.insert(1, f"[The notebook: {file.name}](../../notebooks/{file.name})")
    return joined(*parts)


GENERATED: dict[str, Callable[[], str]] = {
    "recipes.md": recipes_page,
    "reference/settings.md": settings_page,
    **{f"reference/fields_{family}.md": partial(fields_page, family) for family in family_names()},
    "reference/commands.md": commands_page,
    "reference/lists.md": lists_page,
    "reference/legality.md": legality_page,
    "reference/python.md": python_page,
    "results.md": lambda: included("RESULTS.md"),
    "contributing.md": lambda: included("CONTRIBUTING.md"),
    "benchmarks.md": lambda: included("scripts/benchmarks/RESULTS.md"),
}
MARKERS: dict[str, Callable[[str], str]] = {
    "settings": settings_of,
    "presets": presets_of,
    "recipes": recipes_of,
    "results": lambda names: results_of(*names.replace(",", " ").split()),
}
EXTENDING = ("Objective", "AnyformerTrainer")  # beside what is registered
MARKER = re.compile(rf"^<!-- ({'|'.join(MARKERS)}): (.+?) -->$", re.MULTILINE)


def filled(text: str) -> str:
    """A page written by hand with its markers replaced by what they name."""
    return MARKER.sub(lambda match: MARKERS[match[1]](match[2]), text)


def pages() -> dict[str, str]:
    """{place below docs: markdown} of every page of the site."""
    files = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    written = {name: filled(path.read_text(encoding="utf-8")) for name, path in files.items()}
    notebooks = {f"notebooks/{file.stem}.md": notebook_page(file) for file in sorted(NOTEBOOKS.glob("*.ipynb"))}
    return written | {name: make() for name, make in GENERATED.items()} | notebooks


# ------------------------------------------------------------------------------------------------- what mkdocs calls


def on_config(config):
    """The sources as one package for mkdocstrings: the folders of the repository are parts of `anyformer`."""
    place = Path(tempfile.mkdtemp(prefix="anyformer-docs-"))
    (place / "anyformer").mkdir()
    for name in ("modeling", "pipelines", "configs"):
        (place / "anyformer" / name).symlink_to(ROOT / name)
    (place / "anyformer" / "__init__.py").symlink_to(ROOT / "anyformer" / "__init__.py")
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(place)]
    return config


on_config.mkdocs_priority = 100  # before mkdocstrings reads its settings


def on_files(files, config):
    """Add the generated pages, and the files of the repository that pages link to."""
    from mkdocs.structure.files import File

    texts = pages()
    for name in [*GENERATED, *(name for name in texts if name.startswith("notebooks/"))]:
        files.append(File.generated(config, name, content=texts[name]))
    linked = {target for name, text in texts.items() for target in outside(name, text)}
    for target in sorted(linked):
        files.append(File.generated(config, f"repository/{target}", abs_src_path=str(ROOT / target)))
    return files


def outside(page: str, text: str) -> Iterable[str]:
    """Files of the repository that a page links to and that are not pages."""
    for _, target, _ in LINK.findall(text):
        place = (DOCS / page).parent / target
        resolved = Path(os.path.normpath(place))
        if not resolved.is_relative_to(DOCS) and resolved.is_file():
            relative = resolved.relative_to(ROOT).as_posix()
            if INCLUDED.get(relative, page) == page:
                yield relative


def within_site(page: str, text: str) -> str:
    """The text of a page with its links out of `docs` turned into links within the site."""

    def inward(match: re.Match) -> str:
        resolved = Path(os.path.normpath((DOCS / page).parent / match[2]))
        if resolved.is_relative_to(DOCS) or not resolved.is_relative_to(ROOT):
            return match[0]
        relative = resolved.relative_to(ROOT).as_posix()
        target = INCLUDED.get(relative, page)
        target = f"repository/{relative}" if target == page else target  # a notebook's page has the notebook itself
        return match[1] + os.path.relpath(target, Path(page).parent) + match[3]

    return LINK.sub(inward, text)


def on_page_markdown(markdown, page, config, files):
    return within_site(page.file.src_uri, filled(markdown))


def on_post_build(config):
    """llms.txt: every page with its first sentence, and the pages as markdown beside it."""
    texts, site = pages(), Path(config["site_dir"])
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for place in nav_pages(config["nav"]):
        text = texts[place]
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        body = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        prose = [part for part in body.split("\n\n") if part.strip() and not re.match(r"\s*[#|!<:>\[-]", part)]
        first = " ".join(re.split(r"(?<=[.:])\s", prose[0].strip(), maxsplit=1)[0].split()) if prose else ""
        lines.append(f"- [{title[1] if title else place}]({place}): {first}")
        (site / place).parent.mkdir(parents=True, exist_ok=True)
        (site / place).write_text(within_site(place, text), encoding="utf-8")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def nav_pages(nav: list) -> list[str]:
    """The pages of mkdocs.yml's navigation, in its order."""
    places = []
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        places += nav_pages(value) if isinstance(value, list) else [value]
    return places
