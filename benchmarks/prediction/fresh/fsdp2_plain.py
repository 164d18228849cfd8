"""FSDP2 on a plain encoder made on the meta device, then materialized; gradient accumulation."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
with torch.device("meta"):
    layers = [nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True) for _ in range(8)]
    model = nn.Sequential(nn.Linear(256, 1024), *layers, nn.Linear(1024, 256))
for layer in layers:
    fully_shard(layer)
fully_shard(model)
model.to_empty(device="cuda")
for module in model.modules():
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(3):
    for part in range(2):
        model.set_requires_gradient_sync(part == 1)
        x = torch.randn(8, 512, 256, device="cuda")
        loss = (model(x) - x).square().mean() / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(step, loss.item())
dist.destroy_process_group()
