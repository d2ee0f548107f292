"""Reports of runs: what a page holds of a finished and a killed run, several compared, and that a browser draws it."""

import itertools
import json
import re
import signal

import numpy as np
import pytest
import scipy
from anyformer.pipelines.metrics.class_report import calibration, confusion, per_class
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.reporting.charts import MOST, thinned
from anyformer.pipelines.reporting.comparison import compare_runs, difference_over_seeds, metrics_table
from anyformer.pipelines.reporting.figures import draw_loss
from anyformer.pipelines.reporting.report import write_report
from anyformer.pipelines.reporting.run_log import read_run
from browser import dom_of, needs_browser
from processes import end_in_micro_batch

HOSTILE = "</script><b>bold & sure</b>"


def line(step: int, tokens: int, loss: float, **more) -> dict:
    rates = {"grad_norm": 1.0, "learning_rate": 1e-3, "tokens_per_second": 100.0, "mfu": 0.1, "memory_gb": 1.0}
    return {"step": step, "time": 1000.0 + step, "loss": loss, "tokens": tokens} | rates | more


@pytest.fixture
def recorded(tmp_path):
    """Factory of a run's folder as a run leaves it, from facts alone."""

    def make(name="run", *, lines=None, tail="", finished=True, settings=(), accuracy=0.8, **facts):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        overrides = ["data.files=reviews.jsonl", f"training.output_dir={folder}", *settings]
        recipe = load_recipe("imdb_classify", overrides).to_dict()
        run = {"recipe": recipe, "seed": 42, "versions": {"torch": "2"}, "world_size": 1, "total_steps": 8}
        run["data"] = {"train": {"examples": 90, "tokens": 900, "classes": {"bad": 40, "good": 50}}}
        run["data"] |= {"test": {"examples": 1000, "fill_rate": 0.5}, "fingerprint": "abc"}
        if finished:
            run |= {"status": "finished", "steps": 4, "best_step": 2, "wall_seconds": 9.0, "parameters": 12}
            run |= {"metrics": {"test_loss": 0.5, "test_accuracy": accuracy}, "samples": [], "trained_parameters": 12}
        else:
            run |= {"status": "running"}
        (folder / "run.json").write_text(json.dumps(run | facts))
        if lines is None:
            lines = [line(1, 10, 2.0), line(2, 20, 1.5), {"step": 2, "time": 1002.5, "validation_loss": 1.7}]
            lines += [line(4, 40, float("nan")), {"step": 4, "time": 1004.0, "validation_loss": 1.6}]
            lines += [{"step": 4, "train_runtime": 4.0}, {"step": 4, "validation_loss": 9.0}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines) + tail)
        return folder

    return make


def curves_of(page) -> dict:
    return json.loads(re.search(r'json" id="curves">(.*?)</script>', page.read_text(), re.S)[1])


def loads_nothing(page) -> bool:
    return not re.search(r"<link|@import|url\((?!#)|src=[\"'](?!data:)|import\(|fetch\(", page.read_text())


def class_report(names, **more) -> dict:
    scores = [{"name": name, "precision": 0.5, "recall": 0.25, "f1": 1 / 3, "support": 4} for name in names]
    counts = [[3 if row == column else row + column for column in range(len(names))] for row in range(len(names))]
    bins = [{"low": 0.4, "high": 0.5, "number": 7, "confidence": 0.45, "accuracy": 0.75}]
    mistake = {"row": 1234, "place": "a.csv, line 1235", "confidence": 0.987, "given": names[0], "true": names[1]}
    return {
        "unit": "examples",
        "classes": scores,
        "matrix": {"names": names, "counts": counts},
        "confused": [{"true": names[0], "given": names[1], "number": 77}],
        "calibration": {"ece": 0.1234, "confidence": 0.45, "accuracy": 0.75, "bins": bins},
        "mistakes": [mistake | {"text": HOSTILE}],
    } | more


