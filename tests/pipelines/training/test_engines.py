"""An engine is a class, and a row that says when it is asked for; what it cannot do is refused."""

import pytest
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.compose import load_recipe
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


PART_NORMS = "training.max_grad_norm={embeddings: 1.0}"
PER_LAYER = "training.log_gradient_norms_per_layer=true"
AVERAGED = "evaluation.average_checkpoints=2"
STAGES, SHARDS = "training.parallelism={pp: 2}", "training.parallelism={dp_shard: 2}"


@pytest.mark.parametrize(
    "engine, settings, sentence",
    [
        (None, [PER_LAYER, SHARDS], f"{PER_LAYER} needs whole weights, but training.parallelism splits them; leave it"),
        (None, [PER_LAYER, PART_NORMS], "reckons with one norm"),
        (None, ["evaluation.minimal_pairs={files: x}", SHARDS], "evaluation.minimal_pairs needs whole weights, but"),
        (
            None,
            ["evaluation.best_metric=bleu", "evaluation.average_checkpoints=null", SHARDS],
            "best_metric=bleu needs whole weights, but training.parallelism",
        ),
        ("DEEPSPEED", ["training.bad_step=skip"], "training.bad_step=skip looks at losses and gradients of whole"),
        ("DEEPSPEED", ["training.loss_spike=3"], "training.loss_spike=3"),
        ("DEEPSPEED", [PART_NORMS], "but DeepSpeed clips all gradients by one norm; set it to a number"),
        (None, [PART_NORMS, STAGES], "but training.parallelism clips all gradients by one norm"),
        ("DEEPSPEED", ["training.ema_decay=0.9"], "training.ema_decay=0.9 needs whole weights, but DeepSpeed splits"),
        ("DEEPSPEED 3", [AVERAGED], "average_checkpoints=2 needs a model that a process holds whole, but ZeRO-3"),
        ("DEEPSPEED 2", [AVERAGED], ""),  # whose processes hold it whole
        ("DEEPSPEED", ["evaluation.best_metric=loss"], ""),
    ],
)
def test_what_an_engine_splits_or_keeps_to_itself_is_refused(engine, settings, sentence, without_launcher, monkeypatch):
    name = "multi30k_en_de" if "bleu" in settings[0] else "quickstart"
    recipe = load_recipe(name, ["training.optim=adamw", *settings])
    if engine is not None:
        variable, _, stage = engine.partition(" ")
        monkeypatch.setenv(f"ACCELERATE_USE_{variable}", "true")
        monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", stage or "2")
    running = asked.engine_for(recipe.training)
    if not sentence:
        running.check(recipe, "cuda", 1)
        return
    with pytest.raises(UserError) as refused:
        running.check(recipe, "cuda", 1)
    assert sentence in str(refused.value) and "\n" not in str(refused.value)
