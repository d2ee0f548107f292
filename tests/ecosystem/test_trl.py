"""TRL's trainers take on our models the very steps they take on a native model with equal weights."""

import math

import pytest
import torch
from datasets import Dataset

trl = pytest.importorskip("trl")

TOLERANCE = 1e-5  # fp32, three steps of AdamW

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Pack my box with five dozen liquor jugs.",
    "How vexingly quick daft zebras jump!",
    "Sphinx of black quartz, judge my vow.",
    "Waltz, bad nymph, for quick jigs vex.",
    "Glib jocks quiz nymph to vex dwarf.",
]
PREFERENCES = [
    {"prompt": f"Say {word}", "chosen": f" {word}!", "rejected": f" no {word}, never."}
    for word in ("fox", "box", "zebra", "quartz", "waltz", "quiz")
]


def arguments(config_class, folder, **options):
    defaults = {
        "output_dir": str(folder),
        "max_steps": 3,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "seed": 0,
    }
    return config_class(**(defaults | options))


def logged(trainer) -> dict[str, list[float]]:
    """What the trainer logged at each step, but for times."""
    trainer.train()
    steps = [line for line in trainer.state.log_history if "loss" in line]
    return {key: [line[key] for line in steps] for key in steps[0]}


@pytest.mark.parametrize(
    "options",
    [{}, {"packing": True, "max_length": 96}, {"label_smoothing_factor": 0.1}, {"loss_type": "dft"}],
    ids=["padded", "packed", "label-smoothing", "dft"],
)
def test_sft_steps_equal_those_of_a_native_model(model, native, tokenizer, tmp_path, options):
    runs = {}
    for name, candidate in (("ours", model), ("native", native)):
        trainer = trl.SFTTrainer(
            model=candidate,
            args=arguments(trl.SFTConfig, tmp_path / name, **options),
            train_dataset=Dataset.from_dict({"text": TEXTS}),
            processing_class=tokenizer,
        )
        runs[name] = logged(trainer)
    assert len(runs["ours"]["loss"]) == 3 and runs["ours"].keys() == runs["native"].keys()
    for key in ("loss", "grad_norm", "entropy", "mean_token_accuracy", "num_tokens"):
        assert runs["ours"][key] == pytest.approx(runs["native"][key], abs=TOLERANCE), key
    theirs = native.state_dict()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, theirs[name], atol=TOLERANCE, rtol=0, msg=name)


def test_sft_on_chats_with_lora_trains_only_the_adapter(model, tokenizer, tmp_path):
    peft = pytest.importorskip("peft")
    before = {name: p.clone() for name, p in model.named_parameters()}
    chats = [[{"role": "user", "content": t[:9]}, {"role": "assistant", "content": t[9:]}] for t in TEXTS]
    trainer = trl.SFTTrainer(
        model=model,
        args=arguments(trl.SFTConfig, tmp_path),
        train_dataset=Dataset.from_dict({"messages": chats}),
        eval_dataset=Dataset.from_dict({"messages": chats[:2]}),
        processing_class=tokenizer,
        peft_config=peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    losses = logged(trainer)["loss"]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert math.isfinite(trainer.evaluate()["eval_loss"])
    for name, p in model.named_parameters():
        if "lora" not in name:
            assert torch.equal(p, before[name.replace(".base_layer", "")]), name


@pytest.mark.parametrize("reference", ["given", "loaded", "adapter"])
def test_dpo_steps_equal_those_of_a_native_model(model, native, tokenizer, tmp_path, reference):
    """The reference model may be given, be loaded again from where the model came from, or be the model unadapted."""
    runs = {}
    for name, candidate in (("ours", model), ("native", native)):
        folder = tmp_path / name
        candidate.save_pretrained(folder)
        options = {}
        if reference == "given":
            options["ref_model"] = type(candidate).from_pretrained(folder)
        elif reference == "adapter":
            peft = pytest.importorskip("peft")
            options["peft_config"] = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        torch.manual_seed(0)
        trainer = trl.DPOTrainer(
            model=type(candidate).from_pretrained(folder),
            args=arguments(trl.DPOConfig, folder / "run"),
            train_dataset=Dataset.from_list(PREFERENCES),
            processing_class=tokenizer,
            **options,
        )
        runs[name] = logged(trainer)
    assert runs["ours"]["loss"][0] == pytest.approx(math.log(2), abs=TOLERANCE)  # policy and reference start equal
    assert runs["ours"]["loss"][2] < runs["ours"]["loss"][0]
    for key in ("loss", "grad_norm", "logps/chosen", "logps/rejected", "rewards/margins", "entropy"):
        # log-probabilities are sums over tokens, near -100
        assert runs["ours"][key] == pytest.approx(runs["native"][key], abs=TOLERANCE, rel=TOLERANCE), key
