"""The global batch: the rows of one optimizer step, the same however many processes share them.

A run is then the same on 1, 2 or 4 processes but for the rounding of sums: the order of the data, the rows of each step
and its learning rate are equal. Nothing here imports torch.
"""

from ..errors import UserError
from ..words import counted
from .schema import TrainingSection

# The settings of the number of rows in a step, and of how they are divided.
SETTINGS = ("per_device_train_batch_size", "gradient_accumulation_steps", "global_batch_size")


def rows_per_step(section: TrainingSection, processes: int) -> int:
    """The rows in an optimizer step of a run that begins with `processes` processes."""
    if section.global_batch_size is not None:
        return section.global_batch_size
    return section.per_device_train_batch_size * section.gradient_accumulation_steps * processes


def micro_batches(section: TrainingSection, processes: int, rows: int) -> tuple[int, int]:
    """Return (rows in a micro-batch of one process, micro-batches in a step), such that a step has `rows` rows.

    A micro-batch has the largest number of rows, up to per_device_train_batch_size, that divides a process's rows.
    Raises UserError if the processes cannot have equally many rows, or if global_batch_size and
    gradient_accumulation_steps are both set.
    """
    accumulation = section.gradient_accumulation_steps
    if section.global_batch_size is not None and accumulation > 1:
        raise UserError(
            f"training.gradient_accumulation_steps={accumulation} follows from training.global_batch_size="
            f"{section.global_batch_size} and the number of processes; leave it out"
        )
    per_process, remainder = divmod(rows, processes)
    if remainder:
        possible = [n for n in range(1, 2 * processes + 1) if rows % n == 0]
        setting = (
            f"training.global_batch_size={rows}"
            if section.global_batch_size is not None
            else f"training.output_dir={section.output_dir} holds a run whose {counted(rows, 'row')} of a step"
        )
        raise UserError(
            f"{setting} cannot be shared out evenly over {counted(processes, 'process', 'processes')}; start "
            f"{' or '.join(str(n) for n in possible[-3:])}"
        )
    size = min(section.per_device_train_batch_size, per_process)
    while per_process % size:
        size -= 1
    return size, per_process // size
