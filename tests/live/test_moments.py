"""The answer does not hang on the moment at which it is asked: once a leak is proven, it stays so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

MOMENTS = (48, 49, 50, 52)
KEPT = 64 * 64


def in_every_step(kept: Any, step: int) -> None:
    kept.append(torch.ones(KEPT))


def in_every_third(kept: Any, step: int) -> None:
    if step % 3 == 2:
        kept.append(torch.ones(KEPT))


def in_each_validation(kept: Any, step: int) -> None:
    if step % 8 == 7:
        kept.extend(torch.ones(KEPT) for _ in range(3))


def graph_in_every_second(kept: Any, step: int) -> None:
    if step % 2:
        kept.append((torch.ones(KEPT, requires_grad=True) * 2).sum())


def in_each_epoch(kept: Any, step: int) -> None:
    if step % 6 == 5:
        kept.append(torch.ones(6, KEPT))


def emptied_by_epoch(kept: Any, step: int) -> None:
    if step % 12 == 0:
        kept.clear()
    kept.append(torch.ones(KEPT))


def verdicts(keep: Callable[[Any, int], None], kept: Any) -> list[str]:
    """By moment, the verdict on what is kept; "" where nothing is said."""
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    watch = vramlens.LeakWatch()
    told = []
    for step in range(1, max(MOMENTS) + 1):
        optimizer.zero_grad()
        net(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        keep(kept, step)
        watch.step()
        if step in MOMENTS:
            named = [leak for leak in watch.report().found if "kept" in leak.owner.name]
            told.append(str(named[0].verdict) if named else "")
    return told


@pytest.mark.parametrize(
    "keep",
    [
        in_every_step,
        in_every_third,
        in_each_validation,
        graph_in_every_second,
        in_each_epoch,
    ],
)
def test_a_leak_is_one_at_every_moment(keep: Callable[[Any, int], None]) -> None:
    assert verdicts(keep, []) == ["proven"] * len(MOMENTS)


def test_a_window_is_none_at_any_moment() -> None:
    told = verdicts(in_every_step, deque(maxlen=64))
    assert not {"proven", "likely"} & set(told)


def test_a_list_that_each_epoch_empties_is_none_at_any_moment() -> None:
    assert not {"proven", "likely"} & set(verdicts(emptied_by_epoch, []))
