"""An engine is a class, and a row that says when it is asked for."""

from anyformer.pipelines.training.engines import asked
from anyformer.pipelines.training.engines.whole import OneProcess
from processes import logged_losses


class KeptTwice(OneProcess):
    """One process that keeps a second copy of the weights."""

    name, launched_by = "twice", "twice"

    def check_settings(self):
        if self.section.ema_decay is not None:
            self.check_average()

    def share(self, model, device):
        model.second = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        return model


def test_an_engine_of_one_class_and_one_row_refuses_trains_and_resumes(
    tiny_recipe, command, capsys, monkeypatch, tmp_path
):
    recipe, run = tiny_recipe(training={"max_steps": 6}), tmp_path / "run"
    assert command("train", recipe, "training.save_steps=2") == 0
    plain = logged_losses(run)
    monkeypatch.setattr(asked, "ENGINES", {KeptTwice: lambda section: True} | asked.ENGINES)
    again = f"training.output_dir={tmp_path / 'twice'}"
    assert command("train", recipe, "training.ema_decay=0.9", again) == 2
    assert "needs whole weights, but twice splits or flattens them" in capsys.readouterr().err
    assert command("train", recipe, "training.save_steps=2", again) == 0
    assert logged_losses(tmp_path / "twice") == plain
    (tmp_path / "twice" / "run.json").unlink()
    assert command("train", recipe, "training.save_steps=2", again) == 0  # from its last checkpoint
    assert logged_losses(tmp_path / "twice") == plain
