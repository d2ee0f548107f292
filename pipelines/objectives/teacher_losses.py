"""Losses of knowledge distillation, weighted sums of the labels' and the teacher's loss, and a collator for them."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

from ..data.batch_keys import IGNORE_INDEX, WORDS
from ..data.reference import LOG_PROBS, REFERENCE, TOP_IDS
from ..lazy import torch
from ..likelihoods.token_log_probs import OfTokens
from .losses import Cosine, OwnLoss

OF_TEACHER = (TOP_IDS, LOG_PROBS, REFERENCE)  # keys of rows and batches for the loss, not the model


def with_answers(collate: Callable[[list[dict]], dict], rows: list[dict]) -> dict:
    """The batch that the objective's collator makes of the rows, with the teacher's tensors of them added."""
    plain_rows = [{name: x for name, x in row.items() if name not in OF_TEACHER} for row in rows]
    of_teacher = {name: [row[name] for row in rows] for name in OF_TEACHER if name in rows[0]}
    return collate(plain_rows) | {name: joined(values) for name, values in of_teacher.items()}


def joined(values: list) -> "torch.Tensor":
    """Tensors as one; those of other lengths (answers to words) are padded with NaN."""
    if len({len(value) for value in values}) == 1:
        return torch.stack(values)
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=float("nan"))


class Lesson(OwnLoss):
    """(1 - weight) x the loss of the labels + weight x that of the teacher; without gradients only the labels' loss.

    Both are put into the outputs under "loss_parts", for the log.
    """

    beside = ("labels", *OF_TEACHER, WORDS)

    def __init__(self, weight: float):
        self.weight_of_teacher = weight

    def beside_rows(self, collate: Callable[[list[dict]], dict]) -> Callable[[list[dict]], dict]:
        """The collator whose batches also hold the teacher's answers to the rows."""
        return partial(with_answers, collate)

    def joined(self, outputs, of_labels, of_teacher, count, labels=None) -> "torch.Tensor":
        """The loss of a batch. of_labels, of_teacher: summed losses. count, labels: what the log divides each by."""
        labels = count if labels is None else labels
        parts = {"labels_loss": (of_labels.detach(), labels), "teacher_loss": (of_teacher.detach(), count)}
        if isinstance(outputs, dict):
            outputs["loss_parts"] = parts
        return (1 - self.weight_of_teacher) * of_labels + self.weight_of_teacher * of_teacher


class TokenLesson(Lesson):
    """Loss of each predicted token: cross-entropy of the label, and T^2 KL(teacher || model) at the temperature T.

    Hinton et al. 2015, section 2: the square keeps the gradient's size. A stored distribution q of the teacher has K
    probabilities and the sum of all others; the model's p is reduced likewise, and the KL is over these K + 1 events.
    It is at most the full KL: it leaves out how the others share their sum (the chain rule of relative entropy), which
    the model learns from the labels only. Unlike a q that is scaled up to sum to 1 over its K tokens, it does not draw
    p towards them (Anshumann et al. 2025).

    shifts: whether labels stand beside their own token, predicted one position earlier. size: ids of the tokenizer; the
    KL ignores further logits. ask: as Teacher.states; None: the teacher's answers are stored in the batch.
    """

    def __init__(self, weight: float, temperature: float, shifts: bool, size: int, ask: Callable | None = None):
        super().__init__(weight)
        self.temperature, self.shifts, self.size, self.ask = temperature, shifts, size, ask

    def _counted(self, batch: dict):
        labels = batch["labels"]
        labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX) if self.shifts else labels
        return labels.ne(IGNORE_INDEX), labels

    def weights(self, batch):
        return self._counted(batch)[0].sum(dim=-1)

    def of_tokens(self, batch, label_smoothing=0.0):
        counted, labels = self._counted(batch)
        beside, divergence = (labels,), self._stored
        if torch.is_grad_enabled() and self.ask is None:
            beside += batch[TOP_IDS], batch[LOG_PROBS]
        elif torch.is_grad_enabled():
            states, logits_of = self.ask({name: x for name, x in batch.items() if name not in self.beside})
            beside, divergence = (labels, states), partial(self._asked, logits_of)
        compute = partial(self._sums, divergence, label_smoothing)
        return OfTokens(compute, counted, tuple(of_places[counted] for of_places in beside))

    def _sums(self, divergence: Callable, label_smoothing: float, logits, labels, *of_teacher) -> tuple:
        """(1,), the sum of the labels' losses, and beside answers of the teacher (1,), that of its losses."""
        logits, options = logits.float(), {"reduction": "sum", "label_smoothing": label_smoothing}
        of_labels = torch.nn.functional.cross_entropy(logits, labels, **options)[None]
        if not of_teacher:
            return (of_labels,)
        of_teacher = divergence(logits[:, : self.size] / self.temperature, *of_teacher) * self.temperature**2
        return of_labels, of_teacher[None]

    def total(self, outputs, batch, label_smoothing=0.0):
        of_labels, *of_teacher = (value.sum() for value in self.values(outputs, batch, label_smoothing))
        return self.joined(outputs, of_labels, *of_teacher, self.weight(batch)) if of_teacher else of_labels

    def _asked(self, logits_of: Callable, logits, states) -> "torch.Tensor":
        with torch.autocast(states.device.type, enabled=False):  # as the states were made
            teacher = logits_of(states)[:, : self.size].float() / self.temperature
        p, q = logits.log_softmax(-1), teacher.log_softmax(-1)
        return torch.nn.functional.kl_div(p, q, reduction="sum", log_target=True)

    def _stored(self, logits, ids, log_probs) -> "torch.Tensor":
        q = log_probs.log_softmax(-1)  # renormalised: stored as float16
        others = logits.scatter(-1, ids, float("-inf")).logsumexp(-1, keepdim=True)
        p = torch.cat([logits.gather(-1, ids), others], dim=-1) - logits.logsumexp(-1, keepdim=True)
        return torch.nn.functional.kl_div(p, q, reduction="sum", log_target=True)