@pytest.mark.parametrize("number", [3, 50])
def test_a_page_holds_the_classes_of_each_split_the_test_split_first(recorded, number):
    folder, names = recorded(), [f"kind <{n}>" for n in range(number)]
    reports = {"validation": class_report(names), "test": class_report(names)}
    (folder / "classes.json").write_text(json.dumps(reports))
    write_report(folder)
    text = (folder / "report.html").read_text()
    assert text.index("<h3>test</h3>") < text.index("<h3>validation</h3>") and 'href="#classes"' in text
    assert all(text.count(f'<th scope="row">kind &lt;{n}&gt;</th>') == 2 for n in range(number))
    assert text.count('<table class="confusion fine">') == (2 if number == 50 else 0)
    for words in ("0.1234", "row 1,234", "a.csv, line 1235", "98.7%", "7 answers, 45.0% sure, 75.0% right"):
        assert words in text
    assert "<b>bold" not in text and loads_nothing(folder / "report.html")


def test_a_report_on_classes_that_cannot_be_read_is_said_and_the_page_is_there(recorded):
    for broken in ("{", '{"test": {"matrix": 7}}'):
        folder = recorded(f"run{len(broken)}")
        (folder / "classes.json").write_text(broken)
        write_report(folder)
        text = (folder / "report.html").read_text()
        assert "classes.json is damaged" in text and 'id="classes"' not in text


def test_a_last_loss_that_is_no_number_is_said(recorded):
    folder = recorded(lines=[line(1, 10, 2.0), line(2, 20, None)], metrics={})
    write_report(folder)
    assert "not finite" in (folder / "report.html").read_text()


def test_a_page_holds_what_the_folder_says_and_loads_nothing(recorded):
    rows = {"legend": "", "rows": [f"\x1b[1;32m{HOSTILE}\x1b[0m"]}
    samples = [{"prompt": HOSTILE, "text": HOSTILE, "reference": "so"}]
    folder = recorded(settings=["training.learning_rate=0.5"], samples=samples)
    (folder / "rows.json").write_text(json.dumps(rows))
    write_report(folder)
    page = folder / "report.html"
    text = page.read_text()
    assert loads_nothing(page) and "<b>bold" not in text
    loss = next(chart for chart in curves_of(page)["charts"] if chart["id"] == "loss")
    training, validation = loss["series"]
    assert training["y"] == [2.0, 1.5] and loss["marks"] == [{"x": 2, "label": "best"}]  # NaN is left out
    assert validation["y"] == [1.7, 1.6]  # the measurement after training is no point of its curve
    assert re.search(r"test</td><td[^>]*>accuracy</td><td>0.8000</td><td>0.774 to 0.824</td><td>1,000", text)  # Wilson
    assert re.search(r'class="changed"><td>learning_rate</td><td class="words">0.5</td>', text)
    assert "finished after 4 steps" in text and "bad 40, good 50" in text


def test_a_killed_run_has_a_page_that_says_how_far_it_is(recorded):
    lines = [line(1, 10, 2.0), line(2, 20, 1.5), line(3, 10, 1.2, time=5000.0), line(6, 40, 1.0, time=5003.0)]
    folder = recorded(lines=lines, tail='{"step": 7, "lo', finished=False)
    write_report(folder)
    text = (folder / "report.html").read_text()
    assert "not finished: step 6 of 8 (75%)" in text and "nothing measured" not in text
    log = read_run(folder)
    # It went on once: tokens are counted anew there, and the time between the processes is not the run's.
    assert log.tokens == 60 and log.seconds == pytest.approx(0.1 + 1.0 + 0.1 + 3.0)
    assert log.settings["training.learning_rate"] == log.recipe["training"]["learning_rate"]
    assert log.metrics == {} and log.steps == 6 and not log.is_finished
    begun = recorded("begun", lines=[], finished=False)
    write_report(begun)
    assert "nothing measured yet; 8 steps to make" in (begun / "report.html").read_text()


def test_several_runs_are_compared_by_what_differs(recorded, tmp_path):
    slow, fast = recorded("slow"), recorded("fast", settings=["training.learning_rate=0.5"], accuracy=0.9)
    out = tmp_path / "page.html"
    assert compare_runs([slow, fast], out) == []  # one run of each says nothing
    text, drawn = out.read_text(), curves_of(out)
    assert drawn["runs"] == ["slow", "fast"] == [one["name"] for one in drawn["charts"][0]["series"]]
    settings = text.split("Settings that differ</h2>")[1]
    assert re.findall(r"<tr><td>([\w.]+)</td>", settings) == ["training.learning_rate"] and loads_nothing(out)
    assert "0.8000</span>" in text and '<span class="better">0.9000</span>' in text


