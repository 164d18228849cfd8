"""On a GPU, by hand: python tests/live/gpu_leaks.py OUT_FOLDER. The watch, the headroom, and
owners.json by address.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch

import vramlens
from vramlens.capture.recording.session import RecordingPlan
from vramlens.program import begin_watch


class Trainer:
    def __init__(self) -> None:
        self.model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.history: list[Any] = []

    def step(self) -> None:
        loss = self.model(torch.randn(512, 1024, device="cuda")).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.history.append(self.model(torch.randn(512, 1024, device="cuda")))


def main(folder: Path) -> None:
    path = folder / "leaks.vram"
    begin_watch(RecordingPlan(output=str(path), leaks=True, program="gpu_leaks"))
    trainer = Trainer()
    watch = vramlens.LeakWatch()
    for _ in range(12):
        trainer.step()
        watch.step()
    before = torch.cuda.memory_stats()["allocated_bytes.all.current"]
    report = watch.report()
    print(report)
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == before
    (leak,) = report.found
    assert leak.owner is not None
    assert leak.owner.name == "Trainer.history"
    assert report.headroom_bytes
    assert vramlens.snapshot(path) is not None
    with zipfile.ZipFile(path) as archive:
        owners = json.loads(archive.read("owners.json"))
    addresses = {row[1]: row for row in owners["storages"]["rows"]}
    for tensor in trainer.history:
        row = addresses[tensor.untyped_storage().data_ptr()]
        assert owners["owners"][row[3]]["name"] == "Trainer.history"
    print("joined by address:", len(trainer.history), "of", len(trainer.history))
    allocated, cap = torch.cuda.memory_allocated(), torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (allocated + (256 << 20)) / cap))
    try:
        while True:
            trainer.step()
    except torch.OutOfMemoryError as error:
        caught = error
    print(vramlens.release(caught))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
