"""A tokenizer gives the tokens of its tokenizer.json, whatever class tokenizer_config.json names."""

import json

import pytest
import transformers
import yaml
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.tokenizers.load import tokenizer_fingerprint
from task_data import on_rows, task_recipe
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

LETTERS = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,'", "é"]
FRAMES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<|endoftext|>"]
TEXT = "The Café’s  12345 IDs, don't: Was it cafe\u0301?"


def byte_level(normalizer=None, before=(), prefix=False, after=None) -> Tokenizer:
    entries = [*FRAMES, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "Th", "12"]
    merges = [("t", "h"), ("T", "h"), ("1", "2")]
    backend = Tokenizer(models.BPE({token: number for number, token in enumerate(entries)}, merges))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(add_prefix_space=prefix)])
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = after or processors.ByteLevel(trim_offsets=False)
    return backend


def word_pieces(**normaliser) -> Tokenizer:
    entries = [*FRAMES, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    backend = Tokenizer(models.WordPiece({token: i for i, token in enumerate(entries)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = (
        normalizers.BertNormalizer(**normaliser),
        pre_tokenizers.BertPreTokenizer(),
    )
    backend.decoder = decoders.WordPiece()
    return backend


def unigram(normalizer) -> Tokenizer:
    entries = ["<pad>", "</s>", "<unk>", "▁", *LETTERS]
    backend = Tokenizer(models.Unigram([(token, -1.0) for token in entries], unk_id=2))
    backend.normalizer, backend.pre_tokenizer = normalizer, pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    end = {"single": "$A </s>", "pair": "$A </s> $B </s>", "special_tokens": [("</s>", 1)]}
    backend.post_processor = processors.TemplateProcessing(**end)
    return backend


GPT2 = {"unk_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<pad>"}
FRAMED = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)])
DIGITS = pre_tokenizers.Digits(individual_digits=True)
# name -> (class, model type, backend of tokenizer.json, special tokens, what of the class differs; "": nothing)
CASES = {
    "gpt2, digits alone": ("GPT2Tokenizer", "gpt2", byte_level(before=[DIGITS]), GPT2, "pre_tokenizer"),
    "gpt2, normalised": ("GPT2TokenizerFast", "gpt2", byte_level(normalizers.NFKC()), GPT2, "normalizer"),
    "gpt2, as it is": ("GPT2Tokenizer", "gpt2", None, GPT2, ""),
    "qwen2 in a llama": ("Qwen2Tokenizer", "llama", byte_level(before=[DIGITS]), GPT2, "normalizer, pre_tokenizer"),
    "qwen2": ("Qwen2Tokenizer", "qwen2", byte_level(before=[DIGITS]), GPT2, "normalizer, pre_tokenizer"),
    "roberta": ("RobertaTokenizer", "roberta", byte_level(prefix=True, after=FRAMED), {}, "pre_tokenizer"),
    "bert, cased": ("BertTokenizer", "bert", word_pieces(lowercase=False), {}, "normalizer"),
    "bert, accents kept": ("BertTokenizer", "bert", word_pieces(strip_accents=False), {}, "normalizer"),
    "t5, lower case": ("T5Tokenizer", "t5", unigram(normalizers.Lowercase()), {"extra_ids": 0}, "normalizer"),
    "no class": ("PreTrainedTokenizerFast", "bert", word_pieces(lowercase=False), {"unk_token": "[UNK]"}, ""),
}


@pytest.fixture(params=CASES)
def saved(request, tmp_path):
    """(folder of a tokenizer beside a config, its tokenizer.json, what differs)"""
    name, kind, backend, special, different = CASES[request.param]
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    if backend is None:
        backend = json.loads(byte_level().to_str())["model"]
        own = getattr(transformers, name)(
            vocab=backend["vocab"], merges=[tuple(pair) for pair in backend["merges"]], **special
        )
        own.save_pretrained(folder)
    else:
        backend.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **special}))
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return folder, Tokenizer.from_file(str(folder / "tokenizer.json")), different


def test_tokens_are_the_files_and_stay_so_when_they_are_saved(saved, tmp_path, capsys):
    from anyformer.pipelines.open_tokenizer import open_tokenizer

    folder, file, different = saved
    opened = open_tokenizer(folder)
    said = capsys.readouterr().err
    assert (
        opened(TEXT)["input_ids"] == file.encode(TEXT).ids
        and opened("a", "b")["input_ids"] == file.encode("a", "b").ids
    )
    assert f"has another {different}" in said if different else said == ""
    if different:
        assert AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"] != file.encode(TEXT).ids
    opened.save_pretrained(tmp_path / "again")
    (tmp_path / "again" / "config.json").write_text((folder / "config.json").read_text())
    again = AutoTokenizer.from_pretrained(tmp_path / "again")
    if "qwen2" in (folder / "config.json").read_text():  # transformers reads no other class for this model type
        assert "PreTrainedTokenizerFast takes the file" in said
        again = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "again")
    assert again(TEXT)["input_ids"] == file.encode(TEXT).ids
    assert tokenizer_fingerprint(again) == tokenizer_fingerprint(opened)
    assert again.special_tokens_map == opened.special_tokens_map and again.model_input_names == opened.model_input_names
    assert open_tokenizer(tmp_path / "again")(TEXT)["input_ids"] == file.encode(TEXT).ids


@pytest.mark.parametrize("gap", [False, True], ids=["class and file differ", "a gap in the ids"])
def test_a_run_learns_the_tokens_of_the_file_and_predicts_with_them(tmp_path, command, monkeypatch, gap):
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    backend, folder = word_pieces(lowercase=False), tmp_path / "tokenizer"
    if gap:
        words = {token: 3 * number for number, token in enumerate([*FRAMES, "good", "bad", "the", "film"])}
        backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast" if gap else "BertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names | kind))
    texts = ["Good Film", "good bad film", "The film"]
    rows = [{"text": texts[number % 3], "label": number % 2} for number in range(24)]
    sections = on_rows(tmp_path, rows)
    recipe = task_recipe(tmp_path, "sequence_classification", **sections, training={"max_steps": 1})
    document = yaml.safe_load(recipe.read_text()) | {"tokenizer": {"name_or_path": str(folder)}}
    recipe.write_text(yaml.safe_dump(document))
    read = [backend.encode(row["text"]).ids for row in rows]
    data = prepare_data(load_recipe(str(recipe)))
    special = set(data.tokenizer.all_special_ids) - {data.tokenizer.unk_token_id}
    assert [[i for i in row["input_ids"].tolist() if i not in special] for row in data.rows["train"]] == read
    assert command("train", recipe) == 0
    run = next(path.parent for path in tmp_path.rglob("run.json"))
    assert AutoTokenizer.from_pretrained(run)(texts)["input_ids"] == data.tokenizer(texts)["input_ids"]
    assert json.loads((run / "config.json").read_text())["vocab_size"] == max(backend.get_vocab().values()) + 1
    assert command("predict", run, tmp_path / "rows.jsonl", "--out", tmp_path / "answers.jsonl") == 0
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == len(rows)


def test_every_door_opens_tokenizers_by_their_file(repo_root):
    calls = {
        file.name
        for file in (repo_root / "pipelines").rglob("*.py")
        if "AutoTokenizer.from_pretrained(" in file.read_text()
    }
    assert calls == {"open_tokenizer.py", "gguf_files.py"}  # of a GGUF file, which becomes a folder for the other
