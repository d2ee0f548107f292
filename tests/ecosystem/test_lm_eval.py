"""lm-eval on our models: in memory, and from a folder whose code travels with it."""

import json

import pytest
import torch
import yaml
from anyformer.pipelines.evaluation.few_shot import BETWEEN, Question, prompt_of
from anyformer.pipelines.evaluation.shot_answers import class_scores
from anyformer.pipelines.likelihoods.minimal_pairs import is_right, open_pairs
from anyformer.pipelines.objectives.answers import FinishedModel
from anyformer.pipelines.recipes.schema import MinimalPairsSettings

TOLERANCE = 1e-4  # log-probabilities of a sentence are sums near -200, in fp32

QUESTIONS = [
    {"question": "The quick brown fox jumps over the lazy", "choices": [" dog", " cat", " quartz"], "answer": 0},
    {"question": "Pack my box with five dozen", "choices": [" jugs", " liquor jugs", " dogs"], "answer": 1},
    {"question": "Sphinx of black quartz, judge my", "choices": [" bow", " vow", " jig"], "answer": 1},
]
TASKS = {
    "local_choices": {"output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_target": "answer"}
    | {"doc_to_choice": "choices", "target_delimiter": "", "metric_list": [{"metric": "acc"}]},
    "local_perplexity": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}}"}
    | {"metric_list": [{"metric": "word_perplexity"}]},
    "local_generation": {"output_type": "generate_until", "doc_to_text": "{{question}}"}
    | {"doc_to_target": "{{choices[answer]}}", "metric_list": [{"metric": "exact_match"}]}
    | {"generation_kwargs": {"until": ["."], "max_gen_toks": 6, "do_sample": False}},
}


@pytest.fixture(autouse=True)
def needs_lm_eval():
    """Imported by what uses it: it takes seconds, which a process that only collects the tests need not spend."""
    pytest.importorskip("lm_eval")


def write_task(folder, name: str, rows: list[dict], **settings) -> None:
    """A task of lm-eval and its data."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task | {"test_split": "test"} | settings))


def evaluated(model, tokenizer, folder, *tasks: str, **how) -> dict:
    """What lm-eval finds of a model in memory on tasks of the folder."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    return lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2),
        tasks=list(tasks),
        task_manager=lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
        **how,
    )


@torch.no_grad()
def log_probability(model, tokenizer, context: str, continuation: str) -> float:
    """Sum of the log-probabilities of the continuation's tokens, one plain forward pass."""
    ids = torch.tensor([tokenizer(context + continuation)["input_ids"]])
    count = len(tokenizer(continuation)["input_ids"])
    log_probs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    return log_probs[-count:].sum().item()


def test_in_memory_scores_are_the_models_log_probabilities(model, tokenizer, tmp_path):
    for name, settings in TASKS.items():
        write_task(tmp_path, name, QUESTIONS, **settings)
    results = evaluated(model, tokenizer, tmp_path, *TASKS)
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
    rows = [("The cats sleep.", "The cats sleeps."), ("She saw him.", "She saw he."), ("Same.", "Same.")]
    lines = [{"sentence_good": good, "sentence_bad": bad} for good, bad in rows]
    settings = {"output_type": "multiple_choice", "doc_to_text": "", "doc_to_target": 0}
    settings |= {"doc_to_choice": "{{[sentence_good, sentence_bad]}}", "metric_list": [{"metric": "acc"}]}
    write_task(tmp_path, "local_blimp", lines, **settings)
    results = evaluated(model, tokenizer, tmp_path, "local_blimp")
    pairs = open_pairs(MinimalPairsSettings(files=str(tmp_path / "local_blimp.jsonl")))
    ours, theirs = pairs.scores(model, tokenizer, [0, 1, 2]), results["samples"]["local_blimp"]
    for scores, sample in zip(ours, theirs, strict=True):
        assert [float(each[0]) for each in sample["filtered_resps"]] == pytest.approx(list(scores), abs=TOLERANCE)
    right = [is_right(scores) for scores in ours]
    assert right[2] is False and right[:2] == [bool(sample["acc"]) for sample in theirs[:2]]


def test_a_few_shot_task_asks_what_anyformer_evaluate_asks(model, tokenizer, tmp_path):
    words = ["bad", "very good"]
    solved = [Question("text: dull\nlabel:", 0, 0), Question("text: {{x}} fine\nlabel:", 1, 1)]
    texts = ["warm", "cold", "poor"]
    asked = [Question(f"text: {text}\nlabel:", number % 2, number) for number, text in enumerate(texts)]
    lines = [{"prompt": each.prompt, "answer": each.answer} for each in (*asked, *solved)]
    metrics = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
    task = {"output_type": "multiple_choice", "doc_to_text": "{{prompt}}", "doc_to_choice": words, "num_fewshot": 2}
    task |= {"doc_to_target": "answer", "target_delimiter": " ", "fewshot_delimiter": BETWEEN, "metric_list": metrics}
    task["fewshot_config"] = {"sampler": "first_n", "samples": lines[3:]}
    write_task(tmp_path, "asked_few_shot", lines[:3], **task)
    for shots in (0, 2):
        results = evaluated(model, tokenizer, tmp_path, "asked_few_shot", num_fewshot=shots)
        prompts = [prompt_of(solved[:shots], question, words.__getitem__) for question in asked]
        scores, _ = class_scores(FinishedModel("", lambda: model, 2), tokenizer, prompts, words)
        theirs = results["samples"]["asked_few_shot"]
        for ours, sample in zip(scores, theirs):
            assert [float(answer[0]) for answer in sample["filtered_resps"]] == pytest.approx(ours, abs=TOLERANCE)
        right = [int(score.argmax()) == question.answer for score, question in zip(scores, asked)]
        assert results["results"]["asked_few_shot"]["acc,none"] == pytest.approx(sum(right) / 3)
