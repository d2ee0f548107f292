"""docs/pretraining_run.md: its recipe and its commands, in their order, at a small size on two CPU processes."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from local_hub import LocalHub

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "pretraining_run.md").read_text(encoding="utf-8")
SMALL = {
    "model": {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "max_position_embeddings": 64},
    "tokenizer": {"vocab_size": 400},
    "objective": {"sequence_length": 64},
    "training": {"max_tokens": 8 * 4 * 64, "global_batch_size": 4, "per_device_train_batch_size": 2, "bf16": False}
    | {"save_steps": 2, "parallelism": {"dp_shard": 2}, "stall_minutes": 5},
    "evaluation": {"every_steps": 4, "max_rows": 8},
}


def small_recipe(folder: Path) -> None:
    (recipe,) = (yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S))
    assert SMALL.keys() <= recipe.keys()
    for section, settings in SMALL.items():
        assert section == "model" or settings.keys() <= recipe[section].keys() | {"stall_minutes"}
        recipe[section] |= settings
    (folder / "own_1b.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")


def commands() -> list[list[str]]:
    lines = "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.slow
def test_from_parquet_to_a_published_model(tmp_path):
    small_recipe(tmp_path)
    texts = sorted(topics.values(), key=len)[-24:]
    (tmp_path / "corpus").mkdir()
    for name, part in (("corpus/1", texts[:11]), ("corpus/2", texts[11:22]), ("held_back", texts[22:])):
        pyarrow.parquet.write_table(pyarrow.table({"text": part}), tmp_path / f"{name}.parquet")
    with LocalHub(tmp_path / "hub") as hub:
        environment = hub.env | {"OMP_NUM_THREADS": "1"}
        for words in commands():
            assert words[0] == "anyformer"
            words = [word.replace("64xH100", "2xH100").replace("your-name", "tester") for word in words]
            words = [word.replace("{dp_shard: 2}", "{tp: 2}") for word in words]  # the recipe's here is dp_shard: 2
            done = subprocess.run(
                [str(Path(sys.executable).parent / "anyformer"), *words[1:]],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        assert "model.safetensors" in hub.files("tester/own-1b")
    run = json.loads((tmp_path / "runs" / "own_1b" / "run.json").read_text())
    assert run["status"] == "finished" and run["steps"] == 8
