"""Which of two answers is preferred, learned from pairs by direct preference optimization."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..adapters import base_arguments, is_adapter, load_config, load_model, recorded_base
from ..data.batch_keys import IGNORE_INDEX, pad, real_places, row_ids
from ..data.documents import in_batches
from ..data.rows import Rows
from ..errors import UserError, loading
from ..generation import locate_model
from ..lazy import np, torch, transformers
from ..likelihoods.token_log_probs import of_log_probs, spread, token_log_probs
from ..plugins import register_objective
from ..recipes.schema import Recipe, doc
from ..storage.cache import sha
from ..words import watched
from .base import Planned
from .chat_rows import Encoded
from .chats import ChatSettings, ChatTask, LearnsChats, ReadsChats
from .data import Data
from .losses import OwnLoss
from .messages import ASSISTANT, Chat, Conversations, not_learned
from .reads import AS_READ
from .scores import Scored, Scores
from .showing import sequence_pieces, tokens_text

ANSWERS, REFERENCE = "answers", "reference"  # keys of a batch, see PairCollator
PARTS = ("chosen", "rejected")
BETWEEN = "between_answers"  # places in a row behind the beginning of an answer that the assistant did not write
PLACES = [f"{part}_{what}" for part in PARTS for what in ("length", "start")]


@dataclass
class PreferenceSettings(ChatSettings):
    is_start_where_null = "reference"
    share_of_usual_rate = 0.05  # as TRL's DPOTrainer: 1e-6 for all weights

    prompt_field: str | None = doc(
        "column of what is asked: a text, or a list of messages {role, content}; null: the answers are conversations",
        "instruction",
    )
    chosen_field: str = doc("column of the better answer: a text, or a list of messages", "chosen")
    rejected_field: str = doc("column of the worse answer", "rejected")
    beta: float = doc("how dear it is to leave the reference model: the paper's beta", 0.1, above=0)
    reference: str | None = doc(
        "the model that answers are compared with; null: model.name_or_path, from which the training starts"
    )


class ReadsPairs(ReadsChats):
    """The tokens of two conversations, concatenated, and where the answers in them begin."""

    legend = AS_READ

    _noun = "pair"
    _mend = "learns=last_answer"
    _columns = {"input_ids": "int32[]", "labels": "int32", BETWEEN: "int32[]"} | dict.fromkeys(PLACES, "int32")

    def columns(self) -> dict[str, str]:
        section = self.settings
        answers = {"chosen_field": section.chosen_field, "rejected_field": section.rejected_field}
        return super().columns() | answers

    def _conversations(self, read: Conversations, place: str, row: dict) -> list[Chat]:
        """The two conversations, the better one first; answers from where they differ are compared."""
        prompt, pair = read.prompt(place, row), []
        role = None if self.settings.prompt_field is None else ASSISTANT
        for field in ("chosen_field", "rejected_field"):
            answer = read.messages(field, place, row, role)
            pair.append(read.learned(field, prompt, answer, place, row))
        if pair[0] == pair[1]:
            raise UserError(
                f"task.rejected_field={self.settings.rejected_field!r}: {place} holds the answer that is chosen; leave "
                f"the example out"
            )
        equal = [one == other for one, other in zip(*(chat[:-1] for chat in pair))]
        same = [*equal, False].index(False)
        return [
            Chat(not_learned(chat[:same]) + chat[same:], chat.variables, repeated)
            for chat, repeated in zip(pair, (0, same))
        ]

    def _row_of(self, encoded: list[Encoded]) -> dict[str, Any] | None:
        """None if an answer is cut off as a whole."""
        longest = self.settings.max_length
        answers = [one_answer(*conversation, longest) for conversation in encoded]
        if any(start >= len(ids) for ids, start in answers):
            return None
        row = {"input_ids": [number for ids, _ in answers for number in ids]}
        row |= {"labels": 0, "full": max(len(ids) for ids, _ in answers) >= longest}  # the first one is chosen
        row["cut"] = any(any(learned[longest:]) for _, learned in encoded)
        row[BETWEEN], before = [], 0
        for part, (ids, start), (_, learned) in zip(PARTS, answers, encoded):
            row |= {f"{part}_length": len(ids), f"{part}_start": start}
            row[BETWEEN] += [before + number for number in range(start, len(ids)) if not learned[number]]
            before += len(ids)
        return row

    def completed(self, data: Data, rows: dict[str, Rows]) -> dict[str, Rows]:
        """The rows with the reference model's log-probabilities of their answers."""
        return {split: self._with_reference(data, encoded) for split, encoded in rows.items()}

    def _with_reference(self, data: Data, encoded) -> Rows:
        from ..data.reference import WithReference
        from ..storage.record import Record

        reference, collate = locate_model(self.settings.reference, "task.reference"), self.collator(data, False)
        record, loaded = Record.now(reference), loaded_as(self.recipe, reference)

        def compute():
            log_probs = log_probabilities(self.recipe, encoded, reference, collate)
            record.check_still(reference, "task.reference")
            return log_probs

        of_dtype = [] if loaded == {"dtype": torch.float32} else [str(loaded)]
        key = sha(["log-probabilities", encoded.fingerprint, record.weights, data.labels.padding, *of_dtype])
        return WithReference.cached(encoded, self.cache, key, compute)

    def collator(self, data: Data, packed: bool) -> Callable[[list[dict]], dict]:
        return PairCollator(data.labels.padding)

    def describe(self, data: Data, rows: Rows) -> str:
        tokens = rows.facts["tokens"] / (2 * rows.facts["examples"])
        return self._described(rows, f"{tokens:.0f} tokens in each of the two conversations")

    def show(self, console, data: Data, rows: Rows, number: int, row: dict) -> None:
        console.rule(f"pair {number}: {len(row['input_ids'])} tokens", align="left")
        for (name, ids, answers), log_prob in zip(parts_of(row), row[REFERENCE].tolist()):
            places, title = answers.nonzero().flatten().tolist(), f"{name} (reference {log_prob:.1f} nats): "
            console.print(tokens_text(console, sequence_pieces(ids.tolist(), data.tokenizer, places, title)))


