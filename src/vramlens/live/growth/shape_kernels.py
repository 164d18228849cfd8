"""Memory that a CPU's operators take for each new shape: not of the program, and bounded.

oneDNN compiles a kernel for each shape that it meets and keeps the newest 1,024 of them
(https://uxlfoundation.github.io/oneDNN/dev_guide_primitive_cache.html). On PyTorch 2.13, GELU
forward and backward took 66 KiB for each length; with ``ONEDNN_PRIMITIVE_CACHE_CAPACITY=0`` they
took none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vramlens.live.leaks.leak_report import Unexplained
from vramlens.units import KIB, MIB, format_size

_MOST_BYTES_A_STEP = 256 * KIB
"""Of the kernels that oneDNN makes for a shape: 66 KiB in the corpus' model. With half, one of three
layers more would not be excused; with twice as much, an activation would be.
"""
_MOST_BYTES = 128 * MIB
"""Of its cache of 1,024 kernels in all."""
_LEAST_STEPS = 0.5
"""Of the steps, that brought a shape that had not been there. With a quarter, one odd batch an epoch
would excuse any growth; with all, a length that comes twice would end the excuse.
"""


def kernels_note(
    torch: Any, growth: Unexplained | None, sizes: Mapping[int, Sequence[int]]
) -> str | None:
    """What is said of growth that kernels for new shapes explain; None where they do not.

    Args:
        torch: the module.
        growth: what nobody was found to hold.
        sizes: of each step, the sizes of the largest storages that it left.
    """
    if growth is None or growth.is_reached or growth.bytes > _MOST_BYTES:
        return None
    if not torch.backends.mkldnn.is_available():
        return None
    new_steps = _steps_with_new_sizes(growth, sizes)
    steps = growth.last_step - growth.first_step
    if new_steps < _LEAST_STEPS * steps or growth.bytes > new_steps * _MOST_BYTES_A_STEP:
        return None
    return (
        f"{format_size(growth.bytes)} more was taken outside of tensors while {new_steps:,} of"
        f" {steps:,} steps had a new shape: oneDNN keeps the kernels of 1,024 shapes."
        " ONEDNN_PRIMITIVE_CACHE_CAPACITY=0 shows whether it is that"
    )


def _steps_with_new_sizes(growth: Unexplained, sizes: Mapping[int, Sequence[int]]) -> int:
    """How many steps of a growth left a storage of a size that no earlier step had left."""
    earlier: set[int] = set()
    new_steps = 0
    for step in sorted(sizes):
        fresh = set(sizes[step]) - earlier
        new_steps += bool(fresh) and growth.first_step < step <= growth.last_step
        earlier |= fresh
    return new_steps
