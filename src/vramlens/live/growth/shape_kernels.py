"""Memory that a CPU's operators take for each new shape: not of the program, and bounded.

oneDNN compiles a kernel for each shape that it meets and keeps the newest 1,024 of them
(https://uxlfoundation.github.io/oneDNN/dev_guide_primitive_cache.html). On PyTorch 2.13, GELU
forward and backward took 66 KiB for each length; with ``ONEDNN_PRIMITIVE_CACHE_CAPACITY=0`` they
took none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vramlens.live.counters.step_counters import CounterSeries
from vramlens.live.growth.pace import WARM_UP
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


_FINE = 2
"""Steps from one reading to the next, where it is known which of them brought something."""
_FEWEST_FINE, _LEAST_FINE = 6, 0.5
"""Such readings with a new shape; and of all that came, what came between such readings."""
_MOST_WITH_NEW, _MOST_NEW = 0.9, 0.6
"""Of what came between such readings, so much came with a new shape; and of these, at most so many had one:
else growth of every step would be taken for it.
"""


def kernels_note(
    torch: Any,
    growth: Unexplained | None,
    sizes: Mapping[int, Sequence[int]],
    series: CounterSeries,
) -> str | None:
    """What is said of growth that kernels for new shapes explain; None where they do not.

    Args:
        torch: the module.
        growth: what nobody was found to hold.
        sizes: of each step, the sizes of the largest storages that it left.
        series: what the C library's allocator had handed out, by step.
    """
    if growth is None or growth.is_reached or growth.bytes > _MOST_BYTES:
        return None
    if not torch.backends.mkldnn.is_available():
        return None
    with_new = _steps_with_new_sizes(sizes)
    new_steps = sum(growth.first_step < step <= growth.last_step for step in with_new)
    steps = growth.last_step - growth.first_step
    is_with_new = new_steps >= _LEAST_STEPS * steps or _came_with(with_new, series)
    if not is_with_new or growth.bytes > new_steps * _MOST_BYTES_A_STEP:
        return None
    return (
        f"{format_size(growth.bytes)} more was taken outside of tensors while {new_steps:,} of"
        f" {steps:,} steps had a new shape: oneDNN keeps the kernels of 1,024 shapes."
        " ONEDNN_PRIMITIVE_CACHE_CAPACITY=0 shows whether it is that"
    )


def _steps_with_new_sizes(sizes: Mapping[int, Sequence[int]]) -> list[int]:
    """The steps that left a storage of a size that no earlier step had left."""
    earlier: set[int] = set()
    with_new = []
    for step in sorted(sizes):
        if set(sizes[step]) - earlier:
            with_new.append(step)
        earlier.update(sizes[step])
    return with_new


def _came_with(new_steps: Sequence[int], series: CounterSeries) -> bool:
    """True if nearly all came in steps with a new shape, where readings are near enough to say so, and
    most steps had none.
    """
    # What a step made may be seen by the look after the next one.
    near = {step - earlier for step in new_steps for earlier in (0, 1)}
    rises, steps = series.left_behind(), series.steps
    fine = [
        place
        for place in range(1, len(steps))
        if steps[place] > WARM_UP and steps[place] - steps[place - 1] <= _FINE
    ]
    with_new = [
        place
        for place in fine
        if not near.isdisjoint(range(steps[place - 1] + 1, steps[place] + 1))
    ]
    came = sum(rises.get(place, 0) for place in fine)
    came_with_new = sum(rises.get(place, 0) for place in with_new)
    return (
        len(with_new) >= _FEWEST_FINE
        and len(with_new) <= _MOST_NEW * len(fine)
        and came_with_new >= _MOST_WITH_NEW * came > 0
        and came >= _LEAST_FINE * series.grown
    )
