"""The teacher of a distillation: a saved model, never trained, and loaded when it is first used."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from anyformer.modeling.lm_head import ROWS_PER_CHUNK

from ..adapters import is_adapter, load_config, load_model
from ..data.account import Account
from ..errors import UserError, loading
from ..generation import locate_model
from ..likelihoods.without_logits import NativeCausal, without_logits
from ..open_tokenizer import open_tokenizer
from ..positions import UNLIMITED, most_positions
from ..storage.model_folder import open_model_folder
from ..storage.record import Record
from ..transformers_logging import errors_only
from .of_heads import pooling_of

SETTING = "teacher.name_or_path"


class Teacher:
    """A model of a folder or of the Hub, with the head of an Auto class.

    Raises UserError for a model that does not exist, or a folder without weights.

    name: as the recipe names it. account: of the texts that it has read.
    """

    def __init__(self, name: str, auto_class: str, trust_remote_code: bool = False):
        self.name, self.path, self.trust = name, locate_model(name, SETTING), trust_remote_code
        self.auto_class, self.account = getattr(transformers, auto_class), Account()
        self.is_folder = Path(self.path).is_dir()
        if self.is_folder:
            open_model_folder(self.path).weight_files()
        with loading(self.words):
            self.config = load_config(self.path, trust_remote_code=trust_remote_code)

    @property
    def words(self) -> str:
        return f"{SETTING}={self.name!r}"

    @cached_property
    def record(self) -> Record:
        """Of its weights, as they are before they are read."""
        return Record.now(self.path)

    @property
    def identity(self) -> list:
        """JSON that changes whenever the teacher's answers do."""
        return self.record.weights

    def unchanged(self, answers: Any) -> Any:
        """Return what has been computed with the model; raise UserError if its files have changed since `record`."""
        if self.is_folder:  # the commit of a repository is in its identity, and asking for it takes a request
            self.record.check_still(self.path, SETTING)
        return answers

    @property
    def parameters(self) -> int:
        """Number of parameters; a folder's is known without loading the model."""
        if self.is_folder and not is_adapter(self.path):
            return open_model_folder(self.path).parameter_count()
        return self.model.num_parameters()

    def check_kind(self) -> None:
        """Raise UserError for a model that was trained with another head."""
        of_head = self.auto_class._model_mapping.get(type(self.config), None)
        trained = self.config.architectures or []
        has_own_code = of_head is None and getattr(self.config, "auto_map", None)
        if self.auto_class is transformers.AutoModel or is_adapter(self.path) or has_own_code:
            return
        if of_head is None or (trained and of_head.__name__ not in trained):
            raise UserError(
                f"{self.words} is a {' or '.join(trained) or type(self.config).__name__}; this objective takes a "
                f"teacher with the head of {self.auto_class.__name__}, trained for the same"
            )

    def check_vectors(self) -> None:
        """Raise UserError for a model that gives no vector of a text."""
        if self.config.is_encoder_decoder or not hasattr(self.config, "hidden_size"):
            raise UserError(f"{self.words} is no encoder or decoder of texts, and gives no vector of one")

    @property
    def pooling(self) -> str:
        """How the vectors of a text's tokens become one: "mean" or "first"."""
        return pooling_of(self.path)

    @cached_property
    def tokenizer(self) -> Any:
        with loading(self.words):
            loaded = open_tokenizer(self.path, self.trust)
        if loaded.model_max_length > UNLIMITED:
            loaded.model_max_length = most_positions(self.config) or loaded.model_max_length
        return loaded

    def check_tokenizer(self, tokenizer) -> int:
        """The number of token ids, which both models share. Raises UserError unless the two vocabularies are equal."""
        teachers, models = self.tokenizer.get_vocab(), tokenizer.get_vocab()
        if teachers != models:
            same = len(teachers.items() & models.items())
            raise UserError(
                f"{self.words} has another tokenizer: {len(teachers):,} entries, of which {same:,} are among the "
                f"{len(models):,} here; set tokenizer.name_or_path={self.name}, or train on texts that it writes "
                f"(docs/learning/teachers.md)"
            )
        return max(teachers.values()) + 1

    @cached_property
    def model(self):
        """The model, in evaluation mode, on an accelerator where there is one. Raises UserError."""
        _ = self.record  # before it is read
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
        with loading(self.words), errors_only():
            dtype = torch.float32 if device.type == "cpu" else "auto"
            options = {"dtype": dtype, "trust_remote_code": self.trust, "output_loading_info": True}
            model, info = load_model(self.auto_class, self.path, **options)
        if missing := sorted(key for key in info["missing_keys"] if not key.startswith("pooler.")):
            raise UserError(
                f"{self.words} lacks the weights {', '.join(missing[:3])}; it cannot answer, train it first"
            )
        without_logits(model)
        return self.unchanged(model.to(device).eval().requires_grad_(False))

    def let_go(self) -> None:
        """Free the model's memory; the next use loads it again."""
        self.__dict__.pop("model", None)

    @torch.no_grad()
    def states(self, inputs: dict) -> tuple[torch.Tensor, Callable]:
        """(states (B, T, any) of a batch without labels, a function: states (..., any) -> logits (..., V)).

        The states are hidden ones where the model can make them alone, else its logits.
        """
        if self.model.device != inputs["input_ids"].device:
            self.model.to(inputs["input_ids"].device)
        # Native decoders recognise packed rows by position_ids only if no cache is made.
        cache = {"use_cache": False} if self.auto_class is transformers.AutoModelForCausalLM else {}
        if isinstance(self.model, NativeCausal):
            return self.model.hidden(**inputs, **cache), self.model.logits_of
        return self.model(**inputs, **cache).logits, lambda logits: logits

    def top_tokens(self, batch: dict, size: int, top_k: int, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest ids (B, T, K), and log-probabilities (B, T, K + 1): theirs, and that of all others together."""
        inputs = {name: x.to(self.model.device) for name, x in batch.items() if name != "labels"}
        states, logits_of = self.states(inputs)
        found = []
        for some in states.flatten(0, -2).split(ROWS_PER_CHUNK):
            logits = logits_of(some)[:, :size].float() / temperature
            top, norm = logits.topk(top_k), logits.logsumexp(-1, keepdim=True)
            rest = logits.scatter(-1, top.indices, float("-inf")).logsumexp(-1, keepdim=True)
            found.append((top.indices.cpu(), (torch.cat([top.values, rest], dim=-1) - norm).cpu()))
        ids, log_probs = (torch.cat(parts).unflatten(0, states.shape[:-1]) for parts in zip(*found))
        return ids, log_probs
