"""The rooms of the house: which package imports which, held against the table in CONTRIBUTING.md."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PIPELINES = ROOT / "pipelines"
PACKAGES = sorted(path.parent.name for path in PIPELINES.glob("*/__init__.py"))
# Beside the packages: the package in Python, which stands above them, and what all may import.
ABOVE = "api"
BESIDE = {file.stem: file for file in PIPELINES.glob("*.py") if file.stem != "__init__"}
LEAVES = BESIDE.keys() - {ABOVE}


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


def test_models_are_compared_by_their_records_and_by_an_adapter_that_is_loaded_alone():
    users = {file.stem for file in PIPELINES.rglob("*.py") if "is_same_model" in file.read_text(encoding="utf-8")}
    assert users == {"record", "adapters"}


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
            assert order.index(other) > order.index(package), f"{package} imports {other} above it"


def only_for_types(tree: ast.Module) -> list[ast.AST]:
    """What stands below `if TYPE_CHECKING:`."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return [inner for node in found for inner in ast.walk(node)]


# An objective's row, its parts and what both ask of tokens name each other in their types.
PARTS = ("base", "data", "reads", "learns", "scores", "answers", "tokens")
INTERFACE = {f"pipelines.objectives.{name}" for name in PARTS}


def imports_between_files() -> dict[str, set[str]]:
    """{module of pipelines/ or modeling/: modules of theirs that it imports}, also inside functions.

    In the INTERFACE without imports that are for types alone.
    """
    files = {}
    for folder in ("pipelines", "modeling"):
        for file in (ROOT / folder).rglob("*.py"):
            files[".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = file
    imports = {}
    for name, file in files.items():
        place = file.parent.relative_to(ROOT).parts
        found, tree = set(), ast.parse(file.read_text(encoding="utf-8"))
        left_out = only_for_types(tree) if name in INTERFACE else []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node not in left_out:
                base = ".".join(place[: len(place) - (node.level - 1)]) if node.level else ""
                module = f"{base}.{node.module or ''}".strip(".").removeprefix("anyformer.")
                found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        imports[name] = found & files.keys() - {name}
    return imports


def test_no_two_files_import_each_other_even_by_way_of_others():
    imports = imports_between_files()
    while leaves := [name for name, imported in imports.items() if not imported & imports.keys()]:
        for name in leaves:
            del imports[name]
    assert not imports  # files of circles, and those that import them


def test_files_beside_the_packages_import_no_package():
    assert ABOVE in BESIDE
    for name in LEAVES:
        assert relative_imports(BESIDE[name]) <= LEAVES, name


def test_a_name_of_a_file_says_which_one_is_meant():
    names = Counter(file.name for file in PIPELINES.rglob("*.py"))
    assert {name for name, number in names.items() if number > 1} <= {"__init__.py", "base.py"}


def test_the_reading_order_of_a_run_names_files_that_exist_once_each():
    listed = re.findall(r"^(\S+\.py): ", ast.get_docstring(ast.parse((PIPELINES / "__init__.py").read_text())), re.M)
    assert listed[0].startswith("recipes/") and listed[-1].startswith("publishing/")
    assert len(set(listed)) == len(listed) and all((PIPELINES / file).is_file() for file in listed)


def names_in(node: ast.AST) -> set[str]:
    """What a class body and its methods define or set on self."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef):
            found.add(inner.name)
        elif isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Store):
            found.add(inner.id if isinstance(inner, ast.Name) else inner.attr)
    return found


def asks_which_objective(tree: ast.AST, interface: set[str], names: set[str]) -> list[str]:
    """Where a file reads something of an objective that not every objective has, or compares or names one of them."""
    found = []
    for node in ast.walk(tree):
        told = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Compare | ast.Call | ast.Dict) else ""
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).rpartition(".")[2]
            if owner == "objective" and node.attr not in interface:
                found.append(told)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr", "isinstance"):
            if re.search(r"\b(objective|task)\b", ast.unparse(node.args[0])):
                found.append(told)
        elif isinstance(node, ast.Compare | ast.Dict):
            constants = [each.value for each in ast.iter_child_nodes(node) if isinstance(each, ast.Constant)]
            is_section = isinstance(node, ast.Dict) and "name" in constants
            if (isinstance(node, ast.Compare) or is_section) and names & set(constants):
                found.append(told)
    return found


OBJECTIVE_FILES = (PIPELINES / "objectives").glob("*.py")
OBJECTIVES = {name for file in OBJECTIVE_FILES for name in re.findall(r'^    name = "(\w+)"', file.read_text(), re.M)}
CALLERS = [package for package, imported in table().items() if "objectives" in imported]


@pytest.mark.parametrize(
    "asks", ["objective.label_smoothing", "hasattr(data.objective, 'x')", "task.name == 'causal'", "{'name': 'masked'}"]
)
def test_a_question_which_objective_it_is_is_seen(asks):
    assert asks_which_objective(ast.parse(asks), {"name"}, OBJECTIVES)


@pytest.mark.parametrize("package", CALLERS)
def test_nothing_outside_the_objectives_asks_which_one_it_is(package):
    row = ast.parse((PIPELINES / "objectives" / "base.py").read_text(encoding="utf-8"))
    interface = set().union(*(names_in(node) for node in row.body if isinstance(node, ast.ClassDef)))
    for file in (PIPELINES / package).rglob("*.py"):
        found = asks_which_objective(ast.parse(file.read_text(encoding="utf-8")), interface, OBJECTIVES)
        assert not found, f"{file.name}: {found}"
