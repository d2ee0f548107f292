"""`anyformer report`: the page of a run, or of several compared."""

from os.path import expanduser
from pathlib import Path

from ..errors import need_package


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Write one HTML page of what lies in a run's folder: curves, metrics with their intervals,\n"
        "samples, recipe, data, environment. Of several runs: their curves on common axes, the settings\n"
        "that differ, their metrics and, of several seeds, whether a difference is sure. A page opens without a\n"
        "network, in any browser.",
        epilog="examples:\n"
        "  anyformer report runs/quickstart\n"
        "  anyformer report runs/stdlib_moe runs/stdlib_moe_dense --out moe.html\n"
        "  anyformer report runs/quickstart --figures figures",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run (its output_dir)")
    of_page = "the page to write (default: RUN/report.html; of several runs comparison.html)"
    of_figures = "draw the curves there, as PNG and SVG (needs matplotlib)"
    parser.add_argument("--out", type=expanduser, help=of_page)
    parser.add_argument("--figures", type=expanduser, metavar="FOLDER", help=of_figures)


def run(args) -> None:
    if args.figures is not None:
        need_package("--figures", "matplotlib", "plots")
    from ..evaluation.request import check_writable
    from ..reporting.comparison import compare_runs, print_differences, read_runs, variants_of
    from ..reporting.report import REPORT, write_report
    from ..reporting.run_log import read_run

    folders = [Path(run) for run in args.runs]
    logs = read_runs(folders) if len(folders) > 1 else [read_run(folders[0])]
    out = Path(args.out) if args.out else Path("comparison.html") if len(folders) > 1 else folders[0] / REPORT
    check_writable(out, "--out")
    if len(folders) > 1:
        print_differences(compare_runs(folders, out))
    else:
        write_report(folders[0], out)
        if not logs[0].is_finished:
            print(f"{folders[0]}: {logs[0].progress}")
    print(f"written to {out} ({out.stat().st_size / 1e6:.2f} MB); open it in a browser")
    if args.figures is not None:
        from ..reporting.figures import draw_figures

        files = draw_figures(variants_of(logs), Path(args.figures))
        print(f"{len(files)} figures are in {args.figures}")
