"""The padding token from which a model counts its positions, kept against Trainer."""

from transformers import TrainerCallback


class KeepPadding(TrainerCallback):
    """Undo that Trainer, before training, writes the tokenizer's padding token into the config.

    Where positions are counted from it (RoBERTa), the saved model would be another one.
    """

    def __init__(self, config):
        self.config, self.pad_token_id = config, config.pad_token_id

    def on_train_begin(self, args, state, control, **kwargs):
        self.config.pad_token_id = self.pad_token_id
