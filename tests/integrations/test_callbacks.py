"""What callbacks keep of a failure and of leaks, the peaks of all ranks, and the trainer's order."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vramlens.integrations.shared import loop_monitor
from vramlens.integrations.shared.kept_artifacts import handles_of_loggers, handles_of_process, keep
from vramlens.integrations.shared.loop_monitor import LoopMonitor, verdict_in
from vramlens.integrations.shared.training_callback import UncaughtError
from vramlens.integrations.transformers import _callbacks_beside


class OutOfMemoryError(RuntimeError):
    """As torch raises it."""


def failure(path: Path | None = None) -> OutOfMemoryError:
    error = OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    if path is not None:
        error.__notes__ = ["the verdict\nvramlens: recording of this failure: x"]  # type: ignore[attr-defined]
        error.__vramlens_path__ = str(path)  # type: ignore[attr-defined]
    return error


class Writer:
    """TensorBoard's, as far as it is used."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str, int]] = []

    def add_text(self, name: str, text: str, step: int) -> None:
        self.texts.append((name, text, step))

    def flush(self) -> None:
        pass


class Client:
    """MLflow's."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, ...]] = []

    def log_text(self, run_id: str, text: str, file: str) -> None:
        self.kept.append((run_id, file, text))

    def log_artifact(self, run_id: str, path: str, folder: str) -> None:
        self.kept.append((run_id, folder, path))


class WandbRun:
    """Weights & Biases'."""

    id, summary = "r1", {}

    def __init__(self) -> None:
        self.artifacts: list[Any] = []

    def log_artifact(self, artifact: Any) -> None:
        self.artifacts.append(artifact)


def test_verdict_and_recording_go_to_every_tracker_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    recording = tmp_path / "rank00000.vram"
    recording.write_bytes(b"recording")
    writer, client, run = Writer(), Client(), WandbRun()
    loggers = [
        SimpleNamespace(experiment=writer),
        SimpleNamespace(experiment=client, run_id="m1"),
        SimpleNamespace(experiment=run),
        SimpleNamespace(experiment=SimpleNamespace()),  # a logger of another kind
    ]
    loop = LoopMonitor(0, interval=60.0)
    loop.stepped(1)
    loop.end(lambda: handles_of_loggers(loggers), failure(recording))
    ((name, text, step),) = writer.texts
    assert (name, step) == ("memory/out_of_memory", 1)
    assert "the verdict" in text
    assert client.kept[0][:2] == ("m1", "vramlens/out_of_memory.txt")
    assert client.kept[1] == ("m1", "vramlens", str(recording))
    (artifact,) = run.artifacts
    assert set(artifact.manifest.entries) == {"out_of_memory.txt", "rank00000.vram"}


def test_a_function_of_the_programs_own_gets_both_and_other_errors_are_nobodys() -> None:
    told: list[tuple[str, str | None]] = []
    writer = Writer()
    loop = LoopMonitor(0, on_oom=lambda verdict, path: told.append((verdict, path)))
    loop.failed(failure(), lambda: [writer])
    assert told == [("CUDA out of memory. Tried to allocate 2.00 GiB.", None)]
    loop.failed(ValueError("no"), lambda: [writer])
    assert len(told) == 1
    LoopMonitor(0, on_oom=False).failed(failure(), lambda: [writer])
    assert writer.texts == []
    assert verdict_in(KeyError("x")) is None


def test_a_tracker_that_fails_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Writer):
        def add_text(self, name: str, text: str, step: int) -> None:
            raise OSError("no network")

    fine = Writer()
    keep([Broken(), fine], "out_of_memory", "verdict", [], 3)
    assert len(fine.texts) == 1
    assert "no network" in capsys.readouterr().err


def test_no_tracker_is_asked_where_nothing_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    class Broken:
        @property
        def experiment(self) -> Any:
            asked.append("experiment")
            raise OSError("no server")

    writer = Writer()
    loggers = [Broken(), SimpleNamespace(experiment=writer)]

    def trackers() -> list[object]:
        return handles_of_loggers(loggers)

    LoopMonitor(0, interval=60.0).end(trackers)
    LoopMonitor(0, interval=60.0).end(trackers, ValueError("no"))
    LoopMonitor(0, interval=60.0, on_oom=False).end(trackers, failure())
    assert asked == []
    LoopMonitor(0, interval=60.0).end(trackers, failure())
    assert asked == ["experiment"]
    assert len(writer.texts) == 1  # the logger behind the broken one
    assert "no server" in capsys.readouterr().err


def test_nothing_is_imported_to_find_the_trackers_of_this_process() -> None:
    before = set(sys.modules)
    list(handles_of_process())
    assert "mlflow" in before or "mlflow" not in sys.modules


class Store(dict[str, str]):
    """A process group's store."""

    def set(self, key: str, entry: str) -> None:
        self[key] = entry

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self[key].encode() for key in keys]


def test_rank_0_logs_the_peaks_of_all_ranks_once_all_have_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()

    def group(rank: int) -> Any:
        return SimpleNamespace(
            get_rank=lambda: rank,
            get_world_size=lambda: 3,
            distributed_c10d=SimpleNamespace(_get_default_store=lambda: store),
        )

    def told(rank: int, gib: int) -> dict[str, float]:
        monkeypatch.setattr(loop_monitor, "initialized_group", lambda: group(rank))
        return loop_monitor.peaks_of_ranks(gib << 30)

    assert told(0, 4) == {}  # the others have told nothing yet, and are not waited for
    assert told(2, 9) == told(1, 5) == {}
    assert told(0, 4) == {
        "memory/rank_peak_max_gib": 9,
        "memory/rank_peak_min_gib": 4,
        "memory/worst_rank": 2,
    }


def test_a_callback_finds_the_list_that_it_is_called_from() -> None:
    class Handler:
        def __init__(self, callbacks: list[Any]) -> None:
            self.callbacks = callbacks

        def call_event(self) -> list[Any]:
            return [callback() for callback in self.callbacks]

    found: list[Any] = []

    class Callback:
        def __call__(self) -> None:
            found.append(_callbacks_beside(self))

    handler = Handler([Callback(), Callback()])
    handler.call_event()
    assert all(callbacks is handler.callbacks for callbacks in found)
    Callback()()
    assert found[-1] is None


def test_an_uncaught_error_is_heard_and_printed_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: printed.append(error))
    before, heard = sys.excepthook, []
    listener = UncaughtError(heard.append)
    listener.begin()
    error = failure()
    sys.excepthook(type(error), error, None)
    assert heard == printed == [error]
    listener.end()
    assert sys.excepthook is before
