"""`anyformer merge`: an adapter added to its base model."""

from .output import quoted, say_loading, say_next


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Add an adapter (of training.lora, or of PEFT) to the weights of its base model, and save the sum.",
        epilog="examples:\n  anyformer merge runs/my_adapter models/my_model",
    )
    parser.add_argument("adapter", metavar="ADAPTER", help="folder of an adapter, such as that of a run with LoRA")
    parser.add_argument("destination", metavar="DST", help="folder to write; it must not exist yet, or be empty")


def run(args) -> None:
    from ..interop.merge_adapter import check_adapter, merge

    check_adapter(args.adapter, args.destination)
    say_loading()
    print(merge(args.adapter, args.destination, trust_remote_code=args.trust_remote_code))
    say_next(f"anyformer evaluate {quoted(args.destination)} RECIPE")
