"""Losses that a task computes from its model's outputs, where the model computes none or a different one.

Each is a sum over a batch, with a weight to divide it by. Trainer divides by the total weight of all batches of an
optimizer step on all processes, so gradient accumulation and data parallelism do not change the loss.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from ..data.batch_keys import IGNORE_INDEX
from ..lazy import torch
from ..likelihoods.token_log_probs import OfTokens


class OwnLoss(ABC):
    """What Learns.loss returns. A batch is a dict of model inputs and `labels`; labels of -100 are not counted.

    outputs: those of the model, which gets the batch without the keys in `beside`.
    """

    beside: ClassVar[tuple[str, ...]] = ("labels",)

    def weights(self, batch: dict) -> "torch.Tensor":
        """(B,): what each example adds to `weight`; here its number of counted labels."""
        return batch["labels"].ne(IGNORE_INDEX).reshape(len(batch["labels"]), -1).sum(dim=-1)

    def weight(self, batch: dict) -> "torch.Tensor":
        """(): what `total` is divided by."""
        return self.weights(batch).sum()

    def weights_of_rows(self, batch: dict, rows: int) -> "torch.Tensor":
        """(rows,): `weights` per row of the model, with each example's divided equally over its consecutive rows."""
        per_example = rows // len(batch["labels"])
        return self.weights(batch).repeat_interleave(per_example) / per_example

    @abstractmethod
    def total(self, outputs, batch: dict, label_smoothing: float = 0.0) -> "torch.Tensor":
        """(): the summed loss; 0, with gradients of 0, for a batch without a counted label.

        label_smoothing: share of a label's probability that is spread over all classes; 0 in evaluation.
        """

    def logits(self, outputs, batch: dict) -> "torch.Tensor":
        """(B, ...): what Scores.predictions takes."""
        return outputs["logits"] if isinstance(outputs, dict) else outputs[0]

    def of_tokens(self, batch: dict, label_smoothing: float = 0.0) -> OfTokens | None:
        """All that the loss needs of the logits, for models that need not make them; None: it needs them."""
        return None

    def values(self, outputs, batch: dict, label_smoothing: float = 0.0) -> "tuple[torch.Tensor, ...]":
        """What `of_tokens` asks for, from a model's outputs."""
        if isinstance(outputs, dict) and outputs.get("of_tokens") is not None:
            return outputs["of_tokens"]
        asked = self.of_tokens(batch, label_smoothing)
        return asked.compute(OwnLoss.logits(self, outputs, batch)[asked.places], *asked.beside)


class WeightedClasses(OwnLoss):
    """Cross-entropy with a weight for each class, as torch.nn.CrossEntropyLoss(weight) means it.

    The sum of w[label] * loss is divided by the sum of w[label]. Where labels are shares of classes (mixup), a row's
    weight is the sum of w[class] * share.

    weights: one for each class, in the order of the model's outputs.
    """

    def __init__(self, weights: list[float]):
        self.of_classes = weights

    def _of_classes(self, like):
        return torch.tensor(self.of_classes, device=like.device)

    def weights(self, batch):
        labels = batch["labels"]
        weights = self._of_classes(labels)
        if labels.is_floating_point():
            return (labels * weights).flatten(1).sum(dim=-1)
        counted = labels.ne(IGNORE_INDEX)
        return (weights[labels.masked_fill(~counted, 0)] * counted).reshape(len(labels), -1).sum(dim=-1)

    def total(self, outputs, batch, label_smoothing=0.0):
        labels, logits = batch["labels"], self.logits(outputs, batch).flatten(0, -2).float()
        return torch.nn.functional.cross_entropy(
            logits,
            labels.flatten(0, -2) if labels.is_floating_point() else labels.flatten(),
            weight=self._of_classes(logits),
            ignore_index=IGNORE_INDEX,
            reduction="sum",
            label_smoothing=label_smoothing,
        )


class SeveralLabels(OwnLoss):
    """Binary cross-entropy of every label by itself: logits (B, C) against labels (B, C) of 0 and 1.

    The mean is over all C labels of all rows, as that of torch.nn.BCEWithLogitsLoss.

    positive_weights: for each class, the weight of a label of 1, as pos_weight there; None: 1, as of a label of 0.
    """

    def __init__(self, positive_weights: list[float] | None = None):
        self.positive_weights = positive_weights

    def total(self, outputs, batch, label_smoothing=0.0):
        logits, labels = self.logits(outputs, batch).float(), batch["labels"]
        counted = labels.ne(IGNORE_INDEX)
        targets = labels.masked_fill(~counted, 0).to(logits.dtype)
        targets = targets * (1 - label_smoothing) + label_smoothing / 2  # the two classes of each label: yes and no
        weights = None if self.positive_weights is None else torch.tensor(self.positive_weights, device=logits.device)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, targets, pos_weight=weights, reduction="none"
        )
        return losses.masked_fill(~counted, 0.0).sum()


