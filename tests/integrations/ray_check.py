"""Ray Train with a cluster of its own on this machine: two workers, their scalars, recordings and
checkpoint. By hand.

    python tests/integrations/ray_check.py            # on a machine with a GPU or two, or without

CI runs test_ray.py, which needs no cluster: starting one takes half a minute of processor time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
RECORDING = Path(__file__).parents[1] / "data" / "captured" / "gpt.vram"
STEPS = 6


def train(config: dict[str, Any]) -> None:
    """Runs in each worker."""
    import ray.train
    import ray.train.torch
    import torch

    from vramlens.capture.recording.session import current_session
    from vramlens.integrations import ray as hook

    memory = hook.RayMemory(config["folder"], interval=0.05)
    session = current_session()
    assert session is not None
    assert session.recorder.places.main() == f"{config['folder']}/rank{memory.rank:05d}.vram"
    model = ray.train.torch.prepare_model(torch.nn.Linear(1024, 1024))
    device = ray.train.torch.get_device()
    if (
        device.type == "cpu"
    ):  # nothing to record there: the file's way through Ray is shown by another one
        hook.snapshot = lambda path: shutil.copy(config["recording"], path)
    for _ in range(STEPS):
        model(torch.randn(64, 1024, device=device)).square().mean().backward()
        memory.step()
    with tempfile.TemporaryDirectory() as folder:
        path = memory.keep(folder)
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        memory.report(
            {"rank": memory.rank, "kept": os.path.basename(path or "")}, checkpoint=checkpoint
        )
    assert memory.finish().steps == STEPS


def main() -> None:
    """Starts Ray, trains, and looks at what came out."""
    import ray
    import torch
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from vramlens.api import load
    from vramlens.integrations.ray import RayMemory

    try:
        RayMemory()
    except RuntimeError as error:
        print(f"outside of a training function: {error}")
    else:
        sys.exit("outside of a training function nothing was refused")
    gpus = torch.cuda.device_count()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20
        )
        trainer = TorchTrainer(
            train,
            train_loop_config={"folder": f"{folder}/runs", "recording": str(RECORDING)},
            scaling_config=ScalingConfig(
                num_workers=max(1, gpus) if gpus else 2,
                use_gpu=bool(gpus),
                resources_per_worker={"CPU": 0.5, **({"GPU": 1} if gpus else {})},
            ),
            run_config=RunConfig(storage_path=folder, name="check"),
        )
        result = trainer.fit()
        metrics, checkpoint = result.metrics or {}, result.checkpoint
        assert metrics["rank"] == 0, metrics
        assert metrics["memory/host_rss_gib"] > 0, metrics
        assert checkpoint is not None
        with checkpoint.as_directory() as kept:
            names = sorted(os.listdir(kept))
            events = [
                sum(len(one.events) for one in load(Path(kept) / name).devices.values())
                for name in names
            ]
        assert names == [f"rank{rank:05d}.vram" for rank in range(max(1, gpus) if gpus else 2)], (
            names
        )
        ray.shutdown()
    print(f"kept with the checkpoint: {', '.join(names)} ({events} events); reported: {metrics}")
    print(f"{gpus} GPUs, ray {ray.__version__}: {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
