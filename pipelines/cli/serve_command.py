"""`anyformer serve`: a saved model behind a server that speaks OpenAI's protocol."""

import os
import shlex

from .output import say_loading, say_next
from .parser import at_least


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Serve a model to OpenAI's clients: by vLLM where the command is installed, else by\n"
        "`transformers serve`. A model of ours is converted first, into MODEL-native, except for vLLM with\n"
        "--trust-remote-code. The command that starts the server is printed; Ctrl-C ends it.",
        epilog="examples:\n"
        "  anyformer serve runs/instructions_1k\n"
        "  anyformer serve runs/instructions_1k --port 8001 --host 0.0.0.0",
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a run or a model, or a Hub repository")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1: this machine)")
    parser.add_argument("--port", type=at_least(1), default=8000, help="port to listen at (default 8000)")


def run(args) -> int:
    from ..generation import locate_model

    locate_model(args.model)
    say_loading()
    from ..serving.server import server_command

    command = server_command(args.model, args.host, args.port, trust_remote_code=args.trust_remote_code)
    print(shlex.join(command), flush=True)
    say_next(f"openai.OpenAI(base_url='http://{args.host}:{args.port}/v1', api_key='-')    # once it listens")
    os.execv(command[0], command)