class Spans(OwnLoss):
    """Cross-entropy of an answer's first and last token among the real tokens of its row: labels (B, 2), their places.

    Padding gets no probability, whichever model it is, so that the loss of a row does not depend on its batch.
    """

    beside = ("labels", "start_positions", "end_positions")

    def logits(self, outputs, batch):
        """(B, 2, T): the scores of each token as the first and as the last one."""
        return torch.stack([outputs["start_logits"], outputs["end_logits"]], dim=1)

    def total(self, outputs, batch, label_smoothing=0.0):
        labels, logits = batch["labels"], self.logits(outputs, batch).float()
        counted = labels.ne(IGNORE_INDEX)
        hidden = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))[:, None].eq(0)
        losses = -logits.masked_fill(hidden, torch.finfo(logits.dtype).min).log_softmax(dim=-1)
        of_labels = losses.gather(-1, labels.masked_fill(~counted, 0)[..., None]).squeeze(-1)
        of_all = losses.masked_fill(hidden, 0.0).sum(dim=-1) / (~hidden).sum(dim=-1).clamp(min=1)
        mixed = (1 - label_smoothing) * of_labels + label_smoothing * of_all
        return torch.where(counted, mixed, 0.0).sum()


class Cosine(OwnLoss):
    """(cosine of two texts' vectors - label) squared: CosineSimilarityLoss of sentence-transformers.

    The model gets both texts of B pairs as 2 B rows, those of a pair one after the other; labels are (B,).

    pooling: how the tokens' vectors become the text's, "mean" or "first" (token).
    """

    def __init__(self, pooling: str):
        self.pooling = pooling

    def vectors(self, outputs, batch: dict) -> "tuple[torch.Tensor, torch.Tensor]":
        """(B, D) of the first texts and (B, D) of the second ones."""
        from anyformer.modeling.task_heads_encoder import pool_tokens

        states = outputs["last_hidden_state"] if isinstance(outputs, dict) else outputs[0]
        pooled = pool_tokens(states.float(), batch.get("attention_mask"), "cls" if self.pooling == "first" else "mean")
        return pooled[0::2], pooled[1::2]

    def logits(self, outputs, batch):
        """(B, 1): the cosines."""
        return torch.nn.functional.cosine_similarity(*self.vectors(outputs, batch))[:, None]

    def total(self, outputs, batch, label_smoothing=0.0):
        labels = batch["labels"]
        errors = (self.logits(outputs, batch).squeeze(-1) - labels).square()
        return errors.masked_fill(labels.eq(IGNORE_INDEX), 0.0).sum()


class InBatchNegatives(Cosine):
    """Each first text has to find its own second text among those of the batch: MultipleNegativesRankingLoss.

    Cross-entropy over the cosines times `scale` (van den Oord et al. 2018, eq. 4; Henderson et al. 2017, section 4.4).
    The negatives come from one process's batch: unlike the other losses, this one depends on how the examples of an
    optimizer step are divided into batches. The texts of a pair mean the same, so pairs that share a text, directly or
    through other pairs, are no negatives of each other: as vectors of equal texts are equal, no model could tell them
    apart. (sentence-transformers draws batches without such pairs, BatchSamplers.NO_DUPLICATES.)
    """

    def __init__(self, pooling: str, scale: float):
        super().__init__(pooling)
        self.scale = scale

    def total(self, outputs, batch, label_smoothing=0.0):
        counted = batch["labels"].ne(IGNORE_INDEX)
        first, second = (torch.nn.functional.normalize(side[counted], dim=-1) for side in self.vectors(outputs, batch))
        scores = first @ second.T * self.scale
        if "input_ids" in batch and len(scores) > 1:
            meanings = meanings_of(batch)[counted]
            alike = meanings[:, None].eq(meanings).fill_diagonal_(False)
            scores = scores.masked_fill(alike, torch.finfo(scores.dtype).min)
        return (scores.logsumexp(dim=-1) - scores.diagonal()).sum()


def meanings_of(batch: dict) -> "torch.Tensor":
    """(B,): a number for each pair of a PairCollator's batch, equal for pairs that equal texts connect."""
    ids = batch["input_ids"]
    ids = ids.masked_fill(batch.get("attention_mask", torch.ones_like(ids)).eq(0), -1)
    pairs = ids.unique(dim=0, return_inverse=True)[1].view(-1, 2)  # numbers of equal texts are equal
    meanings = torch.arange(2 * len(pairs), device=ids.device)  # of each text: the least number connected with it
    while True:
        least = meanings[pairs].amin(dim=-1)
        wider = meanings.scatter_reduce(0, pairs.flatten(), least.repeat_interleave(2), "amin")
        if wider.equal(meanings):
            return least
        meanings = wider