@pytest.mark.parametrize("place", ["{variant}/seed-{seed}", "{variant}-s{seed}", "{seed}/{variant}"])
def test_seeds_are_one_line_with_a_band_and_variants_are_tested(place, recorded, command, tmp_path, capsys):
    """Paired where both have the same seeds, else by Welch; fewer than three say nothing; page and terminal agree."""
    values = {"slow": [0.70, 0.72, 0.74], "fast": [0.80, 0.81, 0.85], "new": [0.9, 0.91]}
    rates = {"slow": 0.1, "fast": 0.2, "new": 0.3}
    folders = [
        recorded(
            place.format(variant=variant, seed=seed),
            settings=[f"training.seed={seed}", f"training.learning_rate={rates[variant]}"],
            accuracy=accuracy,
            lines=[line(step, 10, 1.0 + step + seed) for step in (1, 2)],
        )
        for variant, of_seeds in values.items()
        for seed, accuracy in enumerate(of_seeds)
    ]
    told = compare_runs(folders, tmp_path / "page.html")
    assert command("report", *folders, "--out", tmp_path / "page.html") == 0
    drawn, text = curves_of(tmp_path / "page.html"), (tmp_path / "page.html").read_text()
    table = text.split("<h3>Is the")[1].split("</table>")[0]
    on_page = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("<tr>")]
    lines = capsys.readouterr().out.split("Is the difference sure?")[1].splitlines()
    printed = [re.split(r" *[\u2502\u2503] *", line.strip()) for line in lines]
    assert all([*row.values()] in on_page and [*row.values()] in printed for row in told) and [*told[0]] in printed
    called = [f"learning_rate={rate}" for rate in rates.values()] if place.startswith("{seed}") else [*values]
    assert drawn["runs"] == called
    loss = {one["name"]: one for one in drawn["charts"][0]["series"]}
    assert [loss[called[0]][of] for of in ("y", "low", "high")] == [[3, 4], [2, 3], [4, 5]] and len(loss) == 3
    paired = scipy.stats.ttest_rel(values["fast"], values["slow"])
    welch = scipy.stats.ttest_ind(values["new"], values["slow"], equal_var=False)
    low, high = paired.confidence_interval(0.95)
    rows = {(row["first"], row["second"]): row for row in told}
    for names, by, test in ((called[:2], "paired by seed", paired), (called[::2], "Welch", welch)):
        ranked = [f"{by}, p = {count * test.pvalue:.4f}" for count in (1, 2, 3)]  # Holm: by its rank among three pairs
        assert len(rows) == 3 and rows[tuple(names)].pop("by") in ranked
    sure = {"metric": "test accuracy", "first": called[0], "second": called[1], "difference": "+0.100", "sure?": "yes"}
    assert rows[called[0], called[1]] == sure | {"95 % interval": f"{low:.3f} to {high:.3f}"}
    assert all(row["sure?"] == "too few seeds" for pair, row in rows.items() if called[2] in pair)


def test_equal_differences_of_all_seeds_do_not_make_a_verdict_surer_than_their_scatter():
    first, second = {1: 0.70, 2: 0.72, 3: 0.74}, {3: 0.84, 2: 0.82, 1: 0.80}
    by, test = difference_over_seeds(first, second)
    assert by == "Welch" and test.pvalue > 0.001 and difference_over_seeds(first, first)[1].pvalue == 1
    assert difference_over_seeds(first, second | {1: 0.81})[0] == "paired by seed"


