"""ResNet-50 under DDP with synchronized batch norm, after the ImageNet example."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torchvision
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group(backend="nccl")
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device(f"cuda:{local_rank}")
torch.cuda.set_device(device)
model = torchvision.models.resnet50(num_classes=1000).to(device)
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
model = DDP(model, device_ids=[local_rank], output_device=local_rank)
criterion = nn.CrossEntropyLoss().to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
for step in range(4):
    images = torch.randn(32, 3, 224, 224, device=device)
    target = torch.randint(0, 1000, (32,), device=device)
    output = model(images)
    loss = criterion(output, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    correct = (output.topk(5, 1).indices == target.view(-1, 1)).any(1).float().sum()
    dist.all_reduce(correct, op=dist.ReduceOp.SUM)
    if local_rank == 0:
        print(step, loss.item(), correct.item())
dist.destroy_process_group()
