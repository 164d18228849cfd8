"""Ranks: a torchrun script, predicted alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
MIB = 2**20
WEIGHTS = 64 * MIB
PROGRAM = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
rank = int(os.environ["RANK"])
dist.init_process_group("nccl")
assert dist.get_world_size() == int(os.environ["WORLD_SIZE"]) == 4
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device("cuda", torch.cuda.current_device())
layers = [nn.Linear(1024, 1024, bias=False) for _ in range(16)]
model = nn.Sequential(*layers).to(device)
if "ddp" in sys.argv:
    model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
else:
    from torch.distributed.fsdp import fully_shard
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(8, 1024, device=device)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
counts = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(4)]
dist.all_gather(counts, torch.tensor([7], device=device))
assert sum(int(count) for count in counts) == 28
names = [None] * 4
dist.all_gather_object(names, "rank")
assert names == ["rank"] * 4
dist.barrier()
dist.destroy_process_group()
"""


def peak_of(folder: Path, *words: str) -> dict[str, Any]:
    script = folder / "train.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "vramlens", "predict", "--json", "--world-size", "4"]
    command += ["--rank", "2", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_ddp_holds_a_bucket_beside_every_gradient(tmp_path: Path) -> None:
    answer = peak_of(tmp_path, "ddp")
    allocated = answer["peak"]["allocated_bytes"]
    workspaces = 64 * MIB  # two handles of cuBLAS
    least = 3 * WEIGHTS + workspaces  # weights, gradients, buckets
    assert least <= allocated <= least + 10 * MIB


def test_fsdp_holds_its_share_and_the_layers_that_are_gathered(tmp_path: Path) -> None:
    allocated = peak_of(tmp_path, "fsdp")["peak"]["allocated_bytes"]
    # A quarter of weights and gradients, the last layers gathered, two handles of cuBLAS.
    assert allocated < 2 * WEIGHTS / 4 + 64 * MIB + 8 * 4 * MIB


def test_ranks_without_a_world_size_are_refused_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.distributed.init_process_group('nccl')\n")
    command = [sys.executable, "-m", "vramlens", "predict", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 3
    assert "--world-size" in done.stderr
    assert not done.stdout
