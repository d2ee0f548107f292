"""Labelled examples that a tiny model can learn, and recipes on them."""

import json
import random
from pathlib import Path

import yaml
from anyformer.pipelines.data.documents import Limits
from anyformer.pipelines.data.file_reader import FileReader
from anyformer.pipelines.data.reader import TextView

GOOD, BAD = ["good", "great", "fine", "lovely"], ["bad", "awful", "poor", "dull"]
CHARACTERS = {"type": "char", "vocab_size": None}  # a tokenizer section for texts too short to learn merges from
NEUTRAL = ["the", "film", "was", "and", "story", "with", "actors", "in", "a", "very", "long", "scene", "about", "two"]
WORDS = {"red": "rot", "dog": "hund", "runs": "rennt", "the": "der", "man": "mann", "sees": "sieht", "old": "alt"}


def write_lines(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def on_rows(folder: Path, rows: list[dict] | Path, **task) -> dict:
    """Sections of a recipe that trains a task on these rows alone, read character by character."""
    path = rows if isinstance(rows, Path) else write_lines(folder / "rows.jsonl", rows)
    data = {"files": str(path), "test_files": None, "validation_fraction": 0.0}
    return {"data": data, "task": task, "tokenizer": CHARACTERS, "evaluation": {"every_steps": None}}


def documents_in(path, document: str, limits: Limits) -> FileReader:
    """The documents of plain text files."""
    return FileReader("data.files", str(path), TextView("text", limits, document=document))


def texts(corpus) -> list[str]:
    return [document.text for document in corpus.documents()]


def reviews(path: Path, number=160, seed=0, label=lambda positive: int(positive)) -> Path:
    """Texts of 4 to 30 words with one word that decides: {"text", "label"}."""
    draw, rows = random.Random(seed), []
    for i in range(number):
        words = draw.choices(NEUTRAL, k=draw.randint(3, 29))
        words.insert(draw.randrange(len(words)), draw.choice(GOOD if i % 2 else BAD))
        rows.append({"text": " ".join(words), "label": label(bool(i % 2))})
    return write_lines(path, rows)


def sentences(path: Path, number=160, seed=0) -> Path:
    """Sentences of 2 to 12 words and their translation word by word: {"en", "de"}."""
    draw, rows = random.Random(seed), []
    for _ in range(number):
        words = draw.choices(list(WORDS), k=draw.randint(2, 12))
        rows.append({"en": " ".join(words), "de": " ".join(WORDS[word] for word in words)})
    return write_lines(path, rows)


SUBJECTS = {"colour": ["red"], "animal": ["dog"], "person": ["man", "sees"]}


def subjects(path: Path, number=160, seed=0) -> Path:
    """Texts of words, and what they are about, any number of SUBJECTS: {"text", "labels"}."""
    draw, rows = random.Random(seed), []
    for _ in range(number):
        names = [name for name in SUBJECTS if draw.random() < 0.5]
        words = [draw.choice(SUBJECTS[name]) for name in names] + draw.choices(NEUTRAL, k=6)
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "labels": names})
    return write_lines(path, rows)


def pairs(path: Path, number=160, seed=0) -> Path:
    """Two texts of 6 words, and how many of these they share, 0 to 5: {"text", "other", "label"}."""
    draw, rows = random.Random(seed), []
    for i in range(number):
        words, others = draw.sample(NEUTRAL, 6), draw.sample([*GOOD, *BAD], 6)
        shared = i % 6
        rows.append({"text": " ".join(words), "other": " ".join(words[:shared] + others[shared:]), "label": shared})
    return write_lines(path, rows)


NAMES = {"PER": ["anna", "otto", "maria"], "LOC": ["rom", "paris", "lima"]}


def tagged(path: Path, number=160, seed=0) -> Path:
    """Sentences of 4 to 20 words, some of which name a person (one or two words) or a place: {"tokens", "tags"}."""
    draw, rows = random.Random(seed), []
    for _ in range(number):
        words = draw.choices(NEUTRAL, k=draw.randint(2, 17))
        tags = ["O"] * len(words)
        for kind, length in (("PER", draw.randint(1, 2)), ("LOC", 1)):
            place = draw.choice([i for i in range(len(words) + 1) if i == len(words) or not tags[i].startswith("I-")])
            words[place:place] = draw.choices(NAMES[kind], k=length)
            tags[place:place] = [f"B-{kind}", *[f"I-{kind}"] * (length - 1)]
        rows.append({"tokens": words, "tags": tags})
    return write_lines(path, rows)


def tales(path: Path, number=60, seed=0) -> Path:
    """Texts of twelve sentences about one noun each: {"text"}."""
    draw, rows = random.Random(seed), []
    for _ in range(number):
        noun, other = draw.sample(NEUTRAL, 2)
        tale = [f"The {noun} {' '.join(draw.choices(NEUTRAL, k=draw.randint(4, 9)))} {other}." for _ in range(12)]
        rows.append({"text": " ".join(tale)})
    return write_lines(path, rows)


def functions(path: Path, number=60, seed=0) -> Path:
    """A Python file of functions with docstrings, paragraphs of which are Python, too."""
    draw, names = random.Random(seed), ["add", "subtract", "multiply", "divide"]
    for i in range(number):
        word = draw.choice(names)
        told = f'"""The numbers that {word} gives of a and b."""'
        code = f"def {word}_{i}(a, b):\n    {told}\n    return {word}(a, {i} * b)\n\n"
        with path.open("a") as file:
            file.write(code)
    return path


