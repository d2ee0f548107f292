"""Text generation with any saved model: ours or transformers' own, from a folder or the Hub."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .adapters import base_of, check_base_found, is_adapter, load_config, load_model
from .backends import AUTO, backend_arguments, check_attention, check_experts, check_got, explain, is_half
from .chat_templates import ChatTemplate
from .errors import CANNOT_LOAD, UserError, did_you_mean, first_line, loading_reason
from .gguf_files import native_folder
from .manifest import check_readable, check_saved_files
from .open_tokenizer import open_tokenizer
from .positions import learns_positions, most_positions

DEFAULT_TEMPERATURE = 0.8
RUNS = "runs"  # the folder where the shipped recipes put their runs
# owner/name or name, as the Hub allows them.
HUB_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")


def locate_model(name_or_path: str, what: str = "MODEL") -> str:
    """Return the argument of `from_pretrained`: a model's or adapter's folder, or the name of a Hub repository.

    what: the argument or setting that names it, for errors.

    Raises:
        UserError: no such folder, a folder without a model, or a file that is not the one the model was saved with.
    """
    name_or_path = native_folder(name_or_path)
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        if _holds_model(folder):
            check_saved_files(folder, what)
            if is_adapter(folder):
                check_base_found(folder)
                check_readable(base_of(folder))
            return str(folder)
        checkpoints = [path for path in folder.glob("checkpoint-*") if _holds_model(path)]
        if checkpoints:
            newest = max(checkpoints, key=lambda path: path.stat().st_mtime)
            raise UserError(f"{what}={name_or_path}: the run there is not finished; its newest checkpoint is {newest}")
        raise UserError(f"{what}={name_or_path}: no model in this folder (it has no config.json)")
    if folder.exists():
        raise UserError(f"{what}={name_or_path} is a file; give the folder of a model")
    if not HUB_NAME.fullmatch(name_or_path):
        raise UserError(f"{what}={name_or_path}: no such folder, and not a name the Hub could have (owner/name)")
    check_runs(name_or_path, folder, what)
    return name_or_path


def _holds_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or is_adapter(folder)


def check_runs(name_or_path: str, folder: Path, what: str) -> None:
    """Raise UserError for a missing folder among runs, which is no repository on the Hub: runs/mine."""
    place = folder.parent
    runs = [path.name for path in place.iterdir() if (path / "run.json").is_file()] if place.is_dir() else []
    if place != Path(".") and runs:
        raise UserError(f"{what}={name_or_path}: no such folder{did_you_mean(folder.name, runs, f'{place}/')}")
    if len(folder.parts) > 1 and folder.parts[0] == RUNS:
        raise UserError(f"{what}={name_or_path}: no such folder; anyformer train quickstart makes {RUNS}/quickstart")


def check_sampling(
    do_sample: bool, temperature: float | None = None, top_k: int | None = None, top_p: float | None = None
) -> None:
    """Raise UserError for sampling settings out of range, or set where nothing is sampled."""
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for name, value in settings.items():
        if value is not None and not do_sample:
            raise UserError(f"{name}={value} has no effect without sampling; remove it, or add --do-sample")
    if temperature is not None and not 0 < temperature < float("inf"):
        raise UserError(f"temperature={temperature} must be above 0; for the likeliest tokens use --greedy")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"top_p={top_p} must be above 0 and at most 1")


def generate_text(
    name_or_path: str,
    prompt: str,
    *,
    trust_remote_code: bool = False,
    attn_implementation: str = AUTO,
    experts_implementation: str = AUTO,
    **how: Any,
) -> str:
    """Load a model, on an accelerator if there is one, and call `continue_text` with it.

    Args:
        name_or_path: folder with a saved model and tokenizer, folder of a finished run, or Hub repository.
        attn_implementation, experts_implementation: backends, as a recipe's model section names them.
        how: as for continue_text.

    Raises:
        UserError: no model there, one that does not generate text, or as continue_text.
    """
    sampling = {name: how.get(name) for name in ("temperature", "top_k", "top_p")}
    check_sampling(how.get("do_sample") is not False, **sampling)
    writer = load_writer(name_or_path, trust_remote_code, attn_implementation, experts_implementation)
    return continue_text(*writer, prompt, **how)


def load_writer(name_or_path: str, trust_remote_code: bool = False, attention: str = AUTO, experts: str = AUTO):
    """Load (model, tokenizer) that write text, on an accelerator if there is one; errors as for generate_text."""
    check_attention(attention, "--attn-implementation")
    check_experts(experts, "--experts-implementation")
    source, chosen = locate_model(name_or_path), {}
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    try:
        config = load_config(source, trust_remote_code=trust_remote_code)
        check_writes_text(source, config)
        tokenizer = open_tokenizer(source, trust_remote_code)
        auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        chosen = backend_arguments(attention, experts, config, is_half(config.dtype))
        model = load_model(auto_class, source, dtype="auto", trust_remote_code=trust_remote_code, **chosen)
        check_got(model, chosen, "--")
    except CANNOT_LOAD as error:
        explain(error, chosen, "--")
        hint = "" if Path(source).is_dir() else "; name the folder of a finished run, such as runs/quickstart"
        raise UserError(f"MODEL={source} cannot be loaded to write text: {loading_reason(error)}{hint}") from error
    return model.to(device).eval(), tokenizer


def continue_text(
    model,
    tokenizer,
    prompt: str,
    *,
    max_new_tokens: int = 64,
    do_sample: bool | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    num_beams: int = 1,
    seed: int = 42,
    on_text: Callable[[str], None] | None = None,
    chat: bool = False,
    history: Sequence[dict[str, Any]] = (),
    tools: Sequence[dict[str, Any]] = (),
) -> str:
    """Return `prompt` and its continuation by at most `max_new_tokens` tokens; of an encoder-decoder only the answer.

    The continuation is shorter where the model ends the text, or where its learned positions end.

    Args:
        model: in evaluation mode.
        do_sample: draw tokens (temperature 0.8 unless given); False: greedy, or beam search with `num_beams` > 1.
            None: a decoder draws, an encoder-decoder searches, with one beam as its generation config says.
        seed: for drawing tokens; the same seed gives the same text on the same machine.
        on_text: called with each piece of the text as soon as it is known, where tokens are chosen one by one. The
            pieces are the beginning of what is returned.
        chat: the prompt is a question, put by the tokenizer's chat template; only the answer is returned.
        history: messages {role, content} before the question, the first of which may be a system message.
        tools: what the model may call in its answer, as chat templates take them: {type, function: {name, ...}}.

    Raises:
        UserError: a prompt that is empty or too long for the model, or tools that its chat template does not write.
    """
    import torch

    inputs = _inputs_of(model, tokenizer, prompt, chat, history, tools)
    length = inputs["input_ids"].shape[1]
    answers = bool(model.config.is_encoder_decoder)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    options = _options(tokenizer, answers, do_sample, num_beams, sampling)
    options["max_new_tokens"] = min(max_new_tokens, free_positions(model.config, length))
    beams = options.get("num_beams", model.generation_config.num_beams) or 1
    # Stream only if the prompt's tokens decode to the prompt: some tokenizers change case or spaces.
    can_stream = chat or answers or tokenizer.decode(inputs["input_ids"][0], skip_special_tokens=True) == prompt
    if on_text is not None and beams == 1 and can_stream:
        options["streamer"] = _streamer(tokenizer, on_text, skip_prompt=chat and not answers)
    torch.manual_seed(seed)
    with torch.inference_mode():
        output = model.generate(**inputs, **options)[0].tolist()
    if chat and not answers:
        return tokenizer.decode(output[length:], skip_special_tokens=True)
    # Decoded in one piece: a character's bytes may be split between prompt and continuation.
    text = tokenizer.decode(output, skip_special_tokens=True)
    if answers or text.startswith(prompt):
        return text
    if text.startswith(read := tokenizer.decode(output[:length], skip_special_tokens=True)):  # case, spaces changed
        return prompt + text[len(read) :]
    return prompt + tokenizer.decode(output[length:], skip_special_tokens=True)


def _options(tokenizer, answers: bool, do_sample: bool | None, num_beams: int, drawn: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `generate` for choosing tokens. answers: whether the model is an encoder-decoder."""
    is_given = do_sample is not None or num_beams > 1  # else an encoder-decoder's generation config decides
    if do_sample is None:
        do_sample = not answers or any(value is not None for value in drawn.values())
    options = {}
    if is_given or do_sample or not answers:
        options |= {"do_sample": do_sample, "num_beams": num_beams}
    if do_sample:
        options |= {"temperature": DEFAULT_TEMPERATURE}
        options |= {name: value for name, value in drawn.items() if value is not None}
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return options if padding is None else options | {"pad_token_id": padding}


