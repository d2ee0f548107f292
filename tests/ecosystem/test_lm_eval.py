"""lm-eval on our models: in memory, and from a folder whose code travels with it."""

import json

import pytest
import torch
import yaml
from anyformer.pipelines.evaluation.few_shot import BETWEEN, Question, prompt_of
from anyformer.pipelines.evaluation.shot_answers import class_scores
from anyformer.pipelines.likelihoods.minimal_pairs import is_right, open_pairs
from anyformer.pipelines.recipes.schema import MinimalPairsSettings

TOLERANCE = 1e-4  # log-probabilities of a sentence are sums near -200, in fp32

QUESTIONS = [
    {"question": "The quick brown fox jumps over the lazy", "choices": [" dog", " cat", " quartz"], "answer": 0},
    {"question": "Pack my box with five dozen", "choices": [" jugs", " liquor jugs", " dogs"], "answer": 1},
    {"question": "Sphinx of black quartz, judge my", "choices": [" bow", " vow", " jig"], "answer": 1},
]
CHOICE_TASK = """
task: local_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
PERPLEXITY_TASK = """
task: local_perplexity
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list: [{{metric: word_perplexity}}]
"""
GENERATION_TASK = """
task: local_generation
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 6, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
TASKS = {
    "local_choices": CHOICE_TASK,
    "local_perplexity": PERPLEXITY_TASK,
    "local_generation": GENERATION_TASK,
}


@pytest.fixture(autouse=True)
def needs_lm_eval():
    """Imported by what uses it: it takes seconds, which a process that only collects the tests need not spend."""
    pytest.importorskip("lm_eval")


@pytest.fixture
def tasks(tmp_path):
    """A folder with the tasks and their data."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(task.format(data=data))
    return folder


def evaluate_in_memory(model, tokenizer, tasks):
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    return lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2),
        tasks=list(TASKS),
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
    )


@torch.no_grad()
def log_probability(model, tokenizer, context: str, continuation: str) -> float:
    """Sum of the log-probabilities of the continuation's tokens, one plain forward pass."""
    ids = torch.tensor([tokenizer(context + continuation)["input_ids"]])
    count = len(tokenizer(continuation)["input_ids"])
    log_probs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    return log_probs[-count:].sum().item()


def test_in_memory_scores_are_the_models_log_probabilities(model, tokenizer, tasks):
    results = evaluate_in_memory(model, tokenizer, tasks)
    correct = 0
    for question, sample in zip(QUESTIONS, results["samples"]["local_choices"]):
        expected = [log_probability(model, tokenizer, question["question"], c) for c in question["choices"]]
        assert [float(r[0]) for r in sample["filtered_resps"]] == pytest.approx(expected, abs=TOLERANCE)
        correct += expected.index(max(expected)) == question["answer"]
    assert results["results"]["local_choices"]["acc,none"] == pytest.approx(correct / len(QUESTIONS))

    for question, sample in zip(QUESTIONS, results["samples"]["local_perplexity"]):
        expected = log_probability(model, tokenizer, tokenizer.bos_token, question["question"])
        assert float(sample["filtered_resps"][0]) == pytest.approx(expected, abs=TOLERANCE)

    for question, sample in zip(QUESTIONS, results["samples"]["local_generation"]):
        ids = tokenizer(question["question"], return_tensors="pt")["input_ids"]
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
        text = tokenizer.decode(expected[0, ids.shape[1] :], skip_special_tokens=True).split(".")[0]
        assert sample["filtered_resps"][0] == text


def test_minimal_pairs_have_lm_evals_scores(model, tokenizer, tmp_path):
    """A task as lm-eval's blimp, pair by pair."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    file, rows = tmp_path / "pairs.jsonl", [("The cats sleep.", "The cats sleeps."), ("She saw him.", "She saw he.")]
    lines = [{"sentence_good": good, "sentence_bad": bad} for good, bad in [*rows, ("Same.", "Same.")]]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = {"task": "local_blimp", "dataset_path": "json", "dataset_kwargs": {"data_files": {"train": str(file)}}}
    task |= {"output_type": "multiple_choice", "validation_split": "train", "doc_to_text": "", "doc_to_target": 0}
    task |= {"doc_to_choice": "{{[sentence_good, sentence_bad]}}", "metric_list": [{"metric": "acc"}]}
    (tmp_path / "blimp.yaml").write_text(yaml.safe_dump(task))
    results = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2),
        tasks=["local_blimp"],
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    pairs = open_pairs(MinimalPairsSettings(files=str(file)))
    ours, theirs = pairs.scores(model, tokenizer, [0, 1, 2]), results["samples"]["local_blimp"]
    for scores, sample in zip(ours, theirs, strict=True):
        assert [float(each[0]) for each in sample["filtered_resps"]] == pytest.approx(list(scores), abs=TOLERANCE)
    right = [is_right(scores) for scores in ours]
    assert right[2] is False and right[:2] == [bool(sample["acc"]) for sample in theirs[:2]]


def test_a_few_shot_task_asks_what_anyformer_evaluate_asks(model, tokenizer, tmp_path):
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    words = ["bad", "very good"]
    solved = [Question("text: dull\nlabel:", 0, 0), Question("text: {{x}} fine\nlabel:", 1, 1)]
    texts = ["warm", "cold", "poor"]
    asked = [Question(f"text: {text}\nlabel:", number % 2, number) for number, text in enumerate(texts)]
    lines = [{"prompt": each.prompt, "answer": each.answer} for each in (*asked, *solved)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:3]))
    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
    task = {"task": "asked_few_shot", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice"}
    task |= {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "asked.jsonl")}}, "metric_list": metrics}
    task |= {"doc_to_text": "{{prompt}}", "doc_to_choice": words, "doc_to_target": "answer", "num_fewshot": 2}
    task |= {"target_delimiter": " ", "fewshot_delimiter": BETWEEN}
    task["fewshot_config"] = {"sampler": "first_n", "samples": lines[3:]}
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump(task))
    for shots in (0, 2):
        results = lm_eval.simple_evaluate(
            model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2),
            tasks=["asked_few_shot"],
            num_fewshot=shots,
            task_manager=lm_eval.tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
            bootstrap_iters=0,
        )
        prompts = [prompt_of(solved[:shots], question, words.__getitem__) for question in asked]
        scores, _ = class_scores(model, tokenizer, prompts, words, batch_size=2, normalized=False)
        theirs = results["samples"]["asked_few_shot"]
        for ours, sample in zip(scores, theirs):
            assert [float(answer[0]) for answer in sample["filtered_resps"]] == pytest.approx(ours, abs=TOLERANCE)
        right = [int(score.argmax()) == question.answer for score, question in zip(scores, asked)]
        assert results["results"]["asked_few_shot"]["acc,none"] == pytest.approx(sum(right) / 3)
        divided, _ = class_scores(model, tokenizer, prompts, words, batch_size=2, normalized=True)
        right = [int(score.argmax()) == question.answer for score, question in zip(divided, asked)]
        assert results["results"]["asked_few_shot"]["acc_norm,none"] == pytest.approx(sum(right) / 3)