def questions(path: Path, number=160, seed=0) -> Path:
    """What to do with two to five words, and the answer: {"instruction", "input", "output"}."""
    draw, rows = random.Random(seed), []
    for i in range(number):
        words = draw.choices(list(WORDS), k=draw.randint(2, 5))
        ask, answer = [("Say it in German.", " ".join(map(WORDS.get, words))), ("Say it twice.", " ".join(words * 2))][
            i % 2
        ]
        rows.append({"instruction": ask, "input": " ".join(words), "output": answer})
    return write_lines(path, rows)


def opinions(path: Path, number=160, seed=0) -> Path:
    """An instruction with its better and its worse answer: {"instruction", "input", "chosen", "rejected"}."""
    draw, rows = random.Random(seed), []
    for _ in range(number):
        words = " ".join(draw.choices(list(WORDS), k=draw.randint(2, 4)))
        better, worse = draw.choice(GOOD), draw.choice(BAD)
        ask = {"instruction": "What is it like?", "input": words}
        rows.append({**ask, "chosen": f"{words} is {better}", "rejected": f"{words} is {worse}"})
    return write_lines(path, rows)


def random_decoder(folder: Path, family="decoder", **fields) -> Path:
    """A saved decoder with random weights, and a tokenizer of bytes. family: moe gives it experts."""
    from tiny_tokenizers import of_bytes
    from transformers import AutoConfig, AutoModelForCausalLM

    import anyformer

    anyformer.register()
    end, padding = "<|endoftext|>", "<|pad|>"
    tokenizer = of_bytes((end, padding), bos=end, eos=end, pad=padding)
    fields |= {"vocab_size": 258, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    config = AutoConfig.for_model(f"anyformer_{family}", **fields)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def contexts(path: Path, number=160, seed=0) -> Path:
    """Contexts of 5 to 30 words in which the answer of one or two words follows `mr`: SQuAD's columns."""
    draw, rows = random.Random(seed), []
    for _ in range(number):
        words = draw.choices(NEUTRAL, k=draw.randint(3, 27))
        answer = draw.choices(NAMES["PER"], k=draw.randint(1, 2))
        place = draw.randrange(len(words))
        before = " ".join([*words[:place], "mr", ""])
        text = " ".join(answer)
        rows.append(
            {
                "question": "who was in the film",
                "context": " ".join([before + text, *words[place:]]),
                "answers": {"text": [text], "answer_start": [len(before)]},
            }
        )
    return write_lines(path, rows)


def choices(path: Path, number=160, seed=0) -> Path:
    """A text and four that may follow, of which the one with a good word is right: SWAG's columns."""
    draw, rows = random.Random(seed), []
    for _ in range(number):
        label = draw.randrange(4)
        endings = [f"and {draw.choice(GOOD if i == label else BAD)} in a scene" for i in range(4)]
        row = {"sent1": " ".join(draw.choices(NEUTRAL, k=draw.randint(1, 7))), "sent2": "it was", "label": label}
        rows.append(row | {f"ending{i}": ending for i, ending in enumerate(endings)})
    return write_lines(path, rows)


SWAG = {
    "context_field": "sent1",
    "question_field": "sent2",
    "choices_field": [f"ending{i}" for i in range(4)],
    "max_length": 40,
}


def write_recipe(path: Path, recipe: dict, sections: dict) -> Path:
    """Write a recipe with a short training; sections override single settings, None removes a section."""
    short = {"max_steps": 20, "per_device_train_batch_size": 8, "learning_rate": 5e-3, "logging_steps": 1}
    recipe["training"] = {"output_dir": str(path.parent / "run"), "bf16": False, "save_steps": 6, **short}
    for section, values in sections.items():
        recipe[section] = values if values is None else {**(recipe.get(section) or {}), **values}
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def task_recipe(folder: Path, kind: str, name="recipe", **sections) -> Path:
    """Write a recipe of the task `kind` that trains in a second or two; keyword sections override single settings."""
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 64}
    tasks = {
        "multiple_choice": ("encoder", choices, SWAG),
        "sequence_classification": ("encoder", reviews, {"max_length": 24}),
        "question_answering": (
            "encoder",
            contexts,
            {"max_length": 48, "stride": 12, "max_answer_length": 8},
        ),
        "token_classification": ("encoder", tagged, {"max_length": 48}),
        "translation": ("seq2seq", sentences, {"source_field": "en", "target_field": "de", "max_length": 24}),
        "multi_label_classification": ("encoder", subjects, {"max_length": 60}),
        "sentence_similarity": (
            *("encoder", pairs),
            {"text_pair_field": "other", "label_range": [0, 5], "max_length": 40},
        ),
        "text_to_text": (
            *("seq2seq", reviews),
            {"source": "mood: {text}", "target_field": "label", "answers": "classes", "max_length": 40},
        ),
        "instruction_tuning": ("decoder", questions, {"max_length": 128}),
        "preference": ("decoder", opinions, {"max_length": 128}),
    }
    family, write, settings = tasks[kind]
    small |= {"max_position_embeddings": 128} if settings["max_length"] > 64 else {}
    recipe = {
        "model": {"family": family, **small},
        "tokenizer": {"type": "byte_bpe", "vocab_size": 300},
        "data": {
            "files": str(write(folder / f"{kind}.jsonl")),
            "validation_fraction": 0.2,
            "test_files": str(write(folder / f"{kind}-test.jsonl", 11, seed=1)),
        },
        "task": {"name": kind, **settings},
        "evaluation": {"every_steps": 5, "bootstrap": 20},
    }
    if family == "decoder":  # it writes answers at the end, token by token
        recipe["evaluation"]["sample_tokens"] = 4
    if kind == "preference":  # which tunes a model that is there
        base = random_decoder(folder / "base", **small)
        recipe["model"] = {"name_or_path": str(base)}
        del recipe["tokenizer"]
    return write_recipe(folder / f"{name}.yaml", recipe, sections)
