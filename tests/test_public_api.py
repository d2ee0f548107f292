"""The public face of the package, and which way its imports point."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from anyformer.modeling.registration import LateEntries

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


def test_importing_anyformer_imports_neither_torch_nor_transformers():
    assert fresh("import sys, anyformer; print({'torch', 'transformers'} & sys.modules.keys())")[-1] == "set()"


def test_classes_in_transformers_tables_are_loaded_when_asked_for_and_known_by_identity():
    asked = []
    late = {"Own": (lambda: Own, lambda: asked.append("Own") or 1)}
    table = LateEntries({"other": 2}, lambda: late)
    assert Own in table and type("Own", (), {}) not in table and "Own" not in table and not asked
    assert len(table) == 2 and table[Own] == 1 and asked == ["Own"] and dict(table) == {"other": 2, Own: 1}
    with pytest.raises(KeyError):
        table["none"]


class Own:
    pass


def test_our_backend_may_be_what_imports_transformers_first():
    program = "from anyformer.modeling.kernels import computes\nfrom transformers import AttentionInterface\n"
    assert fresh(program + "print('anyformer' in AttentionInterface())")[-1] == "True"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["sys", "anyformer_main", "transformers.models.auto.modeling_auto"])
def test_importing_anyformer_registers_every_family_whoever_came_first_and_leaves_the_pipelines_alone(first):
    program = (
        f"import sys, {first}, anyformer\n"
        "from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, BertConfig, MODEL_MAPPING\n"
        "assert BertConfig in MODEL_MAPPING and 'anyformer.modeling.base' not in sys.modules\n"
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
    siblings |= {(1, "rules")} if file.stem == "__init__" else set()
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
