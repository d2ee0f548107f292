"""`anyformer export`: a saved model as one file for other engines."""

from pathlib import Path

from .output import say_loading


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Export a saved model, in fp32, to a file that runs without its Python code: for ONNX Runtime,\n"
        "or as a program of torch.export. It takes any number of rows and any length, and computes whole texts,\n"
        "without a cache. Nothing is written unless the file computes what the model does, on two shapes.",
        epilog="examples:\n"
        "  anyformer export runs/quickstart --to onnx\n"
        "  anyformer export runs/imdb_classify --to torch_export --out exported/imdb",
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a run or a model, or a Hub repository")
    parser.add_argument(
        "--to", required=True, metavar="{onnx,torch_export}", help="the format; gguf: says how llama.cpp makes one"
    )
    parser.add_argument("--out", metavar="FOLDER", help="new folder to write (default: MODEL-onnx, MODEL-torch_export)")


def run(args) -> None:
    from ..serving.export_formats import check_format
    from ..storage.atomic import destination_folder

    check_format(args.to, args.model)
    source = Path(args.model).expanduser()
    out = destination_folder(args.out or f"{source if source.is_dir() else source.name}-{args.to}", "--out")
    say_loading()
    from ..serving.export_model import export

    print(export(args.model, args.to, out, trust_remote_code=args.trust_remote_code))
