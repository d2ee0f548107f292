"""`anyformer convert`: a saved model turned from transformers' own classes into ours, or back."""

from ..errors import UserError
from .output import quoted, say_loading, say_next


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Convert a saved model, with tokenizer and generation config, between transformers' own classes\n"
        "and anyformer's. Nothing is written unless both compute the same logits. With --to encoder, decoder or\n"
        "seq2seq it becomes a model of that family with the same weights, to be trained on.",
        epilog="examples:\n"
        "  anyformer convert gpt2 models/gpt2\n"
        "  anyformer convert model.gguf models/native\n"
        "  anyformer convert models/gpt2 models/gpt2-native --to native\n"
        "  anyformer convert gpt2 models/gpt2-encoder --to encoder",
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a run or a model, a Hub repository, or a GGUF file")
    parser.add_argument("destination", metavar="DST", help="folder to write; it must not exist yet, or be empty")
    parser.add_argument(
        "--to",
        choices=("native", "anyformer", "encoder", "decoder", "seq2seq"),
        help="what to make (default: the other kind)",
    )


def run(args) -> None:
    from ..interop.convert_checkpoint import convert
    from ..storage.atomic import destination_folder

    if args.destination.endswith(".gguf"):
        raise UserError(f"DST={args.destination} is to be a folder; anyformer export {args.model} --to gguf makes GGUF")
    destination_folder(args.destination)
    say_loading()
    print(convert(args.model, args.destination, to=args.to, trust_remote_code=args.trust_remote_code))
    changed = args.to in ("encoder", "decoder", "seq2seq")
    say_next(
        f"anyformer train RECIPE model.name_or_path={quoted(args.destination)}"
        if changed
        else f"anyformer publish {quoted(args.destination)} your-name/your-model"
    )
