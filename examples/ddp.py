"""Data-parallel training, set up and cleaned up as it should be: one process a GPU, or two on a
CPU.

    torchrun --nproc-per-node 2 examples/ddp.py
    torchrun --nproc-per-node 8 --no-python vramlens run -o runs/ examples/ddp.py

What is often missing in recipes: ``set_device`` *before* the process group (else every rank makes a
context on GPU 0, hundreds of MiB each), a timeout, ``set_epoch`` (else all epochs see one order),
and ``destroy_process_group`` in ``finally`` (else a failure on one rank leaves the others waiting).
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 2


def set_up() -> torch.device:
    """Joins the job; the device of this rank."""
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    # device_id ties the group to this GPU, so that NCCL does not have to guess it.
    options = {"device_id": device} if has_gpu else {}
    dist.init_process_group("nccl" if has_gpu else "gloo", timeout=timedelta(minutes=2), **options)
    return device


def train(device: torch.device) -> float:
    """Trains for some epochs; the last loss, averaged over the ranks."""
    torch.manual_seed(0)  # the same model on every rank
    model = DistributedDataParallel(
        nn.Linear(16, 1).to(device), device_ids=[device.index] if device.index is not None else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(64, 16)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    loss = torch.zeros((), device=device)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for features, target in loader:
            loss = nn.functional.mse_loss(model(features.to(device)), target.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean, op=dist.ReduceOp.SUM)
    return mean.item() / dist.get_world_size()


def main() -> None:
    """Sets up, trains, cleans up."""
    device = set_up()
    try:
        loss = train(device)
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks on {device.type}, loss {loss:.3f}")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
