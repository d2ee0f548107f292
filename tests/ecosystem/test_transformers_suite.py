"""transformers' common tests of models, run on ours and on native classes of the same kind.

They are in transformers' sources, not in its wheel: name their folder by ANYFORMER_TRANSFORMERS_SOURCES, of the
installed version, and install `parameterized`. A source distribution holds the tests of models and not those of
`generate` and of exporters, which run where the folder is a clone.
"""

import functools
import importlib
import io
import os
import sys
import types
import unittest
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.auto import modeling_auto

import anyformer

pytestmark = pytest.mark.slow

SOURCES = os.environ.get("ANYFORMER_TRANSFORMERS_SOURCES")
PACKAGE = "transformers_suite"
# Mixins of files that a source distribution lacks.
FURTHER = {"exporters.test_export": "ExportTesterMixin", "generation.test_utils": "GenerationTesterMixin"}
# Auto class -> transformers' table of the native classes, by whose names the tests choose inputs.
TABLES = {
    "AutoModel": "MODEL_MAPPING_NAMES",
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "AutoModelForMultipleChoice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    "AutoModelForImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForMaskedImageModeling": "MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES",
}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = SIZES | SPECIAL | {"vocab_size": 99, "max_position_embeddings": 512}
CAUSAL = TEXT | {"num_key_value_heads": 2}
WINDOW = {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 8}
IMAGE = SIZES | {"image_size": 30, "patch_size": 2}
# family -> (native classes' prefix, fields of its config, of ours)
FAMILIES = {
    "Decoder": ("Llama", CAUSAL, CAUSAL | WINDOW),
    "Moe": (
        "Mixtral",
        CAUSAL | {"num_local_experts": 4, "sliding_window": None},
        CAUSAL | WINDOW | {"num_experts": 4},
    ),
    "Encoder": (
        "Bert",
        TEXT,
        TEXT | WINDOW | {"type_vocab_size": 2, "mlp_type": "mlp"},
    ),
    "Seq2Seq": (
        "T5",
        SPECIAL
        | {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_heads": 4, "num_layers": 2}
        | {"decoder_start_token_id": 0, "dropout_rate": 0.0},
        TEXT | {"decoder_start_token_id": 0},
    ),
    "ViT": ("ViT", IMAGE, IMAGE),
}
# Attribute of the test case -> what it is for both classes of a family. Input embeddings of an image are no table.
SETTINGS = {
    "ViT": {"test_resize_embeddings": False, "test_model_get_set_embeddings": None},
    "Seq2Seq": {"is_encoder_decoder": True},
}
MARKERS = ["accelerate_tests", "flash_attn_test", "flash_attn_3_test", "flash_attn_4_test", "torch_compile_test"]
MARKERS += ["generate", "torch_export_test", "is_training_test", "is_tensor_parallel_test"]
# Tests that ask for something a source distribution lacks, and that sdpa is the default, where ours is `anyformer`.
LEFT_OUT = {"test_generation_tester_mixin_inheritance", "test_sdpa_can_dispatch_non_composite_models"}
# Tests of what ours have not: checkpoints in a native class's older formats, and T5's layer that must not be fp16.
OF_NATIVE_ALONE = {
    "test_can_load_from_already_mapped_keys",
    "test_reverse_loading_mapping",
    "test_keep_in_fp32_modules",
    "test_keep_in_fp32_modules_exist",
}


class ModelTester:
    """What transformers' tests call a model tester: a config and a batch."""

    batch_size, seq_length, num_choices, is_training = 13, 7, 4, True
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4
    image_size, patch_size = 30, 2
    pad_token_id = 0
    num_masks, mask_length = 5, (30 // 2) ** 2

    def __init__(self, case, config_class, fields):
        self.config_class, self.fields = config_class, fields
        self.is_encoder_decoder = case.is_encoder_decoder
        self.encoder_seq_length = self.decoder_seq_length = self.seq_length
        if "image_size" in fields:
            self.seq_length = self.encoder_seq_length = (self.image_size // self.patch_size) ** 2 + 1

    def get_config(self):
        return self.config_class(**self.fields)

    def prepare_config_and_inputs_for_common(self):
        config = self.get_config()
        if "image_size" in self.fields:
            return config, {"pixel_values": torch.randn(self.batch_size, 3, self.image_size, self.image_size)}
        ids = torch.randint(3, 99, (self.batch_size, self.seq_length))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.is_encoder_decoder:
            inputs |= {"decoder_input_ids": ids.flip(0), "decoder_attention_mask": torch.ones_like(ids)}
        return config, inputs


@functools.cache
def common_tests():
    """transformers' test_modeling_common, as a module of a package of ours."""
    if SOURCES is None:
        pytest.skip("ANYFORMER_TRANSFORMERS_SOURCES does not name a folder of transformers' sources")
    pytest.importorskip("parameterized")
    folder = Path(__file__).parents[2] / SOURCES / "tests"  # relative to the repository, or absolute
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(folder)]
    sys.modules[PACKAGE] = package
    for name, mixin in FURTHER.items():
        if not (folder / f"{name.replace('.', '/')}.py").exists():
            stand_in = types.ModuleType(f"{PACKAGE}.{name}")
            setattr(stand_in, mixin, type(mixin, (), {}))
            sys.modules[stand_in.__name__] = stand_in
    return importlib.import_module(f"{PACKAGE}.test_modeling_common")


def classes_of(source, prefix: str, family: str) -> dict:
    """Auto class -> class, of a family of ours, or of native ones that it has, too."""
    auto_classes = getattr(anyformer, f"Anyformer{family}Model").auto_classes
    found = {}
    for auto_class in auto_classes:
        if auto_class in TABLES:
            name = auto_classes[auto_class]
            if source is transformers:
                names = getattr(modeling_auto, TABLES[auto_class]).get(prefix.lower())
                name = names[0] if isinstance(names, tuple) else names
            if name is not None:
                found[auto_class] = getattr(source, name)
    return found


def run(family: str, native: bool, monkeypatch) -> unittest.TestResult:
    """Transformers' tests of one family's classes."""
    common = common_tests()
    prefix, theirs, ours = FAMILIES[family]
    source, fields = (transformers, theirs) if native else (anyformer, ours)
    classes = classes_of(source, prefix, family)
    config_class = next(iter(classes.values())).config_class

    class Case(common.ModelTesterMixin, common.GenerationTesterMixin, unittest.TestCase):
        all_model_classes = tuple(classes.values())
        has_attentions = test_can_init_all_missing_weights_before_2023 = True

        def setUp(self):
            self.model_tester = ModelTester(self, config_class, fields)

    if not native and "sliding_window" not in fields:
        # The tests set a window wherever a config has that field; ours refuse one that no layer has.
        original = config_class.__setattr__
        monkeypatch.setattr(
            config_class, "__setattr__", lambda *args: None if "sliding_window" in args[1:2] else original(*args)
        )
    for name, value in SETTINGS.get(family, {}).items():
        setattr(Case, name, value)
    Case.__name__ = Case.__qualname__ = f"{'Native' if native else 'Our'}{family}"
    suite = unittest.TestLoader().loadTestsFromTestCase(Case)
    chosen = [case for case in suite if case._testMethodName not in LEFT_OUT]
    if only := os.environ.get("ANYFORMER_TRANSFORMERS_TESTS"):
        chosen = [case for case in chosen if only in case._testMethodName]
    return unittest.TextTestRunner(io.StringIO(), verbosity=0).run(unittest.TestSuite(chosen))


@pytest.fixture
def ours_among_native_names(monkeypatch, pytestconfig):
    for marker in MARKERS:
        pytestconfig.addinivalue_line("markers", f"{marker}: of transformers' tests")
    for family in FAMILIES:
        model = getattr(anyformer, f"Anyformer{family}Model")
        for auto_class, name in model.auto_classes.items():
            if auto_class in TABLES:
                monkeypatch.setitem(getattr(modeling_auto, TABLES[auto_class]), model.config_class.model_type, name)


def name_of(case) -> str:
    """The test's name, without the class that a part of it was about."""
    return getattr(case, "test_case", case)._testMethodName


def reasons(result: unittest.TestResult) -> list[str]:
    return [
        f"{case.id().rpartition('.')[2]}: {text.strip().splitlines()[-1]}"
        for case, text in result.failures + result.errors
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_our_classes_pass_and_skip_no_test_that_native_ones_run(family, ours_among_native_names, monkeypatch):
    ours, native = run(family, False, monkeypatch), run(family, True, monkeypatch)
    skipped, skipped_by_native = ({name_of(case): why for case, why in each.skipped} for each in (ours, native))
    not_run_by_native = skipped_by_native.keys() | {name_of(case) for case, _ in native.failures + native.errors}
    more = {name: why for name, why in skipped.items() if name not in not_run_by_native | OF_NATIVE_ALONE}
    for text in (*reasons(ours), *more.items()):
        print(text)
    print(f"{family}: {ours.testsRun} tests; native: {len(skipped_by_native)} skipped, failures {reasons(native)}")
    assert reasons(ours) == [] and more == {}
