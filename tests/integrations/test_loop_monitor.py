"""Lightning, Hugging Face's Trainer and Accelerate: real loops on the CPU, with and without
memory watched.
"""

from __future__ import annotations

import csv
import pickle
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vramlens.capture import warn
from vramlens.errors import UsageError
from vramlens.integrations.shared.loop_monitor import LoopMonitor

torch = pytest.importorskip("torch")


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from vramlens.integrations.lightning import MemoryCallback

    class Model(lightning.LightningModule):
        def __init__(self, fails_at: int | None = None) -> None:
            super().__init__()
            self.layer, self.fails_at, self.losses = torch.nn.Linear(4, 1), fails_at, []

        def training_step(self, batch: Any, index: int) -> Any:
            if index == self.fails_at:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            loss = self.layer(batch).square().mean()
            self.losses.append(float(loss))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    from lightning.pytorch.loggers import CSVLogger

    def fitted(callbacks: list[Any], fails_at: int | None = None) -> Any:
        torch.manual_seed(0)
        model = Model(fails_at)
        data = torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=2)
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, logger=CSVLogger(tmp_path), callbacks=callbacks, log_every_n_steps=1,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(model, data)
        return model, trainer

    plain, _ = fitted([])
    callback = MemoryCallback(every=5, interval=0.05)
    spawned = pickle.loads(pickle.dumps(callback))  # as launchers that spawn do
    assert (type(spawned), spawned.monitor.interval) == (MemoryCallback, 0.05)
    assert spawned.monitor is spawned._loop.monitor
    watched, trainer = fitted([callback])
    assert watched.losses == plain.losses
    assert callback.summary.steps == 12
    with open(Path(trainer.logger.log_dir, "metrics.csv"), encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["memory/host_rss_gib"]] == ["5", "10"]
    assert not monitor_threads()
    failing = MemoryCallback(every=0, interval=0.05)
    with pytest.raises(torch.OutOfMemoryError):
        fitted([failing], fails_at=3)
    assert failing.summary.steps == 3
    assert not monitor_threads()


@pytest.mark.filterwarnings("ignore")
def test_lightning_counts_batches_and_a_logger_that_fails_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightning.pytorch")
    from vramlens.integrations.lightning import MemoryCallback

    monkeypatch.setattr(warn, "_said", set())
    logged: list[int] = []

    class Logger:
        def log_metrics(self, values: Any, step: int) -> None:
            logged.append(step)
            raise OSError("no network")

    callback = MemoryCallback(every=4)
    for batch in range(
        12
    ):  # gradients accumulate over four batches: the trainer's step stands still
        trainer = SimpleNamespace(
            global_step=(batch + 1) // 4, is_global_zero=True, loggers=[Logger()]
        )
        callback.on_train_batch_end(trainer, None)
    assert logged == [1, 2, 3]
    assert capsys.readouterr().err.count("no network") == 1


def test_lightning_ends_whatever_its_loggers_do(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning.pytorch")
    from vramlens.integrations.lightning import MemoryCallback

    class Trainer:
        @property
        def loggers(self) -> Any:
            raise OSError("no loggers")

    for options, error in (
        ({"on_oom": False}, torch.OutOfMemoryError("CUDA out of memory.")),
        ({}, torch.OutOfMemoryError("CUDA out of memory.")),
        ({}, ValueError("no")),
    ):
        callback = MemoryCallback(0, interval=60.0, **options)
        callback.on_fit_start(None, None)
        callback.on_exception(Trainer(), None, error)
        assert callback.summary is not None
        assert not monitor_threads()


def test_every_rank_of_transformers_leaves_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from vramlens.integrations.transformers import MemoryCallback

    for is_first in (True, False):
        callback, asked = MemoryCallback(interval=60.0), []
        monkeypatch.setattr(
            callback._loop, "scalars", lambda asked=asked: asked.append(1) or {"memory/x": 1.0}
        )
        logs: dict[str, float] = {}
        state = SimpleNamespace(is_world_process_zero=is_first)
        callback.on_log(None, state, None, logs=logs)
        assert asked == [1]
        assert logs == ({"memory/x": 1.0} if is_first else {})


def monitor_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "vramlens-monitor"]


class Regression(torch.nn.Module):
    """One layer, as a Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


def trainer_of(folder: Path, callbacks: list[Any], report_to: Any = ()) -> Any:
    """A Trainer with six steps to do."""
    import transformers

    torch.manual_seed(0)
    data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(12)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=6, per_device_train_batch_size=2, logging_steps=2, report_to=list(report_to),
        save_strategy="no", use_cpu=True, disable_tqdm=True, seed=0,
    )  # fmt: skip
    return transformers.Trainer(Regression(), arguments, train_dataset=data, callbacks=callbacks)


@pytest.mark.filterwarnings("ignore")
def test_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from vramlens.integrations.transformers import MemoryCallback

    def trained(callbacks: list[Any]) -> list[dict[str, float]]:
        trainer = trainer_of(tmp_path, callbacks)
        trainer.train()
        return trainer.state.log_history

    plain = trained([])
    callback = MemoryCallback(interval=0.05)
    watched = trained([callback])
    losses = [[row["loss"] for row in rows if "loss" in row] for rows in (plain, watched)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
    assert callback.summary.steps == 6
    assert not monitor_threads()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wired", ["watch", "callbacks"])
def test_what_a_trainer_reports_has_the_scalars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wired: str
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from vramlens.integrations.transformers import MemoryCallback, watch

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    callback = MemoryCallback(interval=0.05)
    own_callbacks = [callback] if wired == "callbacks" else []
    trainer = trainer_of(tmp_path, own_callbacks, report_to=["tensorboard"])
    if wired == "watch":
        callback = watch(trainer, interval=0.05)
    trainer.train()
    assert callback.summary.steps == 6
    found: dict[str, list[int]] = {}
    for folder in {path.parent for path in (tmp_path / "logs").rglob("events.*")}:
        events = EventAccumulator(str(folder))
        events.Reload()
        found |= {
            tag: [one.step for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]
        }
    mine = {tag for tag in found if "memory/" in tag}
    assert 1 <= len(mine) <= 10
    assert found["train/memory/host_rss_gib"] == found["train/loss"] + [
        6
    ]  # and the trainer's last log


@pytest.mark.filterwarnings("ignore")
def test_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.tracking import GeneralTracker

    from vramlens.integrations.accelerate import AcceleratorMemory

    class Tracker(GeneralTracker):
        name, requires_logging_directory = "kept", False
        tracker = None

        def __init__(self) -> None:
            super().__init__()
            self.rows: list[tuple[int, dict[str, float]]] = []

        def store_init_configuration(self, values: Any) -> None: ...

        def log(self, values: dict[str, float], step: int | None = None, **_others: Any) -> None:
            self.rows.append((step or 0, values))

    tracker = Tracker()
    accelerator = accelerate.Accelerator(cpu=True, log_with=tracker, gradient_accumulation_steps=2)
    accelerator.init_trackers("vramlens")
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    memory = AcceleratorMemory(accelerator, every=2, interval=0.05)
    for _ in range(8):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.randn(2, 4)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            memory.step()
    found = memory.finish()
    assert found.steps == 4  # two batches are one step
    assert [step for step, _ in tracker.rows] == [2, 4]
    assert all("memory/host_rss_gib" in values and len(values) <= 10 for _, values in tracker.rows)
    assert not monitor_threads()


def test_how_often_is_checked() -> None:
    with pytest.raises(UsageError, match="every=-1"):
        LoopMonitor(-1)
