"""Jobs for two or four real GPUs, clean and with one known cause; run by hand with
``gpu_check.py``, never in CI.

torchrun --nproc-per-node 4 --no-python vramlens run -o FOLDER gpu_jobs.py NAME
"""

from __future__ import annotations

import datetime
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

NAME = sys.argv[1]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WIDTH, STEPS = 1024, 6


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(8192, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 8192)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(size: int) -> torch.Tensor:
    return torch.randint(0, 8192, (size, 256), device="cuda")


def train(model: nn.Module, size: int = 8, after=None) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for step in range(STEPS):
        tokens = batch(size)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after(step, loss)


def wrapped() -> nn.Module:
    return nn.parallel.DistributedDataParallel(Model().cuda())


def sharded() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = Model().cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def tensor_parallel() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (WORLD,), mesh_dim_names=("tp",))
    model = Model().cuda()
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def pipeline(layers: list[int]) -> None:
    first = sum(layers[:RANK])
    blocks = nn.ModuleList(Block() for _ in range(first, first + layers[RANK])).cuda()
    optimizer = torch.optim.AdamW(blocks.parameters(), foreach=False)
    for _ in range(STEPS):
        x = torch.randn(16, 256, WIDTH, device="cuda")
        if RANK:
            dist.recv(x, RANK - 1)
        x.requires_grad_()
        y = x
        for block in blocks:
            y = block(y)
        if RANK < WORLD - 1:
            dist.send(y.detach(), RANK + 1)
        y.float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp() -> None:
    train(wrapped())


def ddp_uneven() -> None:
    train(wrapped(), size=12 if WORLD - 1 == RANK else 8)


def ddp_leak() -> None:
    kept = []

    def keep(step: int, loss: torch.Tensor) -> None:
        if RANK == 1:
            kept.append(torch.full((3_000_000,), float(step), device="cuda"))

    train(wrapped(), after=keep)


def ddp_gather() -> None:
    kept = []

    def gather(step: int, loss: torch.Tensor) -> None:
        predictions = torch.randn(4 << 20, device="cuda")
        received = [torch.empty_like(predictions) for _ in range(WORLD)] if RANK == 0 else None
        dist.gather(predictions, received, dst=0)
        if RANK == 0:
            kept.append(received)

    train(wrapped(), after=gather)


def fsdp() -> None:
    train(sharded())


def fsdp_extra() -> None:
    model = sharded()
    copies = [torch.zeros(20 << 20, device="cuda")] if RANK == 1 else []
    train(model)
    del copies


def tp() -> None:
    train(tensor_parallel())


def tp_uneven() -> None:
    model = tensor_parallel()
    extra = torch.zeros(30 << 20, device="cuda") if RANK == 0 else None
    train(model)
    del extra


def pp() -> None:
    pipeline([4] * WORLD)


def pp_uneven() -> None:
    pipeline([8] + [4] * (WORLD - 1))


def wrong_device() -> None:
    train(wrapped())


def hang() -> None:
    """The last rank leaves a collective out; the others wait until the watchdog writes the
    flight records.
    """
    x = torch.ones(1 << 20, device="cuda")
    for number in range(8):
        if number == 5 and RANK == WORLD - 1:
            continue
        dist.all_reduce(x)
    torch.cuda.synchronize()


def oom_one() -> None:
    if RANK == 1:
        torch.cuda.set_per_process_memory_fraction(0.02)
    train(wrapped(), size=64 if RANK == 1 else 8)


def raise_one() -> None:
    """Rank 1 raises while the others wait in a collective, in which torchrun's SIGTERM finds
    them.
    """

    def after(step: int, _loss: torch.Tensor) -> None:
        if step == 2 and RANK == 1:
            raise ValueError("bad batch")

    train(wrapped(), after=after)


if NAME == "wrong_device":
    lost = torch.zeros(32 << 20, device="cuda:0")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group(
    "nccl", timeout=datetime.timedelta(seconds=15 if NAME in ("hang", "oom_one") else 300)
)
globals()[NAME]()
torch.cuda.synchronize()
dist.destroy_process_group()