def ids_of_question(tokenizer, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
    """The token ids of a conversation up to the answer to be written, with the tools that may be called in it.

    Raises UserError for a tokenizer without a chat template, or one that cannot write the conversation or its tools.
    """
    name, template, variables = tokenizer.name_or_path, ChatTemplate(tokenizer), {"tools": [*tools]} if tools else {}
    if not tokenizer.chat_template:
        raise UserError(f"MODEL={name} has no chat template, which --chat, --system and --tools need; leave them out")
    if dropped := template.dropped(messages, variables):
        raise UserError(
            f"--chat: the chat template of MODEL={name} does not write {dropped}, so that the model would not read "
            f"them; leave them out, or mend its chat_template"
        )
    try:
        ids = template.write(messages, add_generation_prompt=True, return_dict=True, **variables)["input_ids"]
    except Exception as error:  # a template is a program, and can fail in any way
        raise UserError(
            f"--chat: the chat template of MODEL={name} cannot put a question ({first_line(error)}); mend "
            f"its chat_template, or leave out --chat"
        ) from error
    if not ids:
        raise UserError(f"--chat: the chat template of MODEL={name} leaves nothing of the question")
    return ids


def _inputs_of(model, tokenizer, prompt: str, chat: bool, history: Sequence[dict], tools: Sequence[dict]) -> dict:
    """The model's inputs for a prompt, (1, T) each. Raises UserError if they have no tokens."""
    import torch

    if chat:
        ids = ids_of_question(tokenizer, [*history, {"role": "user", "content": prompt}], tools)
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    elif model.config.is_encoder_decoder:
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    else:
        ids = ids_to_continue(tokenizer, [prompt])[0]
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if inputs["input_ids"].shape[1] == 0:
        if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
            raise UserError(f"PROMPT={prompt!r} is empty, and the model's tokenizer has no token to begin a text with")
        # eos stands between documents, so a document may begin after it.
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        inputs = {"input_ids": torch.tensor([[start]]), "attention_mask": torch.ones(1, 1, dtype=torch.long)}
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}