@pytest.mark.parametrize("chosen_by, says", [(None, True), ("minimal_pairs", False)])
def test_validations_of_other_rows_are_named_in_the_page_and_in_the_verdict(chosen_by, says, recorded, tmp_path):
    folders = []
    for rate, seed in itertools.product((0.1, 0.2), (1, 2, 3)):
        how = [f"training.seed={seed}", f"training.learning_rate={rate}", "evaluation.best_metric=null"]
        data = {"train": {"examples": 90}, "fingerprint": "abc", "validated_on": f"rows for {rate}"}
        folders.append(recorded(f"{rate}/{seed}", settings=how, data=data, metrics={"validation_loss": rate * seed**2}))
        file = folders[-1] / "run.json"  # where pairs choose the best model, it says nothing of the rows
        file.write_text(file.read_text().replace('"best_metric": null', f'"best_metric": {json.dumps(chosen_by)}'))
    (row,) = compare_runs(folders, tmp_path / "page.html")
    assert row["by"].endswith("; of different rows") == says
    assert ("did not measure the same rows" in (tmp_path / "page.html").read_text()) == says


def test_mistakes_are_one_sentence(recorded, command, tmp_path, capsys):
    run, begun = recorded("here"), recorded("begun", lines=[], finished=False)
    (tmp_path / "empty").mkdir()
    broken = recorded("broken")
    (broken / "run.json").write_text("{")
    mistakes = {
        (tmp_path / "nowhere",): "is no folder",
        (tmp_path / "empty",): "holds no run, run.json is missing",
        (tmp_path,): "name the runs in it, such as",
        (broken,): "is not readable as JSON",
        (run, run): "is named twice",
        (run, begun): "has logged nothing yet, so there is nothing to compare",
        (run, "--out", tmp_path): "is a folder; give the name of a file",
        (run, "--out", tmp_path / "no" / "page.html"): "does not exist",
        (begun, "--figures", tmp_path / "figures"): "has logged nothing yet, so there are no figures",
    }
    for words, sentence in mistakes.items():
        assert command("report", *words) == 2
        error = capsys.readouterr().err
        assert sentence in error and len(error.strip().splitlines()) == 1
    assert command("report", begun) == 0 and "nothing measured yet" in capsys.readouterr().out


def test_figures_are_drawn_as_png_and_svg_and_stand_in_the_card(recorded, command, tmp_path, monkeypatch):
    from anyformer.pipelines.publishing.model_card import render_model_card
    from anyformer.pipelines.storage.model_folder import ModelFolder

    lines = [{"step": n, "time": n, "loss": 1.0 / n, "learning_rate": 0.1 / n} for n in range(1, 60)]
    run = recorded(lines=lines)
    assert command("report", run, "--figures", tmp_path / "figures") == 0
    drawn = {file.name for file in (tmp_path / "figures").iterdir()}
    assert drawn == {f"{name}.{kind}" for name in ("loss", "learning_rate") for kind in ("png", "svg")}
    assert draw_loss(run) and (run / "loss.png").read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(ModelFolder, "parameter_count", lambda self: 12)
    assert "(loss.png)" in render_model_card(ModelFolder(run, {}))


def with_classes(folder, draw, classes=("bad", "so_so", "good")):
    """The scores of single classes, as a finished run leaves them, of random answers."""
    true, given = draw.integers(0, len(classes), (2, 400))
    report = {"unit": "examples", "classes": per_class(classes, given, true), **confusion(classes, given, true)}
    report |= {"calibration": calibration(draw.random(400), given == true), "mistakes": []}
    (folder / "classes.json").write_text(json.dumps({"test": report}))
    return report


