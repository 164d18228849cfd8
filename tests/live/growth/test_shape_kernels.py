"""Kernels that a CPU's operators keep for each shape: told from growth of every step by when they came."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from vramlens.live.counters.step_counters import CounterSeries
from vramlens.live.growth.shape_kernels import kernels_note
from vramlens.live.leaks.leak_report import Unexplained
from vramlens.units import KIB

STEPS, NEW_EVERY = 120, 6
TORCH = SimpleNamespace(backends=SimpleNamespace(mkldnn=SimpleNamespace(is_available=lambda: True)))


def note(
    taken: Callable[[int], int], *, new_every: int = NEW_EVERY, readings_apart: int = 1
) -> str | None:
    """The note on memory of which each step takes so much, where every few steps have a new shape."""
    series, total = CounterSeries(), 0
    for step in range(1, STEPS + 1):
        total += taken(step)
        if step % readings_apart == 0:
            series.add(step, total)
    sizes = {step: [1024 * (1 + step // new_every)] for step in range(STEPS + 1)}
    growth = Unexplained(total, total // STEPS, 1, STEPS, is_reached=False)
    return kernels_note(TORCH, growth, sizes, series)


def with_each_shape(size: int) -> Callable[[int], int]:
    return lambda step: size if step % NEW_EVERY == 0 else 0


def test_what_comes_with_each_new_shape_is_kernels() -> None:
    text = note(with_each_shape(200 * KIB))
    assert text is not None
    assert text.startswith(
        "3.91 MiB more was taken outside of tensors while 20 of 119 steps had a new"
    )


def test_what_comes_with_every_step_is_growth() -> None:
    assert note(lambda step: 33 * KIB) is None


def test_what_comes_with_other_steps_is_growth() -> None:
    assert note(lambda step: 200 * KIB if step % NEW_EVERY == 3 else 0) is None


def test_more_than_kernels_take_is_growth() -> None:
    assert note(with_each_shape(300 * KIB)) is None


@pytest.mark.parametrize("apart", [4, 12])
def test_readings_far_apart_say_nothing(apart: int) -> None:
    assert note(with_each_shape(200 * KIB), readings_apart=apart) is None


def test_where_most_steps_have_a_new_shape_nothing_tells_them_apart() -> None:
    assert note(lambda step: 33 * KIB, new_every=1) is not None
