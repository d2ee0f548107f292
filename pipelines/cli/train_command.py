"""`anyformer train`: a recipe trained in this process, or by `--launch` in several."""

import argparse
import time
from pathlib import Path

from ..errors import UserError, did_you_mean
from .output import quoted, say_loading, say_next
from .parser import add_recipe, at_least, recipe_of, seeds_of

BEGAN = time.monotonic()  # before torch is imported, which takes seconds
SEEDS_HELP = "so many runs (or of seeds 1,2,3), each in output_dir/seed-N; then mean and deviation of every metric"
LAUNCH_HELP = (
    "train in several processes of this machine: ddp, zero1, zero2, zero3, zero2_offload, zero3_offload, fsdp2, or "
    "mesh: as training.parallelism says"
)
NPROC_HELP = "how many (default: as many as training.parallelism takes, or one per NVIDIA GPU)"


class SectionHelp(argparse.Action):
    """`--help`: the parser's help; `--help training`: the settings of a section; `--help all`: every setting."""

    def __call__(self, parser, namespace, values, option_string=None):
        from ..recipes.recipe_files import shipped
        from .settings_help import by_section, settings_help

        explained = settings_help(values)
        if explained is None and values is not None and values not in shipped("recipes") and not Path(values).exists():
            raise UserError(f"--help {values}: no such section{did_you_mean(values, [*by_section(), 'all'])}")
        print(explained or parser.format_help(), end="")
        parser.exit()


def epilog() -> str:
    """Examples and the names of all settings; made only when help is shown, because it imports every objective."""
    from .settings_help import sections_help

    return (
        "examples:\n"
        "  anyformer train quickstart\n"
        "  anyformer train quickstart training.learning_rate=1e-3 training.output_dir=runs/faster\n"
        "  anyformer train my_recipe.yaml --dry-run\n"
        "  anyformer train story pretraining.training.max_steps=1000\n"
        "  anyformer train my_recipe.yaml --seeds 3\n"
        "  anyformer train gpt2_small --launch zero2 --nproc 8\n"
        "  torchrun --nproc_per_node 8 scripts/train.py gpt2_small\n"
        "  anyformer train --help training\n"
        f"\nsettings, explained by --help SECTION (or all):\n{sections_help()}"
    )


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Train the model a recipe describes, or the steps of a story. The same command again continues\n"
        "an interrupted run.",
        epilog=epilog,
        add_help=False,
    )
    parser.add_argument(
        *("-h", "--help"), action=SectionHelp, nargs="?", metavar="SECTION", help="this, or the settings of a section"
    )
    add_recipe(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything, up to one step and one validation batch; keep nothing"
    )
    parser.add_argument("--print-recipe", action="store_true", help="print the composed recipe as YAML and stop")
    parser.add_argument("--seeds", metavar="N", help=SEEDS_HELP)
    parser.add_argument(
        "--extend",
        action="store_true",
        help="go on from the end of the finished run, with a new warm-up and decay, or one more of its stages",
    )
    parser.add_argument("--launch", metavar="ENGINE", help=LAUNCH_HELP)
    parser.add_argument("--nproc", metavar="N", type=at_least(1), help=NPROC_HELP)
    # torch.distributed.launch and deepspeed pass it; the environment says the same.
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)


def run(args) -> int:
    from ..recipes.recipe_files import is_file_of

    if is_file_of(args.recipe, "stories", "steps"):
        return _train_story(args)
    recipe = recipe_of(args)
    if args.nproc is not None and args.launch is None:
        raise UserError(f"--nproc {args.nproc} goes with --launch, such as --launch ddp --nproc {args.nproc}")
    if args.launch is not None and not args.print_recipe:  # each process handles the other options itself
        return _launch(args, recipe)
    if args.extend:
        from ..training.checkpoints.resume import extend

        if args.seeds is not None:
            raise UserError("--extend is of one run; name its folder by training.output_dir, without --seeds")
        recipe = extend(recipe)
    if args.print_recipe:
        print(recipe.to_yaml(), end="")
        return 0
    seeds = None if args.seeds is None else seeds_of(args.seeds, recipe.training.seed)
    say_loading()
    if seeds is not None:
        from ..experiments.seeds import seed_study

        code = seed_study(recipe, seeds[:1] if args.dry_run else seeds).train(dry_run=args.dry_run)
        if not code and not args.dry_run:
            runs = f"{quoted(recipe.training.output_dir)}/seed-*"
            say_next(f"anyformer report {runs} OTHER/seed-*    # is the difference from another recipe sure?")
        return code
    from ..training.run import train

    return train(recipe, dry_run=args.dry_run, began=BEGAN)


def _launch(args, recipe) -> int:
    from ..training.engines.launch import launch

    return launch(args.argv, recipe, args.launch, args.nproc)


def _train_story(args) -> int:
    """A story's steps one after the other, in this process or in those of --launch."""
    from ..experiments.story import read_story

    if args.seeds or args.extend:
        raise UserError(
            f"--{'seeds' if args.seeds else 'extend'} is of one run, and {args.recipe} is a story; train the "
            f"recipe.yaml in the folder of its last step"
        )
    story = read_story(args.recipe, args.overrides, args.trust_remote_code)
    if args.launch is not None and not args.print_recipe:
        return _launch(args, story.members[-1].recipe)
    if args.print_recipe:
        print("\n".join(f"--- # {step.name}\n{step.recipe.to_yaml()}" for step in story.members), end="")
        return 0
    say_loading()
    return story.train(dry_run=args.dry_run)
