"""What a user of transformers would run instead: run_clm.py, run_mlm.py and run_translation.py in one small file.

Each begins with text files and a tokenizer and ends with a saved model and its validation loss, with the steps of
transformers' examples: `datasets.map` tokenises and groups, `default_data_collator`, DataCollatorForLanguageModeling or
DataCollatorForSeq2Seq makes batches, Trainer trains. commands.py starts it in a process of its own:

    python plain_transformers.py SETTINGS.json
"""

import json
import sys
import time
from itertools import chain
from pathlib import Path

import datasets
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


class FirstStep(TrainerCallback):
    """When the first step began and the last one ended, in seconds since the epoch."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:
            self.began = time.time()

    def on_train_end(self, args, state, control, **kwargs):
        self.ended = time.time()


def grouped(texts: list[str], tokenizer, length: int, folder: str, **options) -> datasets.Dataset:
    """The two maps of run_clm.py and run_mlm.py: tokenise, then concatenate and cut; both write an Arrow file."""

    def tokenize(rows):
        return tokenizer(rows["text"], **options)

    def group(rows):
        whole = {name: list(chain(*rows[name])) for name in rows}
        end = len(whole["input_ids"]) // length * length
        rows = {name: [ids[i : i + length] for i in range(0, end, length)] for name, ids in whole.items()}
        return rows | {"labels": [list(ids) for ids in rows["input_ids"]]}

    Path(folder).mkdir(parents=True, exist_ok=True)
    rows = datasets.Dataset.from_dict({"text": texts})
    rows = rows.map(tokenize, batched=True, remove_columns=["text"], cache_file_name=f"{folder}/tokens.arrow")
    return rows.map(group, batched=True, cache_file_name=f"{folder}/rows.arrow")


def both_splits(settings, tokenizer, read, **options) -> dict:
    folder, length = settings["output_dir"], settings["length"]
    splits = ("train", "validation")
    return {split: grouped(read(split), tokenizer, length, f"{folder}/{split}", **options) for split in splits}


def decoder(settings, tokenizer, read):
    """run_clm.py: LLaMA on running text."""
    rows = both_splits(settings, tokenizer, read)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings["sizes"]["hidden"],
        intermediate_size=settings["sizes"]["channels"],
        num_attention_heads=settings["sizes"]["heads"],
        num_hidden_layers=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config), rows, default_data_collator


def masked(settings, tokenizer, read):
    """run_mlm.py: BERT on running text."""
    rows = both_splits(settings, tokenizer, read, return_special_tokens_mask=True)
    rows = {split: found.remove_columns("labels") for split, found in rows.items()}
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings["sizes"]["hidden"],
        intermediate_size=settings["sizes"]["channels"],
        num_attention_heads=settings["sizes"]["heads"],
        num_hidden_layers=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForMaskedLM(config), rows, DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15)


def translation(settings, tokenizer, read):
    """run_translation.py: T5 on pairs of sentences, padded to the longest of a batch."""

    def tokenize(pairs):
        options = {"truncation": True, "max_length": settings["length"]}
        return dict(tokenizer(pairs["en"], **options)) | {
            "labels": tokenizer(text_target=pairs["de"], **options)["input_ids"]
        }

    rows = {}
    for split in ("train", "validation"):
        rows[split] = datasets.Dataset.from_list(read(split)).map(tokenize, batched=True, remove_columns=["en", "de"])
    config = T5Config(
        vocab_size=len(tokenizer),
        decoder_start_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        d_model=settings["sizes"]["hidden"],
        d_ff=settings["sizes"]["channels"],
        num_heads=settings["sizes"]["heads"],
        num_layers=4,
        dropout_rate=0.0,
    )
    model = T5ForConditionalGeneration(config)
    return model, rows, DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100)


def main(path: str) -> None:
    settings = json.loads(Path(path).read_text())
    set_seed(42)

    def read(split: str) -> list:
        """Lines of a text, texts, or pairs of sentences."""
        path = Path(settings["texts"][split])
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        if path.suffix == ".txt":
            return lines
        found = [json.loads(line) for line in lines]
        return found if settings["kind"] == "translation" else [row["text"] for row in found]

    tokenizer = AutoTokenizer.from_pretrained(settings["tokenizer"])
    model, rows, collator = globals()[settings["kind"]](settings, tokenizer, read)
    timer, folder = FirstStep(), settings["output_dir"]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder, report_to="none", dataloader_pin_memory=False, disable_tqdm=True, **settings["training"]
        ),
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=[timer],
    )
    trainer.train()
    trainer.save_model()
    loss = trainer.evaluate()["eval_loss"]
    facts = {"began": timer.began, "ended": timer.ended, "loss": loss, "parameters": model.num_parameters()}
    Path(folder, "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1])
