"""Tensors behind NumPy's arrays and in data frames, in looks on the way and at the end."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pandas = pytest.importorskip("pandas")

import vramlens  # noqa: E402
from vramlens.live import unit_watch  # noqa: E402
from vramlens.live.unit_watch import UnitWatch  # noqa: E402

FORECASTS = """
import sys
import numpy, pandas

layer = torch.nn.Linear(64, 64)
history = pandas.DataFrame({{"forecast": pandas.Series(dtype=object)}})

def run(step):
    global history
    for week in range(40):
        rows = list(layer(torch.randn(32, 64)).sum(dim=1){detached})
        frame = pandas.DataFrame({{"forecast": rows}}, dtype=object)
        history = pandas.concat([history, frame], ignore_index=True)
        del rows, frame
        step(sys._getframe())

def finish():
    history["forecast"] = [float(row.detach()) for row in history["forecast"]]
"""


def test_a_column_that_is_converted_after_the_loop(
    load_program: Callable[..., types.ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data frame is there at the end, and as long as it was. What its cells kept is gone, and is
    less than what was there before the loop and stays.
    """
    # Looks come by steps alone, however long each takes on a busy machine.
    monkeypatch.setattr(unit_watch, "_FREE_SECONDS", 1e6)
    monkeypatch.setattr(unit_watch, "_QUICK_SECONDS", 0.0)
    monkeypatch.setattr(unit_watch, "_TIMES_AS_LONG", 0)
    program = load_program(FORECASTS.format(detached=""), "forecasts")
    weights = program.torch.zeros(10_000_000)
    watch = UnitWatch(None)
    program.run(watch.step)
    program.finish()
    watch.end()
    report, _ = watch.conclusion()
    watch.stop()
    assert report.live_bytes > weights.nbytes
    (leak,) = [leak for leak in report.leaks if leak.kind == "graph"]
    assert leak.owner is not None
    assert leak.owner.name == "history"
    assert leak.verdict in ("likely", "possible")
    assert "is gone now" in leak.reason
    assert leak.fix is not None
    assert "numbers (.item()) into the cells of history" in leak.fix


def test_a_column_of_a_data_frame_is_a_table(
    load_program: Callable[..., types.ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not attributes, of which each is made when it is needed."""
    program = load_program(FORECASTS.format(detached=""), "forecasts")
    watch = vramlens.LeakWatch()
    program.run(watch.step)
    (leak,) = [leak for leak in watch.report().leaks if leak.kind == "graph"]
    watch.stop()
    assert leak.verdict == "proven"


def _brief_look(kept: Any) -> set[int]:
    watch = vramlens.LeakWatch()
    program: Any = sys.modules["arrays"]
    for _ in range(8):
        program.keep(kept)
        watch.step()
    owned = watch.owned(is_brief=True)
    watch.stop()
    assert owned is not None
    return {storage.size_bytes for storage, _, _ in owned[1]}


def test_a_brief_look_goes_behind_arrays(load_program: Callable[..., types.ModuleType]) -> None:
    text = """
import numpy
kept = numpy.empty(8, dtype=object)
filled = []

def keep(kept):
    kept[len(filled)] = torch.zeros(4321)
    filled.append(1)
"""
    program = load_program(text, "arrays")
    assert 4 * 4321 in _brief_look(program.kept)
