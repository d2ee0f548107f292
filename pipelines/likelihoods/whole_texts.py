"""How likely whole texts are: each token predicted from those before it, or, hidden, from all others.

R rows of a batch (each a text with one hidden token), T tokens, V vocabulary.
"""

import inspect
from collections.abc import Iterator

import torch
from anyformer.modeling.families import FAMILIES

from ..data.batch_keys import PREFIX_MASK, pad, real_places
from ..errors import UserError
from ..words import watched
from .likelihood import Pair, encode_pairs, log_likelihoods, most_tokens
from .token_log_probs import token_log_probs

AUTO, WITHIN_WORD = "auto", "pseudo_log_likelihood_l2r"
# Most tokens in a batch of rows with a hidden token; on a CPU as many as its caches hold the hidden states of
# (measured: 2.2 seconds for what takes 2.8 in batches of 16,384).
TOKENS, TOKENS_OF_CPU = 1 << 14, 1 << 11
LOGITS = 1 << 24  # most logits in a batch of next-token predictions


def text_scores(model, tokenizer, texts: list[str], score: str = AUTO, add_bos: bool = True) -> list[float]:
    """The log-probability of each text, in nats; equal texts have equal scores.

    Args:
        model: with a head for tokens, in evaluation mode.
        score: log_probability, or pseudo_log_likelihood or pseudo_log_likelihood_l2r as `pseudo_log_likelihoods`
            defines them; auto: log_probability for models that write text, else pseudo_log_likelihood.
        add_bos: put a beginning-of-text token (else the end-of-text token) before a decoder's text, where the tokenizer
            puts none, as lm-eval does; otherwise the first token is not counted.

    Raises:
        UserError: the model or the tokenizer cannot compute this score.
    """
    score = check_score(model, tokenizer, score)
    if score != "log_probability":
        return pseudo_log_likelihoods(model, tokenizer, texts, score == WITHIN_WORD, add_bos)
    pairs = _whole(model, tokenizer, texts, add_bos)
    longest = max((len(context) + len(text) for context, text in pairs), default=1)
    rows = max(1, LOGITS // (model.config.get_text_config().vocab_size * longest))
    return log_likelihoods(model, pairs, batch_size=rows, most=most_tokens(model.config))


def check_texts(model, tokenizer, texts: list[str], score: str = AUTO, add_bos: bool = True) -> None:
    """Raise UserError where text_scores would, without running the model."""
    if check_score(model, tokenizer, score) == "log_probability":
        _whole(model, tokenizer, texts, add_bos)
    else:
        _framed(model, tokenizer, texts, add_bos)


def check_score(model, tokenizer, score: str) -> str:
    """The score that `auto` stands for; raises UserError for a score that the model cannot compute."""
    writes = model.can_generate()
    if score == AUTO:
        score = "log_probability" if writes else "pseudo_log_likelihood"
    if score == "log_probability" and not writes:
        raise UserError(f"score={score} is of models that write text; {type(model).__name__} fills in masks alone")
    family = FAMILIES.get(model.config.model_type)
    is_ours = family is not None and "AutoModelForMaskedLM" in family.heads  # a decoder, which may fill in masks
    learned = not writes or (is_ours and model.config.mask_token_id is not None)
    fills = tokenizer.mask_token_id is not None and learned
    if score != "log_probability" and not fills:
        raise UserError(f"score={score} hides tokens, and {type(model).__name__} has not learned to fill in masks")
    return score


def _whole(model, tokenizer, texts: list[str], add_bos: bool) -> list[Pair]:
    """(tokens read before the text, tokens of the text) of each; an encoder-decoder answers an empty text with it.

    Raises UserError for a text of one token with nothing before it, which would be certain, and for a text longer than
    a decoder can read.
    """
    answers, first, most = bool(model.config.is_encoder_decoder), _first_token(tokenizer), most_tokens(model.config)
    begins = (add_bos or answers) and first is not None
    pairs = encode_pairs(tokenizer, [("", text) for text in texts], apart=answers)
    before = [first] if begins else []
    for text, (context, ids) in zip(texts, pairs):
        if not (context or begins) and len(ids) < 2:
            raise UserError(
                f"{text[:60]!r} is one token, and none before it predicts it; set add_bos=true, or remove it"
            )
        read = len(context or before) + len(ids) - 1  # no token is predicted from the last one
        if not answers and read > most:
            raise _too_long(text, read, most)
    return [(context or before, ids) if context or begins else (ids[:1], ids[1:]) for context, ids in pairs]


def _first_token(tokenizer) -> int | None:
    """The token before a text that needs one: beginning-of-text, else end-of-text, as in lm-eval."""
    return tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id


# ------------------------------------------------------------------------------------------------ one token hidden


def pseudo_log_likelihoods(
    model, tokenizer, texts: list[str], within_word: bool = False, add_bos: bool = True
) -> list[float]:
    """The sum of log-probabilities of a text's tokens, each hidden by itself (Salazar et al. 2020, eq. 1).

    within_word: the later tokens of its word are hidden, too (Kauf and Ivanova 2023, PLL-word-l2r). A decoder predicts
    a hidden token at the position before it, so that a text's first token is counted only if another one precedes it.
    """
    by_decoder, framed = model.can_generate(), _framed(model, tokenizer, texts, add_bos)
    number_of = {text: number for number, text in enumerate(dict.fromkeys(framed))}  # equal tokens have equal scores
    encoded, sums = list(number_of), torch.zeros(len(number_of), dtype=torch.float64)
    most = min(TOKENS, TOKENS_OF_CPU) if model.device.type == "cpu" else TOKENS
    for numbers in watched(list(_batches([len(ids) for ids, _, _ in encoded], most)), "asking, batch"):
        ids, words = (pad([encoded[number][part] for number in numbers], 0) for part in (0, 1))
        hideable = pad([encoded[number][2] for number in numbers], 0).bool()
        hideable[:, 0] &= not by_decoder
        mask = real_places([len(encoded[number][0]) for number in numbers], ids.shape[1]).long()
        rows, places = hideable.nonzero(as_tuple=True)
        for some in torch.arange(len(rows)).split(max(1, most // ids.shape[1])):
            row, at = rows[some], places[some]
            columns = torch.arange(ids.shape[1])
            hidden = columns == at[:, None]
            if within_word:
                hidden = (columns >= at[:, None]) & (words[row] == words[row, at][:, None]) & hideable[row]
            read = ids[row].masked_fill(hidden, tokenizer.mask_token_id)
            values = _hidden_log_probs(model, read, mask[row], at - int(by_decoder), ids[row, at], by_decoder)
            sums.index_add_(0, torch.tensor(numbers)[row], values.cpu())
    scores = sums.tolist()
    return [scores[number_of[text]] for text in framed]


# (tokens, number of the word of each, whether it may be hidden)
Framed = tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...]]


def _framed(model, tokenizer, texts: list[str], add_bos: bool) -> list[Framed]:
    """The tokens of each text and those around it; raises UserError for a text longer than the model can read."""
    encoded, framed, most = tokenizer(texts, return_special_tokens_mask=True), [], most_tokens(model.config)
    first = _first_token(tokenizer) if add_bos and model.can_generate() else None
    for number, (ids, special) in enumerate(zip(encoded["input_ids"], encoded["special_tokens_mask"])):
        words = encoded.word_ids(number) if tokenizer.is_fast else range(len(ids))
        words, hideable = [-1 if word is None else word for word in words], [not each for each in special]
        if first is not None and not special[0]:
            ids, words, hideable = [first, *ids], [-1, *words], [False, *hideable]
        if len(ids) > most:
            raise _too_long(texts[number], len(ids), most)
        framed.append((tuple(ids), tuple(words), tuple(hideable)))
    return framed


def _too_long(text: str, tokens: int, most: int) -> UserError:
    return UserError(f"{text[:60]!r} has {tokens} tokens, and the model reads {most}; shorten it")


def _batches(lengths: list[int], most: int) -> Iterator[list[int]]:
    """Numbers of texts of similar length; their rows, one per token, hold at most `most` tokens, or are of one text."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    while order:
        number = max(1, most // max(1, lengths[order[0]]) ** 2)
        yield order[:number]
        order = order[number:]


def _hidden_log_probs(model, ids_RT, mask_RT, at_R, tokens_R, by_decoder: bool) -> torch.Tensor:
    """The log-probability of one token of each row, (R,); the head computes the logits of no others.

    Nor does the last feed-forward layer of our own encoders (kept_tokens).
    """
    rows = torch.arange(len(at_R))
    read = {"input_ids": ids_RT}
    if by_decoder:
        read |= {PREFIX_MASK: mask_RT, "use_cache": False}
    elif not mask_RT.all():
        read["attention_mask"] = mask_RT
    if "kept_tokens" in inspect.signature(model.forward).parameters:
        read["kept_tokens"] = rows * ids_RT.shape[1] + at_R
        return token_log_probs(model, read, tokens_R, (torch.zeros_like(rows), rows))
    places = rows.to(model.device), at_R.to(model.device)
    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda module, args: (args[0][places][:, None], *args[1:]))
    try:
        return token_log_probs(model, read, tokens_R, (rows, at_R))
    finally:
        hook.remove()
