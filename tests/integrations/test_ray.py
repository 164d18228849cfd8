"""Ray Train: a real trainer's function on the CPU, in this process, with and without memory
watched.

Ray's own cluster takes half a minute of processor time to start; ``ray_check.py`` does the same
with two workers of it.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from support.recordings import DATA
from vramlens import api

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")


def fitted(loop: Any) -> Any:
    """What a trainer of the real library makes of a training function."""
    pytest.importorskip("ray.train")
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    torch.manual_seed(0)
    return TorchTrainer(
        loop, train_loop_config={"steps": 6}, scaling_config=ScalingConfig(num_workers=0)
    ).fit()


def losses(model: Any, count: int) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())


def test_scalars_stand_beside_what_is_reported() -> None:
    ray_train = pytest.importorskip("ray.train")
    from vramlens.integrations.ray import RayMemory

    def plain(config: dict[str, Any]) -> None:
        found = list(losses(torch.nn.Linear(4, 1), config["steps"]))
        ray_train.report({"losses": found, "memory/host_rss_gib": -1.0})

    summaries: list[Any] = []

    def watched(config: dict[str, Any]) -> None:
        memory = RayMemory(interval=0.05)
        found = []
        for loss in losses(torch.nn.Linear(4, 1), config["steps"]):
            found.append(loss)
            memory.step()
        memory.report({"losses": found, "memory/steps_left": "mine"})
        summaries.append(memory.finish())

    before, after = fitted(plain).metrics, fitted(watched).metrics
    assert after["losses"] == before["losses"]
    assert after["memory/host_rss_gib"] > 0
    assert after["memory/steps_left"] == "mine"
    assert 2 <= len(after) <= 12
    assert summaries[0].steps == 6
    assert not [thread for thread in threading.enumerate() if thread.name == "vramlens-monitor"]


def test_a_recording_is_kept_with_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray_train = pytest.importorskip("ray.train")
    from vramlens.integrations import ray

    kept: list[str | None] = []

    def loop(config: dict[str, Any]) -> None:
        memory = ray.RayMemory()
        kept.append(memory.keep(tmp_path))
        memory.report(
            {"steps": config["steps"]},
            checkpoint=ray_train.Checkpoint.from_directory(str(tmp_path)),
        )
        memory.finish()

    if not torch.cuda.is_available():
        assert fitted(loop).metrics["steps"] == 6
        assert (kept, list(tmp_path.iterdir())) == ([None], [])
        assert capsys.readouterr().err.count("rank00000.vram: ") == 1
        monkeypatch.setattr(
            ray, "snapshot", lambda path: shutil.copy(DATA / "captured" / "gpt.vram", path)
        )
    with fitted(loop).checkpoint.as_directory() as folder:
        assert api.load(Path(folder) / "rank00000.vram").devices
    assert kept[-1] == str(tmp_path / "rank00000.vram")
