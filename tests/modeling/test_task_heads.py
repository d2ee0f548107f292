"""Laws of the task heads: native logits and losses, whatever the padding, and exact accumulation in Trainer."""

import pytest
import torch
from anyformer.modeling.attention_masks import CACHE
from anyformer.modeling.task_heads import last_token_index
from anyformer.modeling.task_losses import sequence_classification_loss
from family_variants import a_share
from native_models import randomise
from torch.nn.functional import cross_entropy, pad

import anyformer
from anyformer import to_native

TOLERANCE = 1e-6


def build(head, config):
    torch.manual_seed(0)
    return getattr(anyformer, f"AnyformerDecoderFor{head}")(config).eval()


def padded_batch(side):
    ids = torch.randint(3, 97, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    pads = slice(6, None) if side == "right" else slice(None, 3)
    ids[1, pads], mask[1, pads] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def labels_for(head, problem_type=None):
    g = torch.Generator().manual_seed(1)
    if head == "QuestionAnswering":
        # the last answer lies outside the row and does not count
        return {"start_positions": torch.tensor([1, 2, 9]), "end_positions": torch.tensor([3, 2, 12])}
    if head == "TokenClassification":
        labels = torch.randint(0, 4, (3, 9), generator=g)
        labels[:, 6:] = -100
        return {"labels": labels}
    if problem_type == "multi_label_classification":
        return {"labels": torch.randint(0, 2, (3, 4), generator=g).float()}
    if problem_type == "regression":
        return {"labels": torch.randn(3, 4, generator=g)}
    return {"labels": torch.tensor([0, 3, 1])}


CASES = [
    ("SequenceClassification", "single_label_classification"),
    ("SequenceClassification", "multi_label_classification"),
    ("SequenceClassification", "regression"),
    ("TokenClassification", None),
    ("QuestionAnswering", None),
]


@pytest.mark.parametrize(
    "head, problem_type, side", a_share([(*case, side) for case in CASES for side in ("right", "left")], 3)
)
def test_logits_and_loss_are_native(tiny_config, head, problem_type, side):
    num_labels = 2 if head == "QuestionAnswering" else 4
    model = build(head, tiny_config(num_labels=num_labels, problem_type=problem_type))
    inputs = padded_batch(side) | labels_for(head, problem_type)
    got, expected = model(**inputs), to_native(model)(**inputs)
    # Padding takes no part in our loss of an answer's place: it would depend on the rows beside it.
    skipped = {CACHE, "loss"} if head == "QuestionAnswering" else {CACHE}
    for name in expected.keys() & got.keys() - skipped:
        torch.testing.assert_close(got[name], expected[name], atol=TOLERANCE, rtol=0, msg=name)


@torch.no_grad()
@pytest.mark.parametrize("family, side", [("Decoder", "right"), ("Decoder", "left"), ("Encoder", "right")])
def test_the_loss_of_an_answer_does_not_depend_on_the_padding_of_its_batch(
    tiny_config, tiny_encoder_config, in_float64, family, side
):
    config = {"Decoder": tiny_config, "Encoder": tiny_encoder_config}[family](max_position_embeddings=300)
    model = randomise(getattr(anyformer, f"Anyformer{family}ForQuestionAnswering")(config))
    rows = [torch.randint(3, 97, (1, length)) for length in (60, 41, 33)]
    ends = torch.tensor([[3, 9], [40, 40], [60, 2]])  # the last answer begins behind its row, and does not count

    def batch(numbers, length):
        padded = {name: [] for name in ("input_ids", "attention_mask", "start_positions", "end_positions")}
        for number in numbers:
            missing, shift = length - rows[number].shape[1], (0, length - rows[number].shape[1])[side == "left"]
            fill = (0, missing) if side == "right" else (missing, 0)
            padded["input_ids"].append(pad(rows[number], fill))
            padded["attention_mask"].append(pad(torch.ones_like(rows[number]), fill))
            for name, place in zip(("start_positions", "end_positions"), ends[number]):
                padded[name].append(place[None] + shift)
        return {name: torch.cat(parts) for name, parts in padded.items()}

    whole = model(**batch([0, 1, 2], 60)).loss
    for length in (80, 128, 300):
        torch.testing.assert_close(model(**batch([0, 1, 2], length)).loss, whole)
    three = sum(model(**batch([n], length), num_items_in_batch=2.5).loss for n, length in enumerate((60, 80, 33)))
    torch.testing.assert_close(three, model(**batch([0, 1, 2], 60), num_items_in_batch=2.5).loss)
    unpadded = {"input_ids": rows[0], "start_positions": ends[:1, 0], "end_positions": ends[:1, 1]}
    out = model(**unpadded)
    native = (cross_entropy(out.start_logits, ends[:1, 0]) + cross_entropy(out.end_logits, ends[:1, 1])) / 2
    assert out.loss == native == model(**unpadded, attention_mask=torch.ones_like(rows[0])).loss


def test_the_last_token_is_found_by_mask_then_padding_token_then_length():
    ids = torch.tensor([[5, 0, 7, 0, 0], [0, 0, 5, 6, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]])
    at = {"length": 5, "device": ids.device}
    assert last_token_index(ids, mask, 0, **at).tolist() == [3, 4]  # the end token may be the padding token
    assert last_token_index(ids, None, 0, **at).tolist() == [2, 3]
    assert last_token_index(ids, None, None, **at).tolist() == 4
    assert last_token_index(None, None, 0, **at).tolist() == 4


def test_an_unknown_problem_type_is_one_sentence():
    with pytest.raises(ValueError, match="problem_type='ranking' is not known; known: single_label"):
        sequence_classification_loss(torch.zeros(3, 2), torch.tensor([0, 1, 0]), "ranking")