def ids_to_continue(tokenizer, texts: list[str]) -> list[list[int]]:
    """The token ids of texts, without those that the tokenizer adds after a text, which would end it."""
    if not texts:
        return []
    whole, plain = tokenizer(texts)["input_ids"], tokenizer(texts, add_special_tokens=False)["input_ids"]
    continued = []
    for ids, own in zip(whole, plain):
        ends = [end for end in range(len(own), len(ids) + 1) if own and ids[end - len(own) : end] == own]
        continued.append(ids[: ends[0]] if ends else ids)
    return continued


# The ends of names of model classes that write no text.
SILENT = ("ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")
SILENT += ("ForQuestionAnswering", "ForImageClassification", "ForMaskedImageModeling")
SILENT += ("EncoderModel", "BertModel", "ViTModel")


def check_writes_text(source: str, config) -> None:
    """Raise UserError for a model that writes no text: an encoder, a classifier, a model of images."""
    if (Path(source) / "preprocessor_config.json").is_file() and not (Path(source) / "tokenizer_config.json").is_file():
        raise UserError(f"MODEL={source} has an image processor and no tokenizer: it writes no text")
    name = next(iter(config.architectures or []), "")
    if name.endswith(SILENT):
        raise UserError(f"MODEL={source} is of {name}, which writes no text; anyformer predict {source} FILE answers")


def _streamer(tokenizer, on_text: Callable[[str], None], skip_prompt: bool):
    """A streamer for `generate`, which passes whole words to `on_text`."""
    from transformers import TextStreamer

    class Pieces(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False):
            if text:
                on_text(text)

    return Pieces(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)


def free_positions(config, length: int) -> float:
    """How many tokens fit after a prompt of `length` tokens; infinity where positions are not learned vectors.

    An encoder-decoder's prompt takes none of the decoder's positions; the token that begins an answer takes the first.
    """
    positions = most_positions(config)
    if positions is None or not learns_positions(config):
        return float("inf")
    if length > positions or (length == positions and not config.is_encoder_decoder):
        raise UserError(f"PROMPT has {length} tokens, but the model has {positions} positions; shorten it")
    return positions - 1 if config.is_encoder_decoder else positions - length
