"""The table of cases: what is timed against what, in which shapes, with which goals."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import attention
import commands
import decoding
import loading
import method
import overhead
import steps
from method import Goal


@dataclass(frozen=True)
class Shape:
    """Sizes of a case, as `build` takes them; goals: {(variant, peer): ratio}."""

    sizes: dict
    goals: dict[tuple[str, str], Goal] = field(default_factory=dict)

    def __str__(self) -> str:
        sizes = self.sizes.items()
        return " ".join(value if isinstance(value, str) else f"{name}={value}" for name, value in sizes)


@dataclass(frozen=True)
class Case:
    """What is timed against what.

    build(setting, **sizes) -> {variant: function}. The first variant is the reference; all must give equal results.
    tiny: sizes that replace a shape's for a test of the case. clock, warm, same: of `method.compare`.
    peers: {variant: those that it is compared with}; the reference where a variant is not named.
    memory: whether peak memory is measured, by torch's profiler; a goal is of the share that "ours" needs of a peer's.
    """

    name: str
    build: Callable
    shapes: list[Shape]
    tiny: dict
    peers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rounds: int = 9
    memory: Goal | bool = False
    clock: Callable = method.cpu_seconds
    warm: int = 1
    same: Callable = method.close

    def tiny_shapes(self) -> list[Shape]:
        """Shapes with tiny sizes, those that are then the same once."""
        return list({str(shape): shape for shape in (Shape(each.sizes | self.tiny) for each in self.shapes)}.values())

    def described(self) -> str:
        if isinstance(self.build, functools.partial):
            return f"An optimizer step: {', '.join(self.build.keywords['variants'])}."
        return self.build.__doc__.splitlines()[0]


def equal(value, expected, tolerance: float) -> bool:
    return value == expected


def not_compared(value, expected, tolerance: float) -> bool:
    return True


def against(variant: str, goal: Goal, *peers: str) -> dict:
    return {(variant, peer): goal for peer in peers}


def family(name: str, *variants: str) -> Callable:
    return functools.partial(steps.family, name=name, variants=variants)


LESS_MEMORY = Goal(1.0, at_least=False)
SMALL = {"layers": 2, "hidden": 384, "heads": 6, "batch": 4}
TINY = {"layers": 1, "hidden": 64, "heads": 2, "batch": 2, "vocab": 64, "length": 16}
EXPERTS = {"experts": 4, "channels": 32}


def decoder(dtype: str, length: int) -> Shape:
    layers, batch, vocab = {256: (4, 4, 8192), 1024: (2, 2, 8192), 2048: (1, 1, 2048)}[length]
    goals = {
        ("fp32", 256): against("ours compiled", Goal(1.2), "native"),
        ("bf16", 1024): against("ours compiled", Goal(1.2), "native compiled"),
        ("bf16", 2048): against("ours compiled", Goal(1.35), "native compiled"),
    }
    sizes = {"length": length, "batch": batch, "layers": layers, "hidden": 384, "heads": 6, "vocab": vocab}
    return Shape({"dtype": dtype} | sizes, goals.get((dtype, length), {}))


def kind(dtype: str, passes: str, length: int) -> Shape:
    goals = {}
    if length == 4096:
        goals |= against("sliding", Goal(2.5 if passes == "forward" else 2.0), "full")
        goals |= against("strided", Goal(1.5), "full") | against("local+global", Goal(1.8), "full, two-sided")
    return Shape({"dtype": dtype, "passes": passes, "length": length, "hidden": 128, "heads": 4}, goals)


def native_rows(rows: str, length: int) -> Shape:
    least = 0.97 if rows == "plain" else {1024: 1.4, 4096: 3.5}.get(length, 0.97)
    return Shape(
        {"rows": rows, "length": length, "hidden": 256, "heads": 4},
        against("native anyformer", Goal(least), "native sdpa"),
    )


def generate(layers: int, hidden: int, heads: int, batch: int, prompt: int, cache: str = "growing") -> Shape:
    sizes = {"dtype": "fp32", "layers": layers, "hidden": hidden, "heads": heads, "vocab": 8192}
    sizes |= {"batch": batch, "prompt": prompt, "tokens": 24, "cache": cache}
    return Shape(sizes, against("ours", Goal(1.15), "native"))


def mixed(goal: tuple[str, float], **sizes) -> list[Shape]:
    return [
        Shape(
            {"layers": layers, "hidden": hidden, "heads": heads, "texts": 64, "batch": 8, "longest": 96} | sizes,
            against(goal[0], Goal(goal[1]), "padded"),
        )
        for layers, hidden, heads in ((2, 64, 2), (8, 384, 6))
    ]


def command(name: str, steps: int, goal: float) -> Shape:
    return Shape({"name": name, "steps": steps}, against("anyformer train", Goal(goal), "plain transformers"))


NATIVE = ("native eager", "native sdpa")
DTYPES = ("fp32", "bf16")
ROWS = ("plain", "packed", "window", "packed window")
MIXED = {"layers": 1, "hidden": 32, "texts": 3, "batch": 2, "longest": 6}

CASES = [
    Case(
        "decoder",
        family("decoder", "native", "ours", "native compiled", "ours compiled"),
        [decoder(*each) for each in product(DTYPES, (256, 1024, 2048))],
        TINY,
        peers={"ours compiled": ("native", "native compiled")},
    ),
    Case(
        "masked",
        family("masked", "native", "native eager", "ours"),
        [
            Shape({"dtype": "fp32", "length": 256, "vocab": 30522} | sizes, against("ours", Goal(goal), "native"))
            for sizes, goal in ((SMALL, 2.8), ({"layers": 12, "hidden": 768, "heads": 12, "batch": 4}, 1.5))
        ],
        TINY,
        rounds=7,
        memory=LESS_MEMORY,
    ),
    Case(
        "seq2seq",
        family("seq2seq", *NATIVE, "ours"),
        [
            Shape(
                {"dtype": "fp32", "length": 256, "targets": 64, "vocab": 8192, "channels": 1024} | SMALL,
                against("ours", Goal(1.08), *NATIVE),
            )
        ],
        TINY | {"targets": 8, "channels": 32},
        peers={"ours": NATIVE},
        memory=LESS_MEMORY,
    ),
    Case(
        "moe",
        family("moe", "native loop", "native grouped_mm", "ours"),
        [
            Shape(
                {"dtype": dtype, "length": 256, "vocab": 8192, "experts": 8, "channels": 512} | SMALL,
                against("ours", Goal(1.2), "native loop", "native grouped_mm"),
            )
            for dtype in DTYPES
        ],
        TINY | EXPERTS,
        peers={"ours": ("native loop", "native grouped_mm")},
    ),
    Case(
        "vit",
        family("vit", *NATIVE, "ours"),
        [
            Shape({"dtype": dtype, "image": 224} | SMALL | {"layers": 4}, against("ours", Goal(1.1), *NATIVE))
            for dtype in DTYPES
        ],
        {"image": 32, "layers": 1, "hidden": 32, "heads": 2, "batch": 2},
        peers={"ours": NATIVE},
        memory=LESS_MEMORY,
    ),
    Case(
        "head_loss",
        steps.head_loss,
        [
            # In fp32 three quarters of the full logits' time are products that both make.
            Shape({"dtype": "fp32", "tokens": 1024, "vocab": 32000, "hidden": 384}),
            Shape(
                {"dtype": "bf16", "tokens": 1024, "vocab": 32000, "hidden": 384},
                against("ours", Goal(1.5), "full logits"),
            ),
        ],
        {"tokens": 64, "vocab": 512, "hidden": 8},
        memory=Goal(0.2, at_least=False),
    ),
    Case(
        "kinds",
        attention.kinds,
        [kind(*each) for each in product(DTYPES, ("forward", "training"), (256, 1024, 4096))],
        {"length": 24, "hidden": 16, "heads": 2},
        peers={"local+global": ("full, two-sided",)},
        rounds=5,
        memory=True,
        same=not_compared,
    ),
    Case(
        "backends",
        attention.backends,
        [
            Shape({"passes": passes, "length": length, "hidden": 128, "heads": 4})
            for passes, length in product(("forward", "training"), (256, 1024, 4096))
        ],
        {"length": 16, "hidden": 32, "heads": 2},
        rounds=3,
        memory=True,
    ),
    Case(
        "native_attention",
        attention.native,
        [
            native_rows(*each)
            for each in product(("plain", "packed", "window", "packed window"), (512, 1024, 2048, 4096))
        ],
        {"length": 48, "hidden": 32},
        rounds=5,
        memory=True,
    ),
    Case(
        "generate",
        decoding.generate,
        [
            *(generate(2, 64, 2, *each) for each in product((1, 8), (32, 512))),
            *(generate(8, 384, 6, *each) for each in product((1, 8), (32, 512))),
            *(generate(8, 384, 6, batch, 32, "static") for batch in (1, 8)),
        ],
        {"layers": 1, "hidden": 32, "heads": 2, "vocab": 64, "batch": 1, "prompt": 4, "tokens": 3},
    ),
    Case("scoring", decoding.scoring, mixed(("ours", 3.0), solved=192), MIXED | {"solved": 12}, rounds=5),
    Case(
        "generating", decoding.generating, mixed(("generate_batch", 3.0)), MIXED, rounds=5, same=decoding.mostly_equal
    ),
    Case(
        "trainer",
        overhead.trainers,
        [
            Shape(
                {"steps": 105, "batch": 4, "length": 64, "vocab": 1024, "layers": 2, "hidden": 64},
                against("AnyformerTrainer", Goal(1 / 1.08), "bare loop"),  # at most 1.08 times the bare loop's time
            )
        ],
        {"steps": 13, "layers": 1, "hidden": 16, "length": 8, "batch": 2, "vocab": 32},
        rounds=15,
        clock=method.seconds_in_fork,
    ),
    Case(
        "texts",
        loading.texts_to_rows,
        [
            Shape(
                {"size": size, "vocab": 16384, "length": 256, "clock": clock},
                against("ours", Goal(1.3), "run_clm") | against("ours, 2 processes", Goal(1.8), "ours"),
            )
            for size, clock in ((2_000_000, "cpu"), (8_000_000, "wall"))
        ],
        {"size": 20_000, "vocab": 300, "length": 32},
        peers={"ours": ("run_clm", "bare tokenizer"), "ours, 2 processes": ("run_clm", "ours")},
        clock=method.seconds_in_fork,
        same=equal,
    ),
    Case(
        "images",
        loading.images,
        [
            Shape(
                dict(zip(("count", "batch", "padding", "image", "patch", "layers", "hidden"), sizes)),
                against("loader", Goal(5.0), "step"),
            )
            for sizes in ((2048, 128, 4, 32, 4, 6, 144), (256, 16, 16, 224, 16, 4, 384))
        ],
        {"count": 8, "batch": 4, "padding": 2, "image": 16, "patch": 8, "layers": 1, "hidden": 24},
        rounds=7,
    ),
    Case("first_step", commands.first_step, [Shape({})], {}, rounds=3, clock=method.wall_seconds),
    Case(
        "whole_commands",
        commands.whole_commands,
        [command("decoder", 150, 1.5), command("masked", 80, 2.5), command("translation", 150, 1.4)],
        {"steps": 4, "most": 100},
        rounds=3,
        clock=method.wall_seconds,
        warm=0,
        same=equal,
    ),
]
NEEDS_DATA = ("whole_commands",)

# ------------------------------------------------------------------------------------------- on a GPU: gpu.py

COMPILED = ("native compiled", "ours compiled")


def on_gpu(name: str, build: Callable, sizes: dict, tiny: dict, goals: dict | None = None, **more) -> Case:
    shape = Shape({"dtype": "bf16"} | sizes, goals or {})
    # The first calls compile, and tell nothing about how many calls a timing needs.
    return Case(name, build, [shape], tiny, rounds=5, clock=method.gpu_seconds, warm=3, **more)


GPU_CASES = [
    *(
        on_gpu(
            f"decoder_{name}",
            family("decoder", *COMPILED),
            {"length": 2048, "batch": 8, "vocab": 32000, "layers": layers, "hidden": hidden, "heads": 16},
            TINY,
            against("ours compiled", Goal(1.2), "native compiled"),
        )
        for name, layers, hidden in (("350m", 24, 1024), ("1b", 16, 2048))
    ),
    on_gpu(
        "moe_gpu",
        family("moe", "native grouped_mm compiled", "ours", "ours compiled"),
        {"length": 2048, "batch": 8, "vocab": 32000, "layers": 8, "hidden": 1024, "heads": 16, "experts": 8}
        | {"channels": 1792},
        TINY | EXPERTS,
    ),
    on_gpu(
        "masked_gpu",
        family("masked", "native", "native compiled", "ours", "ours compiled"),
        {"length": 512, "batch": 32, "vocab": 30522, "layers": 12, "hidden": 768, "heads": 12},
        TINY,
    ),
    on_gpu(
        "vit_gpu",
        family("vit", "native", "native compiled", "ours", "ours compiled"),
        {"image": 224, "batch": 128, "layers": 12, "hidden": 768, "heads": 12},
        {"image": 32, "layers": 1, "hidden": 32, "heads": 2, "batch": 2},
    ),
    on_gpu(
        "head_loss_gpu",
        steps.head_loss,
        {"tokens": 8192, "vocab": 128256, "hidden": 2048},
        {"tokens": 64, "vocab": 512, "hidden": 8},
    ),
    on_gpu(
        "window",
        attention.window,
        {"length": 32768, "hidden": 1024, "heads": 16},
        {"length": 64, "hidden": 32, "heads": 2},
        against("flex_attention", Goal(4.0), "full"),
        same=not_compared,  # full attention gives something else; checks of gpu.py compare the backends
    ),
    on_gpu(
        "generate_gpu",
        decoding.generate,
        {"layers": 12, "hidden": 1024, "heads": 16, "vocab": 32000, "batch": 16, "prompt": 128, "tokens": 64},
        {"layers": 1, "hidden": 32, "heads": 2, "vocab": 64, "batch": 1, "prompt": 4, "tokens": 3},
        same=not_compared,  # in bf16 rounding decides between two tokens
    ),
]
