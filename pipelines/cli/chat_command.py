"""`anyformer chat`: a conversation with a saved model in the terminal."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from .generate_command import add_conversation, add_sampling
from .output import say_loading
from .parser import add_backends


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Talk with a model in the terminal: each line is put by the model's chat template, after all that\n"
        "was said before, and the answer appears as it is written. /reset forgets, /exit or Ctrl-D ends, Ctrl-C stops\n"
        "an answer. A model without a chat template continues each line.",
        epilog="examples:\n"
        "  anyformer chat runs/instructions_1k\n"
        '  anyformer chat runs/instructions_1k --system "Answer in one sentence." --tools tools.json\n'
        '  echo "What is a tokenizer?" | anyformer chat runs/instructions_1k --greedy',
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a run or a model, or a Hub repository")
    add_conversation(parser)
    add_sampling(parser, 256)
    add_backends(parser)


def run(args) -> None:
    from ..generation import check_sampling, ids_of_question, load_writer
    from ..serving.chat import converse, read_tools, system_message

    sampling = {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p}
    check_sampling(not args.greedy, **sampling)
    begin, tools = system_message(args.system), read_tools(args.tools)
    say_loading()
    backends = args.attn_implementation, args.experts_implementation
    options = sampling | {"max_new_tokens": args.max_new_tokens, "do_sample": False if args.greedy else None}
    show = partial(print, end="", flush=True)
    model, tokenizer = load_writer(args.model, args.trust_remote_code, *backends)
    if begin or tools:  # what its chat template cannot write is said before the first question
        ids_of_question(tokenizer, [*begin, {"role": "user", "content": "?"}], tools)
    converse(model, tokenizer, typed(), show, seed=args.seed, begin=begin, tools=tools, **options)


def typed() -> Iterator[str]:
    """The lines of a person or a pipe, until Ctrl-D, Ctrl-C or the pipe's end."""
    with suppress(ImportError):
        import readline  # noqa: F401 - imported, it gives `input` its arrow keys
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "")
        except (EOFError, KeyboardInterrupt):
            print()
            return
