"""What a watch remembers of the steps that it saw."""

from __future__ import annotations

import gc

import pytest

from vramlens import LeakWatch
from vramlens.live.growth import births
from vramlens.live.heap.tensors import loaded

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


def test_what_a_first_step_made_that_imports_is_known_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector comes in an import more often than there is time for looking."""
    monkeypatch.setattr(births, "_KEPT_FOR_ENDS", 10.0)
    older = torch.zeros(4096)
    watch = LeakWatch()
    seen = watch._births
    assert seen is not None
    made = torch.zeros(4096)
    gc.collect()
    left_seconds = seen._ration.left
    watch.step()
    known = loaded()
    assert known is not None
    places = [(known.storage_of(tensor), tensor) for tensor in (older, made)]
    steps = [seen.born(place, tensor) for place, tensor in places if place is not None]
    assert steps == [births.BEFORE, 1]
    assert seen._ration.left > left_seconds - 0.01  # nothing was taken while it imported
