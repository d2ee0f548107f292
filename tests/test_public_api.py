"""The public face of the package, and which way its imports point."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import anyformer
from anyformer import modeling

ROOT = Path(__file__).resolve().parents[1]
MODELING = sorted((ROOT / "modeling").rglob("*.py"))
# What a model folder on the Hub can rely on: transformers and what transformers itself needs.
ALLOWED_IN_MODELING = {"torch", "transformers", "huggingface_hub", *sys.stdlib_module_names}


def fresh(program: str) -> list[str]:
    """The lines a new Python process prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("module", [anyformer, modeling], ids=lambda module: module.__name__)
def test_every_public_name_resolves_and_an_unknown_one_does_not(module):
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


@pytest.mark.slow
def test_importing_anyformer_registers_every_family_and_leaves_the_pipelines_alone():
    program = (
        "import sys, anyformer\n"
        "from transformers import AutoConfig, AutoModel, AutoModelForCausalLM\n"
        "config = AutoConfig.for_model('anyformer_decoder', vocab_size=8, hidden_size=16, num_hidden_layers=1,\n"
        "    num_attention_heads=2)\n"
        "for auto in (AutoModel, AutoModelForCausalLM):\n"
        "    print(type(auto.from_config(config)).__name__)\n"
        "print([m for m in sys.modules if m.startswith('anyformer.pipelines') or m == 'datasets'])\n"
    )
    assert fresh(program)[-3:] == ["AnyformerDecoderModel", "AnyformerDecoderForCausalLM", "[]"]


@pytest.mark.slow
def test_a_config_is_checked_however_it_is_imported_and_a_recipes_fields_without_torch():
    program = (
        "import sys, anyformer_main, types\n"
        "from anyformer.modeling.rules.legality import check_legal\n"
        "print('torch' in sys.modules)\n"
        "from anyformer.modeling.configuration import AnyformerDecoderConfig as first\n"
        "from anyformer.modeling import AnyformerDecoderConfig as second\n"
        "import anyformer\n"
        "for config_class in (first, second, anyformer.AnyformerDecoderConfig):\n"
        "    try:\n"
        "        config_class(sliding_window=4)\n"
        "    except ValueError as error:\n"
        "        print('sliding_window=4 is used by no layer' in str(error))\n"
    )
    assert fresh(program)[-4:] == ["False", "True", "True", "True"]


def imports_of(file: Path) -> list[tuple[int, str]]:
    """(dots, module) of every import statement, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.level, node.module)] if node.module else [(node.level, alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize("file", MODELING, ids=lambda file: file.stem)
def test_modeling_imports_only_what_a_model_on_the_hub_can_rely_on(file):
    # One flat folder, since transformers carries no sub-folders to the Hub; kernels/, rules/ and two files stay here.
    siblings = {(1, sibling.stem) for sibling in file.parent.glob("*.py")}
    siblings |= {"registration": {(1, "kernels")}, "__init__": {(1, "rules")}}.get(file.stem, set())
    siblings |= {(2, "traits"), (2, "families")} if file.parent.name == "rules" else set()
    assert file.parent in (ROOT / "modeling", ROOT / "modeling" / "kernels", ROOT / "modeling" / "rules")
    # Image processors are only loaded where Pillow is: transformers' own base class of them needs it.
    allowed = ALLOWED_IN_MODELING | ({"PIL"} if file.stem == "image_processing" else set())
    for dots, module in imports_of(file):
        if dots:
            assert (dots, module) in siblings, f"{'.' * dots}{module}"
        else:
            assert module.split(".")[0] in allowed, module


def test_pipelines_never_import_scripts_or_tests():
    for file in (ROOT / "pipelines").rglob("*.py"):
        for _, module in imports_of(file):
            assert module.split(".")[0] not in ("scripts", "tests", "modeling", "pipelines"), f"{file.name}: {module}"
