"""Meters: PyTorch's own recording is used for a probe and then left as it was, whatever happens
in between.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recovery.training import mean_loss, net
from support.recordings import event, snapshot
from vramlens.recovery import meters
from vramlens.recovery.batch_size.probe import Prober
from vramlens.recovery.batch_size.scaled_requests import StepRequests
from vramlens.recovery.meters import CountingMeter, CudaMeter


class History:
    """An allocator's recording: whether it is on, and what goes wrong with it."""

    def __init__(self, *, is_on: bool = False, start: Any = None, shown: Any = None) -> None:
        self.is_on, self._start, self._shown = is_on, start, shown
        self.snapshots = 0

    def history_is_on(self) -> bool:
        return self.is_on

    def start_history(self, max_events: int) -> None:
        del max_events
        if isinstance(self._start, RuntimeError):
            raise self._start
        self.is_on = True
        if self._start is not None:
            raise self._start

    def stop_history(self) -> None:
        self.is_on = False

    def snapshot(self) -> Any:
        self.snapshots += 1
        if isinstance(self._shown, BaseException):
            raise self._shown
        return self._shown or snapshot([event("alloc", 1 << 30, 512)], [])


class NotingMeter(CountingMeter):
    """A simulated device whose requests are noted as a GPU's are."""

    def __init__(self, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(10**9)
        monkeypatch.setattr(meters, "connect", lambda: history)
        self._gpu = CudaMeter(torch.device("cuda:0"))

    def note_requests(self) -> None:
        self._gpu.note_requests()

    def noted_requests(self, size: int) -> StepRequests | None:
        return self._gpu.noted_requests(size)

    def stop_noting(self) -> None:
        self._gpu.stop_noting()


def probed(
    history: History, monkeypatch: pytest.MonkeyPatch, fails: BaseException | None = None
) -> Any:
    """A probe; ``fails``: what its last step raises."""
    steps = []

    def batch(size: int) -> dict[str, torch.Tensor]:
        steps.append(size)
        if fails is not None and len(steps) == 3:
            raise fails
        ids = torch.randint(0, 64, (size, 8))
        return {"ids": ids, "labels": ids}

    with NotingMeter(history, monkeypatch) as meter:
        return Prober(
            net(torch.float32, width=16, vocabulary=64, blocks=1), mean_loss, None, meter
        ).probe(2, batch)


def test_a_probe_is_recorded_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    assert probed(history, monkeypatch).requests.size == 2
    assert not history.is_on


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("the model's own")])
@pytest.mark.parametrize("where", ["start", "shown", "step"])
def test_an_interrupted_probe_leaves_nothing_recording(
    where: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(**({where: error} if where != "step" else {}))
    if where == "shown" and not isinstance(error, KeyboardInterrupt):
        assert probed(history, monkeypatch).requests is None  # a warning: the probe stands
    else:
        with pytest.raises(type(error)) as raised:
            probed(history, monkeypatch, error if where == "step" else None)
        assert raised.value is error
        assert history.snapshots == (where == "shown")
    assert not history.is_on


def test_a_probe_that_ran_out_of_memory_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    assert probed(history, monkeypatch, torch.OutOfMemoryError("CUDA out of memory.")) is None
    assert (history.is_on, history.snapshots) == (False, 0)


def test_somebody_elses_recording_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(is_on=True)
    assert probed(history, monkeypatch).requests is None
    assert (history.is_on, history.snapshots) == (True, 0)


def test_an_allocator_without_a_history_is_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(start=RuntimeError("cudaMallocAsync does not yet support recordHistory"))
    assert probed(history, monkeypatch).requests is None
    assert history.snapshots == 0


def test_a_full_recording_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations that were made before its first event would count as memory from before: they
    would not grow.
    """
    monkeypatch.setattr(meters, "_MOST_EVENTS", 2)
    shown = snapshot([event("alloc", number << 30, 512) for number in (1, 2)], [])
    assert probed(History(shown=shown), monkeypatch).requests is None
