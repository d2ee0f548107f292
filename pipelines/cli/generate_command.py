"""`anyformer generate`: a text continued by a saved model."""

from os.path import expanduser

from ..errors import UserError, refuse_file
from .output import quoted, say_loading, say_next
from .parser import add_backends, at_least


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Continue a text with a model: the folder of a run, any saved model, or a repository on the Hub.",
        epilog="examples:\n"
        '  anyformer generate runs/quickstart "def "\n'
        '  anyformer generate runs/quickstart "import " --greedy --max-new-tokens 20\n'
        '  anyformer generate gpt2 "The weather" --top-p 0.9 --seed 7',
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a run or a model, or a Hub repository")
    parser.add_argument("prompt", metavar="PROMPT", help="text to continue")
    parser.add_argument("--chat", action="store_true", help="the prompt is a question, put by the chat template")
    add_conversation(parser)
    mode = add_sampling(parser, 64)
    mode.add_argument("--do-sample", action="store_true", help="draw tokens at random; the default without --num-beams")
    parser.add_argument("--num-beams", type=at_least(1), default=1, help="beams of the search (default 1)")
    add_backends(parser)


def add_conversation(parser) -> None:
    """Add what a chat template writes before a question."""
    parser.add_argument("--system", metavar="TEXT", help="the system message before the question")
    parser.add_argument("--tools", type=expanduser, metavar="FILE", help="JSON: a list of tools that may be called")


def add_sampling(parser, tokens: int):
    """Add the options for choosing tokens and their number; return the group with --greedy."""
    parser.add_argument("--max-new-tokens", type=at_least(1), default=tokens, help=f"tokens to add (default {tokens})")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--greedy", action="store_true", help="always the likeliest token")
    parser.add_argument("--temperature", type=float, help="below 1: likelier tokens more often (default 0.8)")
    parser.add_argument("--top-k", type=at_least(1), help="draw from the k likeliest tokens only")
    parser.add_argument("--top-p", type=float, help="draw from the likeliest tokens that make up this probability")
    parser.add_argument("--seed", type=at_least(0), default=42, help="the same seed gives the same text (default 42)")
    return group


def run(args) -> None:
    from ..generation import generate_text
    from ..serving.chat import read_tools, system_message

    refuse_file("PROMPT", args.prompt, f"anyformer predict {args.model} {args.prompt} answers the texts in it")
    # None: the default of the kind of model. A decoder samples, an encoder-decoder searches.
    do_sample = True if args.do_sample else False if args.greedy or args.num_beams > 1 else None
    if not args.chat and (args.system is not None or args.tools is not None):
        raise UserError("--system and --tools stand before a question; add --chat")
    conversation = {"history": system_message(args.system), "tools": read_tools(args.tools)}
    say_loading()
    shown: list[str] = []
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "num_beams", "seed", "chat", "trust_remote_code")
    options = {name: getattr(args, name) for name in (*names, "attn_implementation", "experts_implementation")}
    on_text = lambda piece: shown.append(piece) or print(piece, end="", flush=True)  # noqa: E731
    text = generate_text(args.model, args.prompt, do_sample=do_sample, on_text=on_text, **conversation, **options)
    print(text.removeprefix("".join(shown)))
    say_next(f'anyformer inspect {quoted(args.model)} "..."    # what it attends to')