def test_scores_of_classes_and_confusions_are_figures(recorded, command, tmp_path):
    run, figures = recorded(), tmp_path / "figures"
    with_classes(run, np.random.default_rng(0))
    assert command("report", run, "--figures", figures) == 0
    for name in ("classes-test", "confusion-test", "loss"):
        assert (figures / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (figures / f"{name}.svg").read_text()
    text = (figures / "confusion-test.svg").read_text()
    assert all(word in text for word in ("bad", "so_so", "good", "was taken for"))


def test_runs_are_compared_class_by_class(recorded, command, tmp_path):
    runs = [recorded(name) for name in ("a", "b")]
    scores = [with_classes(run, np.random.default_rng(number)) for number, run in enumerate(runs)]
    assert command("report", *runs, "--out", tmp_path / "c.html") == 0
    rows = {row["key"]: row["cells"] for row in metrics_table([read_run(run) for run in runs])}
    page = (tmp_path / "c.html").read_text()
    for of_class in zip(*(report["classes"] for report in scores)):
        cells, values = rows[f"test_F1 of {of_class[0]['name']}"], [one["f1"] for one in of_class]
        assert [cell.words for cell in cells] == [f"{value:.4f}" for value in values]
        assert [cell.is_best for cell in cells] == [value == max(values) for value in values]
        assert all(cell.words in page for cell in cells)


def test_thinning_keeps_every_spike():
    values = [0.0] * 100_000
    values[54_321], values[77] = 9.0, -9.0
    x, y = thinned(list(range(100_000)), values)
    assert len(x) <= MOST + 2 and max(y) == 9.0 and min(y) == -9.0 and x == sorted(x) and x[-1] == 99_999


def test_a_run_leaves_a_page_at_its_beginning_and_at_its_end(tiny_recipe, command, tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    recipe = tiny_recipe(training={"max_steps": 4, "save_steps": 2})
    end_in_micro_batch(2, command, "train", recipe, number=signal.SIGKILL, output=tmp_path / "killed.log")
    text = (run / "report.html").read_text()
    assert "begun, and nothing measured yet; 4 steps to make" in text
    assert text.count('<pre class="row"') == 3
    with monkeypatch.context() as broken:  # a page that cannot be written costs a sentence
        broken.setattr("anyformer.pipelines.reporting.report.read_run", lambda folder: 1 / 0)
        assert command("train", recipe) == 0
    said = capsys.readouterr()
    assert said.err.count("report.html of") == 2 and "report.html" in said.out  # while it trained, and at the end
    assert command("report", run) == 0
    text = (run / "report.html").read_text()
    assert "finished after 4 steps" in text
    assert len(curves_of(run / "report.html")["charts"][0]["series"][0]["x"]) == 4
    assert not any(run.glob(".report*"))


@pytest.mark.slow
@needs_browser
def test_a_browser_draws_the_curves_and_answers_keys_and_clicks(recorded, tmp_path):
    many = [line(n, 10 * n, 5.0 / n, grad_norm=1.0 / n) for n in range(1, 200)]
    many += [{"step": 199, "validation_loss": 0.1}, {"step": 199, "train_runtime": 1.0}]
    folder = recorded("first", lines=many)
    other = recorded("second", settings=["training.learning_rate=0.5"])
    seeds = [recorded(f"seed-{n}", settings=[f"training.seed={n}"]) for n in (1, 2)]
    write_report(folder)
    compare_runs([folder, other], tmp_path / "both.html")
    compare_runs([other, *seeds], tmp_path / "seeds.html")

    def after(file, script: str) -> str:
        return dom_of(file.read_text().replace("</body>", f"<script>{script}</script></body>"), tmp_path)

    page = folder / "report.html"
    dom = after(page, "")
    count = len(curves_of(page)["charts"])
    assert f'data-charts="{count}"' in dom and dom.count("<svg") == count
    press = "document.querySelector('#chart-loss .plot').dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}));"
    said = re.search(r'aria-live="polite">([^<]*)<', after(page, press))[1]
    assert said.startswith("Loss, step 199, training 0.02") and "validation 0.1" in said
    clicks = ("#chart-loss .head button", "[data-x=tokens]")
    log = after(page, "".join(f"document.querySelector('{place}').click();" for place in clicks))
    assert 'aria-pressed="true" aria-label="logarithmic axis of Loss"' in log and ">tokens</text>" in log
    table = after(page, "document.querySelector('#chart-loss details').open = true;")
    assert re.search(r"<td>199</td><td>0.02513</td><td>0.1000</td>", table)
    hidden = after(tmp_path / "both.html", "document.querySelector('[data-run=\"1\"]').click();")
    banded = after(tmp_path / "seeds.html", press)
    assert " 1.500 (1.500 to 1.500)" in re.search(r'aria-live="polite">([^<]*)<', banded)[1]
    assert banded.count('class="band"') == len(curves_of(tmp_path / "seeds.html")["charts"])  # of one of two variants
    assert hidden.count('class="series"') < dom.count('class="series"') * 2 and "second" in hidden
