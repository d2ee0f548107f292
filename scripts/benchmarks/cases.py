"""The table of cases: what is timed against what, in which shapes, with which goals."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import adapters
import attention
import method
import steps
from method import Goal


@dataclass(frozen=True)
class Shape:
    """Sizes of a case, as `build` takes them, and goals: {(variant, peer): ratio}.

    Each variant is compared with the reference and with the peers that it has goals against.
    """

    sizes: dict
    goals: dict[tuple[str, str], Goal] = field(default_factory=dict)

    def __str__(self) -> str:
        sizes = self.sizes.items()
        return " ".join(value if isinstance(value, str) else f"{name}={value}" for name, value in sizes)


@dataclass(frozen=True)
class Case:
    """What is timed against what.

    build(device, **sizes) -> {variant: function}. The first variant is the reference; all must give equal results.
    tiny: sizes that replace a shape's for a test of the case. clock, warm, same: as in `method.compare`.
    memory: whether peak memory is measured, by torch's profiler; a goal limits the share of a peer's that "ours" needs.
    """

    name: str
    build: Callable
    shapes: list[Shape]
    tiny: dict
    rounds: int = 9
    memory: Goal | bool = False
    clock: Callable = method.cpu_seconds
    warm: int = 1
    same: Callable = method.close

    def tiny_shapes(self) -> list[Shape]:
        """The shapes with tiny sizes, without duplicates."""
        return list({str(shape): shape for shape in (Shape(each.sizes | self.tiny) for each in self.shapes)}.values())

    def described(self) -> str:
        if isinstance(self.build, functools.partial):
            return f"An optimizer step: {', '.join(self.build.keywords['variants'])}."
        return self.build.__doc__.splitlines()[0]


def not_compared(value, expected, tolerance: float) -> bool:
    return True


def goals(variant: str, ratio: float, *peers: str) -> dict:
    return {(variant, peer): Goal(ratio) for peer in peers}


def family(name: str, *variants: str) -> Callable:
    return functools.partial(steps.family, name=name, variants=variants)


LESS_MEMORY = Goal(1.0, at_least=False)
DTYPES, NATIVE = ("fp32", "bf16"), ("native eager", "native sdpa")
SMALL = {"layers": 2, "hidden": 384, "heads": 6, "batch": 4}
BASE = {"layers": 12, "hidden": 768, "heads": 12}
ROW = {"length": 256, "vocab": 8192}
TINY = {"layers": 1, "hidden": 64, "heads": 2, "batch": 2, "vocab": 64, "length": 16}
TINY_MOE = TINY | {"experts": 4, "channels": 32}
ADAPTER = {"dtype": "bf16", "layers": 4, "hidden": 576, "heads": 9, "batch": 8, "length": 512, "vocab": 49152}
TINY_VIT = {"image": 32, "layers": 1, "hidden": 32, "heads": 2, "batch": 2}
TINY_HEAD = {"tokens": 64, "vocab": 512, "hidden": 8}
TINY_TEXT = {"layers": 1, "hidden": 32, "heads": 2, "vocab": 64, "batch": 1, "prompt": 4, "tokens": 3}


def decoder(dtype: str, length: int) -> Shape:
    layers, batch, vocab = {256: (4, 4, 8192), 1024: (2, 2, 8192), 2048: (1, 1, 2048)}[length]
    shape_goals = goals("ours compiled", {256: 1.0, 1024: 1.2, 2048: 1.35}[length], "native compiled")
    if (dtype, length) == ("fp32", 256):
        shape_goals = goals("ours compiled", 1.2, "native")
    sizes = {"dtype": dtype, "length": length, "vocab": vocab} | SMALL | {"layers": layers, "batch": batch}
    return Shape(sizes, shape_goals)


def native_rows(rows: str, length: int, dtype: str = "fp32") -> Shape:
    least = 0.97 if rows == "plain" else {1024: 1.4, 4096: 3.5}.get(length, 0.97)
    sizes = {"dtype": dtype, "rows": rows, "length": length, "hidden": 256, "heads": 4}
    return Shape(sizes, goals("native anyformer", least, "native sdpa"))


def generate(size: tuple[int, int, int], batch: int, prompt: int, cache: str = "growing") -> Shape:
    sizes = {"dtype": "fp32", "vocab": 8192, "batch": batch, "prompt": prompt, "tokens": 24, "cache": cache}
    return Shape(dict(zip(("layers", "hidden", "heads"), size)) | sizes, goals("ours", 1.0, "native"))


CASES = [
    Case(
        "decoder",
        family("decoder", "native", "ours", "native compiled", "ours compiled"),
        [decoder(*each) for each in product(DTYPES, (256, 1024, 2048))],
        TINY,
        warm=2,  # the second call of a compiled model may compile once more
    ),
    Case(
        "masked",
        family("masked", "native", "native eager", "ours"),
        [
            Shape({"dtype": "fp32", "length": 256, "vocab": 30522} | SMALL | sizes, goals("ours", goal, "native"))
            for sizes, goal in (({}, 2.8), (BASE, 1.5))
        ],
        TINY,
        rounds=7,
        memory=LESS_MEMORY,
    ),
    Case(
        "seq2seq",
        family("seq2seq", *NATIVE, "ours"),
        [Shape({"dtype": "fp32", "targets": 64, "channels": 1024} | ROW | SMALL, goals("ours", 1.08, *NATIVE))],
        TINY | {"targets": 8, "channels": 32},
        memory=LESS_MEMORY,
    ),
    Case(
        "moe",
        family("moe", "native loop", "native grouped_mm", "ours"),
        [
            Shape(
                {"dtype": dtype, "experts": 8, "channels": 512} | ROW | SMALL,
                goals("ours", 1.2, "native loop", "native grouped_mm"),
            )
            for dtype in DTYPES
        ],
        TINY_MOE,
    ),
    Case(
        "vit",
        family("vit", *NATIVE, "ours"),
        [Shape({"dtype": each, "image": 224} | SMALL | {"layers": 4}, goals("ours", 1.1, *NATIVE)) for each in DTYPES],
        TINY_VIT,
        memory=LESS_MEMORY,
    ),
    Case(
        "head_loss",
        steps.head_loss,
        [  # in fp32 three quarters of the full logits' time are matrix products that both variants compute
            Shape({"dtype": dtype, "tokens": 1024, "vocab": 32000, "hidden": 384}, wanted)
            for dtype, wanted in (("fp32", {}), ("bf16", goals("ours", 1.5, "full logits")))
        ],
        TINY_HEAD,
        memory=Goal(0.2, at_least=False),
    ),
    Case(
        "native_attention",
        attention.native,
        [
            native_rows(*each)
            for each in (*product(attention.ROWS, (512, 1024, 2048, 4096)), ("packed", 8192), ("window", 8192))
        ],
        {"length": 48, "hidden": 32},
        rounds=5,
        memory=True,
    ),
    Case(
        "states",
        attention.states,
        [
            Shape({"dtype": "fp32", "length": length, "hidden": 128, "heads": 2})
            for length in (1024, 2048, 4096, 8192, 16384)
        ],
        {"length": 48, "hidden": 32},
        rounds=3,
        same=not_compared,  # each computes another function
    ),
    Case(
        "strides",
        attention.strides,
        [
            Shape(
                {"dtype": dtype, "length": length, "stride": 64, "layers": 2, "hidden": 128, "heads": 4},
                goals("strided", 2.0, "full") if length == 4096 else {},
            )
            for dtype, length in product(DTYPES, (1024, 4096))
        ],
        {"length": 48, "hidden": 32, "heads": 2, "stride": 4},
        rounds=5,
        memory=True,
        same=not_compared,  # each computes another function
    ),
    *(
        Case(
            f"adapter_{rows}{'_checkpointed' * checkpointed}",
            adapters.adapter,
            [Shape(ADAPTER | {"rows": rows, "checkpointed": checkpointed}, goals("ours", faster, "trl"))],
            TINY,
            rounds=5,
            memory=Goal(memory, at_least=False),
            same=not_compared,  # TRL's plain rows see other documents
        )
        for rows, checkpointed, faster, memory in (
            ("packed", False, 2.5, 0.65),
            ("packed", True, 3.0, 0.45),
            ("plain", False, 1.25, 0.76),
        )
    ),
    Case(
        "generate",
        steps.generate,
        [
            *(generate(*each) for each in product(((2, 64, 2), (8, 384, 6)), (1, 8), (32, 512))),
            *(generate((8, 384, 6), batch, 32, "static") for batch in (1, 8)),
        ],
        TINY_TEXT,
    ),
]
