"""The tasks instruction_tuning and preference compute what TRL's trainers compute on the same rows."""

import copy
import json

import pytest
import torch
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.training.models import model_config
from datasets import Dataset
from task_data import on_rows, task_recipe
from test_trl import arguments
from tiny_tokenizers import of_bytes

trl = pytest.importorskip("trl")

WITH_TOOLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ call.function | tojson }}{% endfor %}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
TOLERANCE = 1e-5  # fp32; log-probabilities are sums over tokens, near -100
ONE_STEP = {"max_steps": 1, "gradient_accumulation_steps": 1, "max_length": 128}


def fresh_model(data):
    import transformers

    recipe = data.objective.recipe
    fields = recipe.model.fields or {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    recipe = recipe.with_(model={"fields": fields, "family": "decoder"})
    return transformers.AutoModelForCausalLM.from_config(model_config(recipe, data.tokenizer, {}))


def first_log(trainer):
    trainer.train()
    return next(line for line in trainer.state.log_history if "loss" in line)


def test_instruction_tuning_has_rows_and_loss_of_the_sft_trainer(tmp_path):
    recipe = load_recipe(task_recipe(tmp_path, "instruction_tuning", task={"packing": False}))
    data = prepare_data(recipe)
    rows, model = data.rows["test"], fresh_model(data)
    asked, told = (rows.texts(name) for name in ("prompt", "answer"))
    chats = [[*json.loads(a), {"role": "assistant", "content": b}] for a, b in zip(asked, told)]
    batch = data.collator([rows[number] for number in range(len(rows))])
    count = (batch["labels"][:, 1:] != -100).sum()
    with torch.no_grad():
        ours = (model(**batch, num_items_in_batch=1).loss / count).item()
    trainer = trl.SFTTrainer(
        model=model,
        args=arguments(
            trl.SFTConfig,
            tmp_path / "sft",
            per_device_train_batch_size=len(rows),
            assistant_only_loss=True,
            **ONE_STEP,
        ),
        train_dataset=Dataset.from_dict({"messages": chats}),
        processing_class=data.tokenizer,
    )
    for number, theirs in enumerate(trainer.train_dataset):
        assert theirs["input_ids"] == rows[number]["input_ids"].tolist()
        assert theirs["labels"] == rows[number]["labels"].tolist()
    assert first_log(trainer)["loss"] == pytest.approx(ours, abs=TOLERANCE)


def test_of_prompt_and_completion_the_sft_trainer_learns_the_same_answers(tmp_path):
    """The prompt holds an earlier answer, the completion a call of a tool."""
    asked = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "old"},
        {"role": "user", "content": "b"},
    ]
    call = {"type": "function", "function": {"name": "rain", "arguments": {"place": "Oslo"}}}
    told = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "7"}]
    told += [{"role": "assistant", "content": "much"}]
    tool = {"type": "function", "function": {"name": "rain", "description": "Rain there."}}
    row = {"prompt": asked, "completion": told, "tools": json.dumps([tool])}
    task = {"prompt_field": "prompt", "answer_field": "completion", "packing": False, "max_length": 512}
    tokenizer = of_bytes(eos="<|endoftext|>", pad="<|endoftext|>")
    tokenizer.chat_template = WITH_TOOLS
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    sections = on_rows(tmp_path, [row] * 2, **task) | {"model": {"max_position_embeddings": 512}}
    sections["tokenizer"] = {"name_or_path": str(tmp_path / "tokenizer"), "vocab_size": None}
    data = prepare_data(load_recipe(task_recipe(tmp_path, "instruction_tuning", **sections)))
    how = arguments(trl.SFTConfig, tmp_path / "sft", assistant_only_loss=True, **ONE_STEP | {"max_length": 512})
    trainer = trl.SFTTrainer(
        model=fresh_model(data), args=how, train_dataset=Dataset.from_list([row]), processing_class=data.tokenizer
    )
    (theirs,), ours = trainer.train_dataset, data.rows["train"][0]
    assert (theirs["input_ids"], theirs["labels"]) == (ours["input_ids"].tolist(), ours["labels"].tolist())
    assert "Oslo" in tokenizer.decode([label for label in theirs["labels"] if label != -100])


def test_preference_has_log_probabilities_loss_and_rewards_of_the_dpo_trainer(tmp_path):
    recipe = load_recipe(task_recipe(tmp_path, "preference"))
    data = prepare_data(recipe)
    rows = data.rows["test"]
    import transformers

    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    policy = copy.deepcopy(reference)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    batch = data.collator([rows[number] for number in range(len(rows))])
    own = data.learns().loss()
    with torch.no_grad():
        outputs = policy(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        rewards = own.logits(outputs, batch)
        loss = (own.total(outputs, batch) / own.weight(batch)).item()
    scores = data.scores()
    measured = scores.scored(scores.predictions(rewards, batch["labels"]).numpy()).values

    pairs = []
    for number, asked in enumerate(rows.texts("prompt")):
        prompt = data.tokenizer.apply_chat_template(json.loads(asked), add_generation_prompt=True, tokenize=False)
        split, whole = int(rows[number]["chosen_length"]), rows[number]["input_ids"]
        texts = [data.tokenizer.decode(ids) for ids in (whole[:split], whole[split:])]
        answers = [text.removeprefix(prompt).removesuffix("<|endoftext|>") for text in texts]  # which TRL adds
        pairs.append({"prompt": prompt, "chosen": answers[0], "rejected": answers[1]})
    trainer = trl.DPOTrainer(
        model=policy,
        ref_model=reference,
        args=arguments(
            trl.DPOConfig,
            tmp_path / "dpo",
            per_device_train_batch_size=len(rows),
            beta=recipe.task.beta,
            **ONE_STEP,
        ),
        train_dataset=Dataset.from_list(pairs),
        processing_class=data.tokenizer,
    )
    theirs = first_log(trainer)
    assert theirs["loss"] == pytest.approx(loss, rel=TOLERANCE)
    assert theirs["rewards/chosen"] == pytest.approx(rewards[:, 0].mean().item(), rel=1e-4)
    assert theirs["rewards/margins"] == pytest.approx(measured["reward_margin"], rel=1e-4)
    assert theirs["rewards/accuracies"] == pytest.approx(measured["reward_accuracy"])
    chosen = (rewards / recipe.task.beta + batch["reference"])[:, 0].mean().item()
    assert theirs["logps/chosen"] == pytest.approx(chosen, rel=TOLERANCE)