class LearnsPairs(LearnsChats):
    """The better answer of each pair."""

    shifts_labels = False

    def loss(self) -> OwnLoss:
        return PreferenceLoss(self.settings.beta)


class RewardScores(Scores):
    """Metrics of the rewards of both answers."""

    predicts = "row"

    def predictions(self, logits, labels):
        """(B, 2) rewards and (B,) -> (B, 3): rewards of the chosen and the rejected answer, and the label."""
        return torch.cat([logits.float(), labels[:, None].float()], dim=-1)

    def scored(self, predictions) -> Scored:
        """Metrics of the predictions of all rows, an array of shape (rows, 3)."""
        return self._compare(predictions[:, 0].tolist(), predictions[:, 1].tolist())


@register_objective
class Preference(ChatTask):
    """The better of two answers, by direct preference optimization (DPO).

    Rafailov et al. 2023, eq. 7, as TRL's DPOTrainer computes it. The reference model's log-probabilities are computed
    once, before the training, and kept in the cache.
    """

    name = "preference"
    Settings = PreferenceSettings
    Reads, Learns, Scores = ReadsPairs, LearnsPairs, RewardScores
    compares = "rewards"
    default_metrics = ("reward_accuracy", "reward_margin")
    row_labels = None  # with the reference model's log-probabilities
    words = replace(ChatTask.words, row="pair", loss="nats per pair")

    def planned(self) -> Planned:
        return replace(super().planned(), sequences=2)

    def check(self) -> None:
        if self.recipe.model.name_or_path is None:
            raise UserError(
                "task.name=preference tunes a model that answers already, and this one's weights are fresh; set "
                "model.name_or_path, such as to a run with task.name=instruction_tuning"
            )
        super().check()


def one_answer(ids: list[int], learned: list[bool], longest: int) -> tuple[list[int], int]:
    """(tokens up to the end of the answer, cut to `longest`; where it begins: len(ids) if it has no token)."""
    inside = [number for number, is_learned in enumerate(learned) if is_learned]
    if not inside:
        return ids[:longest], len(ids)
    return ids[: inside[-1] + 1][:longest], inside[0]


def parts_of(row: dict) -> list[tuple[str, Any, Any]]:
    """("chosen" or "rejected", tokens (T,), which of them are of its answers (T,)) of both conversations of a row."""
    split, answers = int(row["chosen_length"]), torch.ones(len(row["input_ids"]), dtype=torch.bool)
    answers[: int(row["chosen_start"])] = answers[split : split + int(row["rejected_start"])] = False
    answers[row[BETWEEN]] = False
    halves = (row["input_ids"][:split], answers[:split]), (row["input_ids"][split:], answers[split:])
    return [(part, *half) for part, half in zip(PARTS, halves)]


