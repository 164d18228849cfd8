"""``Monitor(loggers=[...])``: scalars to what each library hands out; and Composer's callback."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vramlens import Monitor
from vramlens.errors import UsageError


class MetricsLogger:
    """Lightning's, MLflow's and Comet's form."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], int | None]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append((metrics, step))


class Run:
    """Weights & Biases'."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], bool]] = []

    def log(self, values: dict[str, float], *, commit: bool) -> None:
        self.logged.append((values, commit))

    def log_artifact(self, artifact: object) -> None:
        """It is known by this."""


def test_scalars_go_to_every_logger_every_fifty_steps_and_at_the_end() -> None:
    metrics, run, written = MetricsLogger(), Run(), []
    calls: list[int] = []

    class Writer:
        def add_scalar(self, name: str, figure: float, step: int) -> None:
            written.append((name, step))

    loggers = [metrics, run, Writer(), lambda values, step: calls.append(step)]
    with Monitor(60.0, quiet=True, loggers=loggers) as monitor:
        for _ in range(70):
            monitor.step()
    assert [step for _, step in metrics.logged] == [50, 70]
    assert calls == [50, 70]
    assert "memory/host_rss_gib" in metrics.logged[0][0]
    assert [commit for _, commit in run.logged] == [False, False]
    assert ("memory/host_rss_gib", 70) in written


def test_a_logger_that_raises_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []

    def broken(values: dict[str, float], step: int) -> None:
        raise ConnectionError("away")

    with Monitor(60.0, quiet=True, loggers=[broken, lambda _, step: calls.append(step)]) as monitor:
        monitor.step()
    assert calls == [1]


def test_a_program_that_names_no_steps_gets_its_scalars_at_the_end() -> None:
    steps: list[int] = []
    with Monitor(60.0, quiet=True, loggers=[lambda _, step: steps.append(step)]):
        pass
    assert steps == [0]


@pytest.mark.parametrize("loggers", [[3], [object()]])
def test_what_is_no_logger_is_refused(loggers: list[object]) -> None:
    with pytest.raises(UsageError, match="log_metrics, add_scalar or log"):
        Monitor(loggers=loggers)


def test_loggers_are_a_list() -> None:
    with pytest.raises(TypeError, match="loggers"):
        Monitor(loggers="tensorboard")


def test_a_real_writer_of_lightning_is_known(tmp_path: Path) -> None:
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    logger = loggers.CSVLogger(tmp_path)
    with Monitor(60.0, quiet=True, loggers=[logger]) as monitor:
        monitor.step()
    logger.save()
    assert "memory/host_rss_gib" in next(tmp_path.rglob("metrics.csv")).read_text()


@pytest.fixture
def composer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in: Composer asks for an older PyTorch than the tests have."""
    stand_in: Any = ModuleType("composer")
    stand_in.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "composer", stand_in)
    module = importlib.import_module("vramlens.integrations.composer")
    yield module
    vars(module).pop("MemoryCallback", None)


def test_composers_callback_logs_and_ends(composer: Any) -> None:
    callback = composer.MemoryCallback(every=2, interval=60.0)
    logger = MetricsLogger()
    callback.fit_start(None, logger)
    for _ in range(5):
        callback.batch_end(None, logger)
    callback.fit_end(None, logger)
    assert len(logger.logged) == 2
    assert callback.summary.steps == 5


def test_composers_callback_tells_of_the_error_that_ends_the_program(composer: Any) -> None:
    told: list[str] = []
    callback = composer.MemoryCallback(on_oom=lambda verdict, path: told.append(verdict))
    before = sys.excepthook
    callback.fit_start(None, None)
    try:
        error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        sys.excepthook(type(error), error, None)
    finally:
        sys.excepthook = before
    assert told == ["CUDA out of memory. Tried to allocate 2.00 GiB."]
    assert callback.summary is not None
