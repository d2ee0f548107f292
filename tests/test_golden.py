"""Golden losses: 20 steps of a tiny run of each family, compared with committed ones to six digits.

A change of initialisation, data order, tokenizer, masking, schedule or optimizer shows here, wanted or not. Where it is
wanted: `GOLDEN=write pytest -n 0 tests/test_golden.py`, and say in the commit why the numbers moved.
`scripts/benchmarks/compare_losses.py` compares the same runs, and more, between two commits to the last digit.
"""

import json
import os
from pathlib import Path

import pytest
import torch
import yaml
from anyformer.pipelines.cli.commands import main
from golden_runs import OBJECTIVES, losses_of, recipe_of

GOLDEN = Path(__file__).parent / "golden" / "losses.json"
# Six digits: machines add up in other orders, which moves the last of fp32's seven, and 20 small steps not much more.
TOLERANCE = 2e-6


DRAWS_ANEW = torch.nn.init.trunc_normal_(torch.empty(1), generator=torch.Generator().manual_seed(0)) > 1
OF_NEW_DRAWS = pytest.mark.skipif(not DRAWS_ANEW, reason="torch < 2.15 draws truncated normal weights by other numbers")


@pytest.mark.parametrize("family", [*OBJECTIVES, pytest.param("vit", marks=OF_NEW_DRAWS)])
def test_twenty_steps_have_the_golden_losses(family, tmp_path):
    recipe = tmp_path / "golden.yaml"
    recipe.write_text(yaml.safe_dump(recipe_of(family, tmp_path)), encoding="utf-8")
    assert main(["train", str(recipe)]) == 0
    losses = losses_of(tmp_path / "run")
    assert len(losses) == 20
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("GOLDEN") == "write":
        known[family] = [float(f"{loss:.7g}") for loss in losses]
        GOLDEN.write_text(json.dumps(known, indent=1) + "\n", encoding="ascii")
    assert losses == pytest.approx(known[family], rel=TOLERANCE)