class AnswerLesson(Lesson):
    """Loss of examples; one that has only a label, or only a teacher's answer, counts that with weight 1.

    A batch holds the teacher's answers under REFERENCE. A subclass defines both losses.
    """

    def places(self, batch: dict) -> tuple:
        """Booleans of the labels' shape: which have a label, and which the teacher has answered."""
        return batch["labels"] > IGNORE_INDEX, batch["labels"].ne(IGNORE_INDEX)

    def weights(self, batch):
        has_label, is_taught = self.places(batch)
        return (has_label | is_taught).reshape(len(has_label), -1).sum(-1)

    @abstractmethod
    def of_labels(self, outputs, batch: dict, has_label, label_smoothing: float) -> "torch.Tensor":
        """(): the summed loss of the examples, or tokens, with a label."""

    @abstractmethod
    def of_teacher(self, outputs, batch: dict, is_taught) -> "torch.Tensor":
        """(N,): the losses of the N examples, or tokens, that the teacher has answered."""

    def total(self, outputs, batch, label_smoothing=0.0):
        has_label, is_taught = self.places(batch)
        of_labels = self.of_labels(outputs, batch, has_label, label_smoothing)
        if not torch.is_grad_enabled():
            return of_labels
        losses = self.of_teacher(outputs, batch, is_taught)
        joined = self.joined(outputs, of_labels, losses.sum(), is_taught.sum(), has_label.sum())
        labels_only = self.of_labels(outputs, batch, has_label & ~is_taught, label_smoothing)
        teacher_only = losses[~has_label[is_taught]].sum()
        return joined + self.weight_of_teacher * labels_only + (1 - self.weight_of_teacher) * teacher_only


class ClassLesson(AnswerLesson):
    """Cross-entropy of the class, and T^2 KL(teacher || model) over all classes (Hinton et al. 2015, section 2)."""

    def __init__(self, weight: float, temperature: float):
        super().__init__(weight)
        self.temperature = temperature

    def of_labels(self, outputs, batch, has_label, label_smoothing):
        logits, labels = self.logits(outputs, batch).float()[has_label], batch["labels"][has_label]
        options = {"reduction": "sum", "label_smoothing": label_smoothing}
        return torch.nn.functional.cross_entropy(logits, labels, **options)

    def of_teacher(self, outputs, batch, is_taught):
        return divergence(self.logits(outputs, batch)[is_taught], self.answers(batch)[is_taught], self.temperature)

    def answers(self, batch: dict) -> "torch.Tensor":
        """The teacher's logits: (B, K), or (B, T, K) for tags."""
        return batch[REFERENCE]


class TagLesson(ClassLesson):
    """ClassLesson of tokens: of those with a tag, and of those that stand for a word with a teacher's answer.

    In a batch, WORDS has the number of the word that a token stands for, or 0, and REFERENCE the teacher's logits of
    each word, NaN without an answer.
    """

    def places(self, batch):
        has_tag = batch["labels"].ne(IGNORE_INDEX)
        if REFERENCE not in batch:  # a validation
            return has_tag, torch.zeros_like(has_tag)
        return has_tag, batch[WORDS].gt(0) & ~self.answers(batch).isnan().any(-1)

    def answers(self, batch):
        of_words = batch[REFERENCE]
        return of_words.gather(1, (batch[WORDS] - 1).clamp_min(0)[..., None].expand(-1, -1, of_words.shape[-1]))


def divergence(logits: "torch.Tensor", of_teacher: "torch.Tensor", temperature: float) -> "torch.Tensor":
    """(N,): T^2 KL(teacher || model) of logits (N, K) at the temperature T (Hinton et al. 2015, section 2)."""
    p, q = ((each.float() / temperature).log_softmax(-1) for each in (logits, of_teacher))
    return torch.nn.functional.kl_div(p, q, reduction="none", log_target=True).sum(-1) * temperature**2


class VectorLesson(AnswerLesson):
    """Cosine's loss of a pair, and 1 - cosine(model's vector, teacher's vector), averaged over its two texts.

    Reimers and Gurevych 2020, eq. 1, take squared distances; sentence_similarity compares only by cosines, and so
    does this loss. pooling: as Cosine's.
    """

    def __init__(self, weight: float, pooling: str):
        super().__init__(weight)
        self.pairs = Cosine(pooling)

    def logits(self, outputs, batch):
        return self.pairs.logits(outputs, batch)

    def of_labels(self, outputs, batch, has_label, label_smoothing):
        labels = batch["labels"].masked_fill(~has_label, IGNORE_INDEX)
        return self.pairs.total(outputs, batch | {"labels": labels})

    def of_teacher(self, outputs, batch, is_taught):
        vectors = torch.stack(self.pairs.vectors(outputs, batch), dim=1)  # (B, 2, D)
        losses = 1 - torch.nn.functional.cosine_similarity(vectors, batch[REFERENCE].view_as(vectors), dim=-1).mean(-1)
        return losses[is_taught]
