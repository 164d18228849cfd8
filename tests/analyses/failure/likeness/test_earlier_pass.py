"""What earlier passes through a model say of one that is far larger."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.failure.likeness.earlier_pass import most_by_earlier_passes
from vramlens.units import MIB

TIMES = 1562.5 / 64
"""The rows of the whole table against those of a training batch."""


@cache
def view() -> Attribution:
    return load(DATA / "failures/tabular_on_gpu.cap70.vram").attribution()


def failed_event() -> int:
    return view().device.out_of_memory[-1].event


def test_an_evaluation_of_all_rows_keeps_no_more_than_a_training_pass_so_much_larger() -> None:
    most = most_by_earlier_passes(view(), failed_event())
    assert most is not None
    assert 4 * 64 * TIMES * MIB < most < 8 * 64 * TIMES * MIB


def test_a_pass_that_is_little_larger_is_told_by_its_blocks() -> None:
    """A length may have grown, and what grows with its square is still to come."""
    sizes = view().device.allocations.requested_bytes.copy()
    sizes[sizes == 1562.5 * MIB] = 7 * 64 * MIB
    device = replace(
        view().device, allocations=replace(view().device.allocations, requested_bytes=sizes)
    )
    assert most_by_earlier_passes(replace(view(), device=device), failed_event()) is None


def test_other_modules_tell_nothing() -> None:
    modules = view().modules
    module = modules.module.copy()
    last = np.flatnonzero(modules.marked & (view().device.allocations.born < failed_event()))[-1]
    module[last] = modules.paths.index("net.5")
    changed = replace(view(), modules=replace(modules, module=module))
    assert most_by_earlier_passes(changed, failed_event()) is None
