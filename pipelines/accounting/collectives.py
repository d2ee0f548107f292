"""Messages between the devices of a step: collectives, their bytes and their time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..recipes.schema import ParallelismSettings
from .devices import Devices
from .gathers import groups_of, style_of
from .layers import OUTERMOST
from .memory import FP32


@dataclass(frozen=True)
class Collective:
    """All collectives of one kind over one dimension of the mesh, in a step of one rank.

    bytes: of all together, those that a rank has when all is gathered, or before anything is scattered.
    ranks: of the group.
    """

    kind: str
    dimension: str
    count: int
    bytes: int
    ranks: Sequence[int]

    def seconds(self, devices: Devices, per_node: int) -> float:
        """At the rates of the data sheet, as rings: a rank sends all but its own share, in an all_reduce twice.

        On several machines each of a machine's ranks of the group has its own network card.
        """
        members, nodes = len(self.ranks), len({rank // per_node for rank in self.ranks})
        rate = devices.link if nodes == 1 else min(devices.link, devices.network * members / nodes)
        return self.bytes * (members - 1) / members * (2 if self.kind == "all_reduce" else 1) / rate


def planned_messages(
    part, settings: ParallelismSettings, half: bool, hidden: int, checkpointing: bool, micro_batches: int
) -> list[Collective]:
    """The collectives of a step under a mesh, without those of a few bytes, such as the gradient's norm.

    part: a rank's part of the model under tp. half: whether weights are gathered in bf16. hidden: bytes of the hidden
    states of a micro-batch.
    """
    tp, shard, copies = settings.tp, settings.dp_shard, settings.dp_replicate
    groups = groups_of(part)
    gathered = [group.gathered(half) for group in groups for _ in range(1 if group.stays else 2)]
    reduced = [group.reduced for group in groups if group.reduced]
    shared = {id(weight) for group in groups for weight in group.weights}
    # An adapter's, which are reduced once, when a step ends.
    whole = [FP32 * p.numel() for p in part.parameters() if p.requires_grad and id(p) not in shared]
    summed = sums_over_tp(part, checkpointing)
    found = [
        Collective("all_gather", "dp_shard", len(gathered), sum(gathered), range(0, tp * shard, tp)),
        Collective("reduce_scatter", "dp_shard", len(reduced), sum(reduced), range(0, tp * shard, tp)),
        Collective("all_reduce", "tp", summed, summed * hidden, range(tp)),
        Collective(
            "all_reduce",
            "dp_replicate",
            len(reduced),
            sum(reduced) // shard,
            range(0, tp * shard * copies, tp * shard),
        ),
    ]
    found = [replace(one, count=micro_batches * one.count, bytes=micro_batches * one.bytes) for one in found]
    found.append(Collective("all_reduce", "dp_shard", len(whole), sum(whole), range(0, tp * shard, tp)))
    return [one for one in found if one.bytes and len(one.ranks) > 1]


def sums_over_tp(part, checkpointing: bool) -> int:
    """The sums of hidden states in a step: of products by rows forwards, of gradients of what products by columns read.

    Layers that are computed again stop before their last product, which nothing then needs.
    """
    weights = (name for name, _ in part.named_parameters(remove_duplicate=False) if not name.endswith("bias"))
    styles = {name: style_of(part, name) for name in weights}
    by_rows = [name for name, style in styles.items() if "rowwise" in style]
    layers = [match[0] for match in map(OUTERMOST.match, by_rows) if match is not None]
    again = len(layers) - len(set(layers)) if checkpointing else 0
    return len(by_rows) + again + sum("colwise" in style for style in styles.values())
