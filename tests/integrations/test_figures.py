"""Scalars, Slurm's names, the dashboard, and what is said where a package is missing."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from vramlens.errors import UsageError
from vramlens.integrations.prometheus import parse_address
from vramlens.integrations.slurm import file_name, job_id
from vramlens.monitor import Monitor
from vramlens.monitor.monitor_samples import DeviceSample, Sample
from vramlens.monitor.scalars import scalars, scalars_of

GIB = 1 << 30
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def sample(**others: int) -> Sample:
    fullest = {
        "allocated_bytes": 3 * GIB,
        "reserved_bytes": 4 * GIB,
        "peak_bytes": 5 * GIB,
        "retries": 0,
        **others,
    }
    small = DeviceSample(0, "H100", 80 * GIB, 70 * GIB, GIB, GIB, GIB, 0, 0)
    return Sample(
        1,
        7,
        (small, DeviceSample(1, "H100", 80 * GIB, 60 * GIB, **fullest)),
        2 * GIB,
        64 * GIB,
        32 * GIB,
        GIB,
    )


def test_the_scalars_are_of_the_fullest_gpu_and_ten_at_most() -> None:
    found = scalars_of(sample(growth_bytes=5 << 20, steps_left=100))
    assert found == {
        "memory/allocated_gib": 3, "memory/reserved_gib": 4, "memory/peak_allocated_gib": 5,
        "memory/device_used_gib": 20, "memory/device_free_gib": 60, "memory/growth_mib_per_step": 5,
        "memory/steps_left": 100, "memory/alloc_retries": 0, "memory/host_rss_gib": 2, "memory/host_pinned_gib": 1,
    }  # fmt: skip
    assert len(found) == 10


def test_what_is_not_known_is_left_out() -> None:
    assert scalars_of(Sample(1, 0, ())) == {}
    assert set(scalars(Monitor(60))) <= {
        "memory/host_rss_gib",
        "memory/device_used_gib",
        "memory/device_free_gib",
    }


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"SLURM_JOB_ID": "1234", "SLURM_PROCID": "3"}, "job1234-rank00003.jsonl"),
        ({"SLURM_JOB_ID": "1234"}, "job1234.jsonl"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURM_PROCID": "0"}, "job7_2-rank00000.jsonl"),
        ({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "1"}, "job1-restart1-rank00000.jsonl"),
        ({"SLURM_JOB_ID": "../x", "SLURM_PROCID": "0"}, "job..-x-rank00000.jsonl"),
    ],
)  # fmt: skip
def test_names_in_slurm(environment: dict[str, str], name: str) -> None:
    assert file_name(".jsonl", environment) == name
    assert job_id({}) is None
    assert re.fullmatch(r"pid[0-9]+\.jsonl", file_name(".jsonl", {}))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9400", ("127.0.0.1", 9400)), (":9400", ("0.0.0.0", 9400)), ("10.0.0.5:1", ("10.0.0.5", 1)),
        ("[::1]:9400", ("::1", 9400)), ("localhost:0", ("localhost", 0)),
    ],
)  # fmt: skip
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":", "host", ":99999", "a:b", "a:1:2", "1 2", ":-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("package", "use", "extra"),
    [
        ("prometheus_client", "prometheus.serve(0)", "prometheus"),
        ("opentelemetry.metrics", "opentelemetry.instrument()", "otel"),
        ("tensorboard", "tensorboard.TensorBoardMemory(None, '/nowhere')", "tensorboard"),
        ("wandb", "wandb.WandbMemory(None)", "wandb"),
        ("mlflow", "mlflow.MlflowMemory(None)", "mlflow"),
        ("lightning.pytorch", "lightning.MemoryCallback()", "lightning"),
        ("transformers", "transformers.MemoryCallback()", "transformers"),
    ],
)
def test_a_missing_package_has_its_extra_named(
    monkeypatch: pytest.MonkeyPatch, package: str, use: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("pytorch_lightning", "prometheus_client.core"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    name, call = use.split(".", 1)
    module = importlib.import_module(f"vramlens.integrations.{name}")
    monkeypatch.delitem(vars(module), "MemoryCallback", raising=False)
    with pytest.raises(UsageError, match=rf"pip install 'vramlens\[{extra}\]'"):
        eval(f"module.{call}")


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    """As Grafana checks it on loading: ids, places, targets; and each name is one that the
    exporter has.
    """
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert board["schemaVersion"] >= 36
    assert board["title"]
    assert "id" not in board or board["id"] is None  # else it would replace another
    assert [one["name"] for one in board["__inputs"]] == ["DS_PROMETHEUS"]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    expressions = [
        variable["query"]["query"]
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["datasource"]["uid"] == "${DS_PROMETHEUS}"
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
        expressions += [target["expr"] for target in panel["targets"]]
    asked = {name for text in expressions for name in re.findall(r"vramlens_[a-z_]+", text)}
    source = (Path(__file__).parents[2] / "src/vramlens/integrations/prometheus.py").read_text(
        encoding="utf-8"
    )
    for name in asked:
        assert name.removeprefix("vramlens_").removesuffix("_total") in source, name
