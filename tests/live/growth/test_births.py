"""What a watch remembers of the steps that it saw."""

from __future__ import annotations

import pytest

from vramlens import LeakWatch
from vramlens.live.growth import births

torch = pytest.importorskip("torch")


def test_sizes_are_remembered_of_the_latest_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(births, "_MOST_STEPS_OF_SIZES", 5)
    kept = []
    watch = LeakWatch()
    for _ in range(12):
        kept.append(torch.zeros(4096))
        watch.step()
    steps = list(watch._births.sizes)
    assert len(steps) == 5
    assert steps[-1] == max(steps) >= 11