class PairCollator:
    """Rows -> one batch: input_ids and attention_mask (2B, T), the chosen conversations of all B pairs first.

    answers: (2B, T), whether a token is part of the answer. reference: (B, 2), the reference model's log-probabilities
    of chosen and rejected answers. labels: (B,), 0: the first answer is chosen; -100: the pair does not count.
    """

    def __init__(self, pad_token_id: int):
        self.pad_token_id = pad_token_id

    def __call__(self, rows: list[dict]) -> dict:
        both = [parts_of(row) for row in rows]
        parts = [pair[side] for side in range(2) for pair in both]
        ids = pad([tokens for _, tokens, _ in parts], self.pad_token_id)
        inside = real_places([len(tokens) for _, tokens, _ in parts], ids.shape[1])
        return {
            "input_ids": ids,
            "attention_mask": inside.long(),
            ANSWERS: pad([answers for *_, answers in parts], False),
            REFERENCE: torch.stack([row[REFERENCE] for row in rows]),
            "labels": torch.stack([row["labels"] for row in rows]),
        } | row_ids(rows)


def answer_tokens(batch: dict):
    """(2B, T): the token of an answer that each place of a PairCollator's batch predicts, else IGNORE_INDEX."""
    labels = batch["input_ids"].masked_fill(~batch[ANSWERS], IGNORE_INDEX)
    return torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)  # so that no logits are copied


def of_pairs(log_probs):
    """(2B, T) log-probabilities of the tokens of answers -> (B, 2), of the chosen and the rejected answers."""
    return log_probs.sum(dim=-1).view(2, -1).T


def loaded_as(recipe: Recipe, reference: str) -> dict[str, Any]:
    """from_pretrained's arguments for a reference: the dtype of the model in training; an adapter has its own."""
    from ..precision import computed_dtype

    lora, start = recipe.training.lora, recipe.model.name_or_path
    if lora is not None and not is_adapter(reference):
        return base_arguments(lora.base, computed_dtype(recipe.training))
    recorded = recorded_base(start, load_config(start)) if is_adapter(start) and not is_adapter(reference) else {}
    return {"dtype": torch.float32} | {name: value for name, value in recorded.items() if name != "config"}


def log_probabilities(recipe: Recipe, rows: Rows, reference: str, collate: Callable):
    """(N, 2) float32: a reference model's log-probabilities of the two answers of each row.

    collate: a PairCollator.
    """
    from ..likelihoods.without_logits import without_logits

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    with loading(f"task.reference={reference!r}"):
        trust = {"trust_remote_code": recipe.trust_remote_code}
        model = load_model(transformers.AutoModelForCausalLM, reference, **loaded_as(recipe, reference), **trust)
    without_logits(model)
    model, size = model.to(device).eval(), recipe.training.evaluation_rows
    found = np.zeros((len(rows), 2), dtype=np.float32)
    batches = list(in_batches(np.argsort(-rows.row_lengths, kind="stable").tolist(), size))
    for numbers in watched(batches, "reference model, batch"):
        batch = collate([rows[number] | {REFERENCE: torch.zeros(2)} for number in numbers])
        read = {name: batch[name] for name in ("input_ids", "attention_mask")}
        # In float32, as those of the model in training, which begins as the reference.
        found[numbers] = of_pairs(token_log_probs(model, read, answer_tokens(batch), dtype=torch.float32)).cpu().numpy()
    return found


class PreferenceLoss(OwnLoss):
    """-log sigmoid(r(chosen) - r(rejected)), where r = beta * (log p(answer) - log p_reference(answer)) is the reward.

    Rafailov et al. 2023, eq. 7; the rewards are logits of two classes, of which the first is right. Label smoothing e
    assumes that a pair is reversed with probability e / 2 (conservative DPO, Mitchell 2023).
    """

    beside = ("labels", ANSWERS, REFERENCE)

    def __init__(self, beta: float):
        self.beta = beta

    def of_tokens(self, batch, label_smoothing=0.0):
        return of_log_probs(answer_tokens(batch), torch.float32)

    def logits(self, outputs, batch):
        """(B, 2): the rewards."""
        of_tokens = spread(*self.values(outputs, batch), answer_tokens(batch))
        return self.beta * (of_pairs(of_tokens) - batch[REFERENCE])

    def weights_of_rows(self, batch, rows):
        return self.weights(batch).repeat(2) / 2  # the chosen conversations of all pairs come first

    def total(self, outputs, batch, label_smoothing=0.0):
        return torch.nn.functional.cross_entropy(
            self.logits(outputs, batch),
            batch["labels"],
            ignore_index=IGNORE_INDEX,
            reduction="sum",
            label_smoothing=label_smoothing,
        )
