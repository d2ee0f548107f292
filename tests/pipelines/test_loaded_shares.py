"""A checkpoint under a mesh: each process reads its own shares, and what the file lacks is drawn as in one process."""

import pytest
import torch
import torch.distributed as dist
import transformers
from accelerate import PartialState
from anyformer.pipelines.adapters import load_model
from anyformer.pipelines.recipes.schema import ParallelismSettings, TrainingSection
from anyformer.pipelines.training.engines.loaded_shares import load_shares, read_shares
from anyformer.pipelines.training.engines.mesh import Mesh
from processes import run_ranks
from rehearsed import needs_mesh
from test_distributed import forget_the_parents_state
from transformers import AutoConfig, modeling_utils, set_seed

pytestmark = needs_mesh
SIZES = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


class CountedSlice:
    """A slice of a file that counts the bytes that are read of it."""

    read = 0

    def __init__(self, part):
        self.part, self.get_shape, self.get_dtype = part, part.get_shape, part.get_dtype

    def __getitem__(self, index):
        found = self.part[index]
        CountedSlice.read += found.numel() * found.element_size()
        return found


class CountedFile:
    def __init__(self, *arguments, **options):
        self.file = safe_open(*arguments, **options)
        self.keys, self.metadata = self.file.keys, self.file.metadata

    def get_slice(self, name):
        return CountedSlice(self.file.get_slice(name))

    def __exit__(self, *_):
        return self.file.__exit__(*_)


safe_open = modeling_utils.safe_open


def load_in_a_rank(auto_class, folder, shares, fields) -> tuple[int, bool, bool]:
    """(bytes read of the file, whether the weights are those of one process, and after they are read once more)."""
    forget_the_parents_state()
    dist.init_process_group("gloo")
    PartialState(cpu=True)
    modeling_utils.safe_open = CountedFile
    auto_class, options = getattr(transformers, auto_class), {"ignore_mismatched_sizes": True, "dtype": torch.float32}
    engine = Mesh(TrainingSection("", parallelism=ParallelismSettings(**shares)))
    config = AutoConfig.from_pretrained(folder, **fields)
    set_seed(5)
    with engine.loading(config, torch.device("cpu")) as distributed:
        model, missing, fresh = load_shares(auto_class, folder, distributed, config=config, **options)
    model, read = engine.share(model, torch.device("cpu")), CountedSlice.read
    set_seed(5)
    whole, info = load_model(auto_class, folder, output_loading_info=True, config=config, **options)
    assert missing == info["missing_keys"] and fresh == missing | {key for key, *_ in info["mismatched_keys"]}

    def is_whole():
        found = {name: x.full_tensor() if hasattr(x, "full_tensor") else x for name, x in model.state_dict().items()}
        return all(torch.equal(x, found[name]) for name, x in whole.state_dict().items())

    as_loaded = is_whole()
    if dist.get_rank() == 0:
        whole.save_pretrained(f"{folder}-again")
    dist.barrier()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    read_shares(model, f"{folder}-again")
    return read, as_loaded, is_whole()


@pytest.mark.slow
@pytest.mark.parametrize("shares", [{"dp_shard": 2}, {"tp": 2}], ids=["dp_shard", "tp"])
@pytest.mark.parametrize("kind", ["decoder", "head", "other_classes", "native_moe"])
def test_each_process_reads_its_shares_and_draws_what_one_process_draws(kind, shares, tmp_path):
    folder, fields, auto_class = tmp_path / "model", {}, "AutoModelForCausalLM"
    sizes = SIZES | {"intermediate_size": 128}
    if kind == "native_moe":  # its file holds the experts one by one
        config = AutoConfig.for_model("mixtral", **sizes, num_key_value_heads=2, num_local_experts=4)
    else:
        config = AutoConfig.for_model("anyformer_decoder" if kind == "decoder" else "anyformer_encoder", **sizes)
    saved_as = auto_class
    if kind in ("head", "other_classes"):
        auto_class, fields = "AutoModelForSequenceClassification", {"num_labels": 2}
        saved_as = "AutoModelForMaskedLM" if kind == "head" else auto_class
        config.num_labels = 3
    set_seed(1)
    model = getattr(transformers, saved_as).from_config(config)
    model.save_pretrained(folder)
    (tmp_path / "ranks").mkdir()
    found = run_ranks(2, load_in_a_rank, auto_class, str(folder), shares, fields, folder=tmp_path / "ranks")
    assert [results[1:] for results in found] == [(True, True)] * 2
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    most = 0.8 if "tp" in shares else 0.6  # tp repeats norms, and tables where the plan does not split them
    assert all(read < most * size for read, *_ in found), (found, size)
