"""TensorBoard: what its own reader finds in the folder is what the recording says by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.memory.heap import heap_at
from vramlens.analyses.memory.run_shape import step_peaks
from vramlens.errors import InputError
from vramlens.export import export_recording
from vramlens.export.tensorboard_steps import FILE, step_scalars
from vramlens.units import GIB

WITH_STEPS = ("gpt_annotated", "oom_train", "graphs", "leak_exception")


@pytest.mark.parametrize("name", WITH_STEPS)
def test_scalars_are_the_peaks_of_the_steps(
    name: str, view_of: Callable[[str], Attribution]
) -> None:
    view = view_of(name)
    found = step_scalars(view)
    assert len(found) == 10
    assert found["peak/requested_gib"].tolist() == list(step_peaks(view).peak_bytes)
    for counter in ("requested", "allocated", "reserved"):
        known = getattr(view.device, counter)
        assert max(found[f"peak/{counter}_gib"].tolist()) == known.peak_bytes
    categories = [sizes for key, sizes in found.items() if key.startswith("category/")]
    assert np.sum(categories, axis=0).tolist() == found["peak/requested_gib"].tolist()


@pytest.mark.parametrize("name", WITH_STEPS)
def test_categories_are_the_heaps_at_the_runs_peak(
    name: str, view_of: Callable[[str], Attribution]
) -> None:
    view = view_of(name)
    event = view.device.requested.peak_event
    heap, step = heap_at(view, event), int(view.steps.of(np.array([event]))[0])
    found = step_scalars(view)
    for kind in Category:
        held = heap.by_category.get(kind.name.lower())
        assert found[f"category/{kind.name.lower()}_gib"][step] == (held.bytes if held else 0)


def test_tensorboards_own_reader(view_of: Callable[[str], Attribution], tmp_path: Path) -> None:
    accumulators: Any = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    view = view_of("gpt_annotated")
    for _ in range(2):  # a second export takes the first one's place
        written = export_recording(view.trace, "tensorboard", str(tmp_path / "logs"))
    assert written.what == "10 scalars of 4 steps"
    assert [path.name for path in (tmp_path / "logs").iterdir()] == [FILE]
    reader = accumulators.EventAccumulator(str(tmp_path / "logs")).Reload()
    expected = step_scalars(view)
    assert set(reader.Tags()["scalars"]) == set(expected)
    for name, sizes in expected.items():
        events = reader.Scalars(name)
        assert [event.step for event in events] == list(range(len(view.steps)))
        assert [event.value for event in events] == pytest.approx(
            [size / GIB for size in sizes.tolist()], rel=1e-6
        )
        ends = view.device.clock_us[view.steps.ends - 1] / 1e6
        assert [event.wall_time for event in events] == pytest.approx(ends.tolist(), abs=1e-3)


def test_without_steps_there_is_nothing_to_draw(
    view_of: Callable[[str], Attribution], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"vramlens\.step"):
        export_recording(view_of("streams").trace, "tensorboard", str(tmp_path / "logs"))
    assert not (tmp_path / "logs").exists()
