"""`anyformer export`: a saved model as one file for other engines."""

from pathlib import Path

from ..errors import UserError
from .output import say_loading


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Export a saved model to a file that runs without its Python code: for ONNX Runtime, as a program\n"
        "of torch.export, or for llama.cpp and Ollama (gguf; adapters are merged on the way). Nothing is written\n"
        "unless the file computes what the model does.",
        epilog="examples:\n"
        "  anyformer export runs/quickstart --to onnx\n"
        "  anyformer export runs/imdb_classify --to torch_export --out exported/imdb\n"
        "  anyformer export runs/instructions_1k --to gguf --type q8_0",
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a run or a model, or a Hub repository")
    parser.add_argument("--to", required=True, metavar="{onnx,torch_export,gguf}", help="the format")
    parser.add_argument(
        "--out", metavar="OUT", help="new folder to write (default: MODEL-onnx, ...); of gguf a file (MODEL-TYPE.gguf)"
    )
    parser.add_argument(
        "--type",
        metavar="TYPE",
        help="of gguf: f32, f16, bf16 or q8_0 (default: f16); smaller ones, such as q4_k_m, by llama-quantize",
    )


def run(args) -> None:
    from ..serving.export_formats import check_format
    from ..storage.atomic import destination_folder

    check_format(args.to)
    source = Path(args.model).expanduser()
    stem = source if source.is_dir() else source.name
    trust = {"trust_remote_code": args.trust_remote_code}
    if args.to == "gguf":
        from ..interop.gguf.gguf_types import check_gguf

        kind = args.type or "f16"
        out = check_gguf(kind, args.out or f"{stem}-{kind}.gguf")
        say_loading()
        from ..interop.gguf.gguf_file import export_gguf

        print(export_gguf(args.model, kind, out, **trust))
        return
    if args.type is not None:
        raise UserError(f"--type={args.type} belongs to --to gguf, not to --to {args.to}; leave it out")
    out = destination_folder(args.out or f"{stem}-{args.to}", "--out")
    say_loading()
    from ..serving.export_model import export

    print(export(args.model, args.to, out, **trust))
