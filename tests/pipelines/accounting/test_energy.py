"""Laws of the energy of a run: measured by counters where there are some, else estimated, and said so."""

import json

import pytest
from anyformer.pipelines.accounting.devices import CORE_WATTS, watts_of
from anyformer.pipelines.accounting.energy import EnergyMeter, planned_power


def counter(root, number: str, name: str, microjoules: int, most: int = 10**9):
    folder = root / f"intel-rapl:{number}"
    folder.mkdir(exist_ok=True)
    for file, text in (("name", name), ("energy_uj", str(microjoules)), ("max_energy_range_uj", str(most))):
        (folder / file).write_text(f"{text}\n")


def test_packages_and_memory_are_measured_and_a_counter_that_began_anew_goes_on(tmp_path):
    counter(tmp_path, "0", "package-0", 900_000_000)
    counter(tmp_path, "0:0", "core", 0)  # a part of the package
    counter(tmp_path, "1", "package-1", 5_000_000)
    counter(tmp_path, "1:1", "dram", 0)
    meter = EnergyMeter("cpu", root=tmp_path)
    counter(tmp_path, "0", "package-0", 400_000_000)  # past 1000 J
    counter(tmp_path, "1", "package-1", 25_000_000)
    meter.sample()
    counter(tmp_path, "0", "package-0", 500_000_000)
    counter(tmp_path, "0:0", "core", 70_000_000)
    counter(tmp_path, "1:1", "dram", 3_000_000)
    facts = meter.facts()
    assert facts == {"kwh": float(f"{(600 + 20 + 3) / 3.6e6:.4g}"), "measured": True, "how": "measured by RAPL"}


def test_without_counters_power_and_time_are_what_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    meter = EnergyMeter("cpu", machines=3, root=tmp_path / "absent")
    meter._began -= 1800
    facts = meter.facts()
    assert facts["kwh"] == pytest.approx(3 * 4 * CORE_WATTS / 1000 / 2, rel=0.01) and not facts["measured"]
    assert facts["how"] == (
        "estimated: 1 x 40 W (10 W assumed for each of 4 cores) x 0.5 hours, of the first of 3 machines, times 3"
    )


def test_a_card_without_its_library_is_estimated_beside_measured_processors(tmp_path):
    counter(tmp_path, "0", "package-0", 0)
    meter = EnergyMeter("NVIDIA H100 80GB HBM3", ["one", "two"], root=tmp_path)
    meter.counters, meter._last = meter.counters[:1], meter._last[:1]  # whether or not pynvml is installed here
    how = meter.facts()["how"]
    assert how.startswith("measured by RAPL, estimated: 2 x 700 W (the most that one H100 takes) x ")


def test_a_card_is_the_row_that_its_name_says():
    assert watts_of("NVIDIA L40S")[0] == 350 and watts_of("NVIDIA L4")[0] == 72 and watts_of("H100-80GB")[0] == 700
    assert watts_of("NVIDIA T4")[1] == "assumed, as NVIDIA T4 is in no table"
    assert planned_power("A100-80GB", 8) == (3200, "8 x 400 W, the most that one A100 takes")


def test_plan_says_energy_and_with_a_price_what_the_run_costs(without_activations, command, capsys):
    how = ("plan", "gpt2_small", "--devices", "8xH100-80GB", "--price", "2.5", "training.max_steps=1000")
    assert command(*how, "--json") == 0
    out, printed = capsys.readouterr()
    found = json.loads(out)
    hours = found["seconds"] / 3600
    assert found["kwh"] == pytest.approx(8 * 0.7 * hours) and found["cost"] == pytest.approx(8 * 2.5 * hours)
    assert "estimated: 8 x 700 W, the most that one H100 takes" in printed
    assert f"{found['cost']:,.2f}: " in printed and "hours at 20 for 8 x H100-80GB" in printed
    assert command("plan", "gpt2_small", "--price", "-1") != 0
    assert "--price: -1 is not what a device costs in an hour, such as 2.5" in capsys.readouterr().err
