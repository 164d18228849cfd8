"""TensorBoard, Weights & Biases and MLflow, with the real libraries; what was logged is read
back.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vramlens.errors import UsageError
from vramlens.monitor import Monitor
from vramlens.monitor.monitor_samples import DeviceSample, Sample
from vramlens.monitor.summary import Extremes

GIB = 1 << 30


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Monitor:
    """A monitor that has seen a GPU."""
    one = Monitor(60)
    device = DeviceSample(0, "H100", 80 * GIB, 60 * GIB, 3 * GIB, 4 * GIB, 5 * GIB, 0, 0)
    one.latest = Sample(1, 7, (device,), 2 * GIB, 64 * GIB, 32 * GIB, GIB)
    one._extremes[0] = Extremes(device)
    return one


def test_tensorboard_files_read_back(monitor: Monitor, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TensorBoard itself
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        from vramlens.integrations.tensorboard import TensorBoardMemory

        tracker = TensorBoardMemory(monitor, tmp_path)
        for step in (10, 20):
            tracker.log(step)
        tracker.finish()
        events = EventAccumulator(str(tmp_path))
        events.Reload()
    tags = events.Tags()
    assert len(tags["scalars"]) <= 10
    assert [(one.step, one.value) for one in events.Scalars("memory/allocated_gib")] == [
        (10, 3.0),
        (20, 3.0),
    ]
    assert "memory/summary/text_summary" in tags["tensors"]


def test_tensorboard_beside_the_programs_own_writer(monitor: Monitor, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    from vramlens.integrations.tensorboard import TensorBoardMemory

    with SummaryWriter(tmp_path) as writer:
        tracker = TensorBoardMemory(monitor, writer)
        tracker.log(1)
        tracker.finish()
        writer.add_scalar("loss", 1.0, 2)  # still open


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    wandb = pytest.importorskip("wandb")
    for name, text in {
        "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true", "WANDB_CACHE_DIR": str(tmp_path),
        "WANDB_DATA_DIR": str(tmp_path), "WANDB_CONFIG_DIR": str(tmp_path), "WANDB_ERROR_REPORTING": "false",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, text)
    yield wandb
    wandb.teardown()  # where the test did not get so far


def test_wandb_offline(monitor: Monitor, offline: Any, tmp_path: Path) -> None:
    from vramlens.integrations.wandb import WandbMemory

    with pytest.raises(UsageError, match=r"call wandb.init\(\) first"):
        WandbMemory(monitor)
    run = offline.init(
        project="vramlens-test", settings=offline.Settings(console="off", x_disable_stats=True)
    )
    tracker = WandbMemory(monitor)
    tracker.log()
    assert run.step == 0  # the program's steps stay its own
    run.log({"loss": 1.0})
    assert run.step == 1
    tracker.log(step=5)
    report = tmp_path / "report.html"
    report.write_text("<p>report</p>")
    tracker.finish([report])
    assert run.summary["memory/gpu0_peak_allocated_bytes"] == 3 * GIB
    folder = Path(run.dir).parent
    run.finish()
    offline.teardown()  # until then not all of it need be in the file
    logged = read_back(next(folder.glob("*.wandb")))
    assert {"memory/allocated_gib", "loss"} <= set(logged[0])
    assert json.loads(logged[0]["memory/allocated_gib"]) == 3.0
    assert json.loads(logged[0]["loss"]) == 1.0
    assert json.loads(logged[-1]["memory/allocated_gib"]) == 3.0


def read_back(path: Path) -> list[dict[str, str]]:
    """The history in an offline run's file: records in blocks of 32 KiB, as LevelDB's log has
    them, behind 7 bytes.
    """
    from wandb.proto import wandb_internal_pb2

    data, rows, whole, at = path.read_bytes(), [], b"", 7
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                rows.append(
                    {
                        item.key or "/".join(item.nested_key): item.value_json
                        for item in record.history.item
                    }
                )
    return rows


@pytest.mark.filterwarnings("ignore")
def test_mlflow(monitor: Monitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, "true")
    mlflow = pytest.importorskip("mlflow")
    from vramlens.integrations.mlflow import MlflowMemory

    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with pytest.raises(UsageError, match=r"call mlflow.start_run\(\) first"):
        MlflowMemory(monitor)
    recording = tmp_path / "run.vram"
    recording.write_bytes(b"recording")
    with mlflow.start_run() as run:
        tracker = MlflowMemory(monitor)
        tracker.log(10)
        tracker.log(20)
        tracker.finish([recording])
    client = mlflow.MlflowClient()
    history = client.get_metric_history(run.info.run_id, "memory/allocated_gib")
    assert [(one.step, one.value) for one in history] == [(10, 3.0), (20, 3.0)]
    assert len(client.get_run(run.info.run_id).data.metrics) <= 10
    kept = {one.path for one in client.list_artifacts(run.info.run_id, "vramlens")}
    assert kept == {"vramlens/run.vram", "vramlens/summary.json"}
