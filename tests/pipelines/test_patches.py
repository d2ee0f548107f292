"""What we replace in other packages is listed in pipelines/patches.py, and is read there."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from anyformer.pipelines.patches import NAMES, OF_REGISTRATION, PATCHES, USED_OF_TRAINER
from anyformer.pipelines.training.engines.late_weights import on_meta_device
from transformers import PreTrainedModel

ROOT = Path(__file__).resolve().parents[2]
PRIVATE = re.compile(r"_[a-z]\w*")


def tree(file: Path) -> ast.AST:
    return ast.parse(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("patch", PATCHES + OF_REGISTRATION, ids=lambda patch: patch.name)
def test_what_is_replaced_is_read_where_the_table_says(patch):
    module = pytest.importorskip(patch.read_by)
    assert hasattr(module, patch.name) or re.search(rf"\b{patch.name}\b", inspect.getsource(module))


def test_the_method_that_records_weights_takes_what_transformers_own_does():
    theirs = inspect.signature(PreTrainedModel._initialize_weights)
    with on_meta_device():
        ours = inspect.signature(PreTrainedModel._initialize_weights)
    assert list(ours.parameters)[1:] == list(theirs.parameters)[1:]
    assert inspect.signature(PreTrainedModel._initialize_weights) == theirs


def assigned(module: ast.AST) -> set[tuple[str, str]]:
    """(owner, attribute) of all assignments to private attributes; fields of classes have the owner self."""
    nodes = [node for node in ast.walk(module) if isinstance(getattr(node, "ctx", None), ast.Store)]
    found = {(ast.unparse(node.value), node.attr) for node in nodes if isinstance(node, ast.Attribute)}
    fields = [one for node in ast.walk(module) if isinstance(node, ast.ClassDef) for one in node.body]
    targets = [target for one in fields for target in getattr(one, "targets", [getattr(one, "target", None)])]
    found |= {("self", target.id) for target in targets if isinstance(target, ast.Name)}
    return {(owner, name) for owner, name in found if PRIVATE.fullmatch(name)}


def test_private_attributes_of_others_are_written_by_way_of_the_table():
    files = [*(ROOT / "pipelines").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    written = {file: assigned(tree(file)) for file in files}
    ours = {name for found in written.values() for owner, name in found if owner in ("self", "cls")}
    others = {(file.name, name) for file, found in written.items() for owner, name in found if owner != "self"}
    assert not {(file, name) for file, name in others if name not in ours or name in NAMES}


def test_modeling_replaces_what_the_table_says_and_nothing_else():
    written = {file: assigned(tree(file)) for file in (ROOT / "modeling").rglob("*.py")}
    ours = {name for found in written.values() for owner, name in found if owner == "self"}
    others = {(file.name, name) for file, found in written.items() for _, name in found if name not in ours}
    assert others == {("registration.py", "_extra_content")}
    source = (ROOT / "modeling/registration.py").read_text(encoding="utf-8")
    assert all(f".{patch.name} = " in source for patch in OF_REGISTRATION)


def test_what_trainers_use_of_trainer_is_listed_and_there():
    source = inspect.getsource(import_module("transformers.trainer"))
    files = [ROOT / "pipelines/training/trainer.py", ROOT / "pipelines/training/stages/staged_trainer.py"]
    files += (ROOT / "pipelines/training/engines").glob("*.py")
    nodes = [node for file in files for node in ast.walk(tree(file))]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if ast.unparse(node.value) in ("self", "trainer")}
    private = {name for name in used - own if PRIVATE.fullmatch(name) and re.search(rf"\b{name}\b", source)}
    assert private == set(USED_OF_TRAINER) and all(re.search(rf"\b{name}\b", source) for name in USED_OF_TRAINER)
