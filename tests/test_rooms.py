"""The rooms of the house: which package imports which, held against the table in CONTRIBUTING.md."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PIPELINES = ROOT / "pipelines"
PACKAGES = sorted(path.parent.name for path in PIPELINES.glob("*/__init__.py"))
# Beside the packages: what all may import, and the package in Python, which stands above them.
LEAVES = {
    "adapters",
    "aliases",
    "backends",
    "environment",
    "errors",
    "freed_memory",
    "generation",
    "json_text",
    "plots",
    "plugins",
    "transformers_logging",
    "words",
}
ABOVE = {"api"}


def relative_imports(file: Path) -> set[str]:
    """The rooms of pipelines/ that a file imports from, also inside functions and for type checkers."""
    place = file.relative_to(PIPELINES).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = place[: len(place) - (node.level - 1)]
            for name in [node.module] if node.module else [alias.name for alias in node.names]:
                found.add((*base, *name.split("."))[0])
    return found


def imports_of(package: str) -> set[str]:
    rooms = set().union(*(relative_imports(file) for file in (PIPELINES / package).rglob("*.py")))
    return rooms - {package}


def table() -> dict[str, set[str]]:
    """{package: packages it imports} of CONTRIBUTING.md, in its order."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|([^|]*)\|$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.M)
    return {package: set(re.findall(r"`(\w+)`", imported)) for package, imported in rows}


def test_the_table_in_contributing_names_every_package():
    assert sorted(table()) == PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_what_the_table_says(package):
    assert imports_of(package) - LEAVES == table()[package]


def test_imports_point_down_the_table():
    order = list(table())
    for package, imported in table().items():
        for other in imported:
            assert order.index(other) > order.index(package) or other in ("data",), (
                f"{package} imports {other} above it"
            )


def test_no_two_packages_import_each_other_even_by_way_of_others():
    reach = {package: imports_of(package) & set(PACKAGES) for package in PACKAGES}
    for _ in PACKAGES:
        reach = {package: found.union(*(reach[other] for other in found)) for package, found in reach.items()}
    assert not [package for package, found in reach.items() if package in found]


def test_files_beside_the_packages_import_no_package():
    files = {file.stem: file for file in PIPELINES.glob("*.py") if file.stem != "__init__"}
    assert files.keys() == LEAVES | ABOVE
    for name in LEAVES:
        assert relative_imports(files[name]) <= LEAVES, name


def test_nothing_outside_the_objectives_asks_which_one_it_is():
    asks = re.compile(
        r"hasattr\((data\.)?(objective|task|rows|job|scorer)|sees_images|(objective|task)\.name *(==|!=|in)"
        r"|recipe\.task is|recipe\.objective\."
    )
    for file in PIPELINES.rglob("*.py"):
        if file.parent.name != "objectives":
            found = [line for line in file.read_text(encoding="utf-8").splitlines() if asks.search(line)]
            assert not found, f"{file.name}: {found}"
