"""The global batch: the rows of one optimizer step, the same however many processes share them.

A run is then the same on 1, 2 or 4 processes but for the rounding of sums: its data come in one order, each step has
the same rows of it, and the learning rate is that of the same step. Nothing here imports torch.
"""

from ..errors import UserError
from ..words import counted
from .schema import TrainingSection

# The settings that say how many rows a step has, and how they are shared out.
SETTINGS = ("per_device_train_batch_size", "gradient_accumulation_steps", "global_batch_size")


def rows_per_step(section: TrainingSection, processes: int) -> int:
    """The rows of a step of a run that begins with so many processes."""
    if section.global_batch_size is not None:
        return section.global_batch_size
    return section.per_device_train_batch_size * section.gradient_accumulation_steps * processes


def micro_batches(section: TrainingSection, processes: int, rows: int) -> tuple[int, int]:
    """(rows of a forward pass of one process, forward passes in a step), such that a step has `rows` rows.

    A forward pass has as many rows as can be shared out evenly, and at most per_device_train_batch_size. Raises
    UserError where the processes cannot have equally many rows, and where the recipe says twice how many passes a step
    has.
    """
    own, most = section.gradient_accumulation_steps, section.per_device_train_batch_size
    if section.global_batch_size is not None and own > 1:
        raise UserError(
            f"training.gradient_accumulation_steps={own} follows from training.global_batch_size="
            f"{section.global_batch_size} and the number of processes; leave it out"
        )
    each, left = divmod(rows, processes)
    if left:
        possible = [n for n in range(1, 2 * processes + 1) if rows % n == 0]
        what = (
            f"training.global_batch_size={rows}"
            if section.global_batch_size is not None
            else f"training.output_dir={section.output_dir} holds a run whose {counted(rows, 'row')} of a step"
        )
        raise UserError(
            f"{what} cannot be shared out evenly over {counted(processes, 'process', 'processes')}; start "
            f"{' or '.join(str(n) for n in possible[-3:])}"
        )
    largest = next(size for size in range(min(most, each), 0, -1) if each % size == 0)
    return largest, each // largest


def same_step(one: TrainingSection, other: TrainingSection) -> bool:
    """Whether two sections say the same of a step."""
    return all(getattr(one, name) == getattr(other, name) for name in SETTINGS)
