#!/usr/bin/env python
"""An LSTM of a transformer's size, the baseline that the notes compare with: a plug-in and a script.

The plug-in registers the two classes with transformers' Auto classes. The script writes an untrained model with the
tokenizer, the kind of head and nearly the number of parameters of an existing run. Recipes start from that model
(model.name_or_path), so that data, tokens, steps and metrics are the recipe's:

    python scripts/results/lstm.py runs/lstm_untrained --like runs/quickstart
    anyformer --plugin scripts/results/lstm.py sweep scripts/results/lstm_or_transformer.yaml

It reads the same rows as a transformer; its state restarts with each document in a row, which is where position_ids
restart. MFU counts only linear layers, so it says little about an LSTM.
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_sequence, unpack_sequence
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers import PreTrainedConfig as Config
from transformers.modeling_outputs import CausalLMOutput, SequenceClassifierOutput

NAME = "lstm_baseline"


class LstmConfig(Config):
    """hidden_size: the size of embeddings and of states, because the head is tied to the embedding."""

    model_type = NAME

    def __init__(self, vocab_size=2048, hidden_size=404, num_hidden_layers=2, hidden_dropout=0.0, **kwargs):
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.hidden_dropout, self.num_attention_heads = hidden_dropout, 1
        super().__init__(**{"tie_word_embeddings": True} | kwargs)


class LstmModel(PreTrainedModel):
    """Embeddings and torch.nn.LSTM (Hochreiter and Schmidhuber 1997), from left to right."""

    config_class = LstmConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        sizes = config.hidden_size, config.hidden_size, config.num_hidden_layers
        self.layers = nn.LSTM(*sizes, batch_first=True, dropout=config.hidden_dropout)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)  # tied: logits of variance 1
        elif isinstance(module, nn.LSTM):
            for name, weight in module.named_parameters():
                if weight.dim() == 2:
                    nn.init.xavier_uniform_(weight) if "_ih_" in name else nn.init.orthogonal_(weight)
                else:
                    nn.init.zeros_(weight)
                    if "_ih_" in name:  # the forget gate begins open (Jozefowicz et al. 2015)
                        nn.init.ones_(weight[module.hidden_size : 2 * module.hidden_size])

    def get_input_embeddings(self):
        return self.embed_tokens

    def forward(self, input_ids, position_ids=None):
        embeddings = self.embed_tokens(input_ids)
        if position_ids is None:
            return self.layers(embeddings)[0]
        begins = position_ids.expand(input_ids.shape) == 0
        begins[:, 0] = True
        first = begins.flatten().nonzero().flatten()
        lengths = torch.diff(first, append=first.new_tensor([begins.numel()])).tolist()
        documents = pack_sequence(embeddings.flatten(0, 1).split(lengths), enforce_sorted=False)
        return torch.cat(unpack_sequence(self.layers(documents)[0])).view(embeddings.shape)


class LstmForCausalLM(LstmModel):
    """Predicts the next token from the state after each token."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        PreTrainedModel.__init__(self, config)
        self.model = LstmModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def forward(
        self, input_ids, attention_mask=None, position_ids=None, labels=None, num_items_in_batch=None, **kwargs
    ):
        logits, loss = self.lm_head(self.model(input_ids, position_ids)), None
        if labels is not None:
            size = self.config.vocab_size
            loss = self.loss_function(logits, labels, vocab_size=size, num_items_in_batch=num_items_in_batch)
        return CausalLMOutput(loss=loss, logits=logits)


class LstmForSequenceClassification(LstmModel):
    """Predicts the class of a text from the mean of the states after its tokens."""

    def __init__(self, config):
        PreTrainedModel.__init__(self, config)
        self.model = LstmModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def forward(self, input_ids, attention_mask=None, labels=None, **kwargs):
        states = self.model(input_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mask = mask[..., None].to(states.dtype)
        logits = self.score((states * mask).sum(1) / mask.sum(1).clamp_min(1))
        loss = None if labels is None else cross_entropy(logits.float(), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


AutoConfig.register(NAME, LstmConfig, exist_ok=True)
AutoModelForCausalLM.register(LstmConfig, LstmForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(LstmConfig, LstmForSequenceClassification, exist_ok=True)


def width_of(parameters: int, vocabulary: int, layers: int) -> int:
    """The hidden size at which an LSTM with a tied head comes closest to this number of parameters."""

    def size(width):
        return vocabulary * width + layers * (8 * width * width + 8 * width)

    return min(range(8, 8192), key=lambda width: abs(size(width) - parameters))


def main() -> None:
    """Write a model without training that is as large as that of a run."""
    import anyformer  # noqa: F401  (its models are registered)

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", help="where the model is written")
    parser.add_argument("--like", required=True, metavar="RUN", help="a finished run of a decoder or a classifier")
    parser.add_argument("--num-hidden-layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    tokenizer, like = AutoTokenizer.from_pretrained(args.like), AutoConfig.from_pretrained(args.like)
    classifies = like.architectures[0].endswith("ForSequenceClassification")
    kind = AutoModelForSequenceClassification if classifies else AutoModelForCausalLM
    model = kind.from_pretrained(args.like)
    if type(model).__name__ != like.architectures[0]:
        parser.error(f"--like {args.like} is a {like.architectures[0]}; give a decoder or a classifier of texts")
    size = sum(p.numel() for p in model.parameters())
    width = width_of(size, len(tokenizer), args.num_hidden_layers)
    special = {name: getattr(like, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    labels = {"id2label": like.id2label, "label2id": like.label2id} if classifies else {}
    torch.manual_seed(args.seed)
    layers = args.num_hidden_layers
    config = LstmConfig(len(tokenizer), width, layers, **special, **labels)
    model = (LstmForSequenceClassification if classifies else LstmForCausalLM)(config)
    model.save_pretrained(args.folder)
    tokenizer.save_pretrained(args.folder)
    count = sum(p.numel() for p in model.parameters())
    print(f"{args.folder}: {count:,} parameters for {size:,} of {args.like}, {width} wide")


if __name__ == "__main__":
    main()
