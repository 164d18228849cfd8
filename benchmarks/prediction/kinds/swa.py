"""Stochastic weight averaging: averaged weights, their schedule, and batch norm made anew."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda:0")
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(64, 10),
).to(device)
data = TensorDataset(torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,)))
loader = DataLoader(data, batch_size=32, shuffle=True, pin_memory=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
average, schedule = AveragedModel(model), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
averaging = SWALR(optimizer, swa_lr=0.05)
for epoch in range(3):
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    if epoch > 0:
        average.update_parameters(model)
        averaging.step()
    else:
        schedule.step()
update_bn(loader, average, device=device)
correct = 0
average.eval()
with torch.no_grad():
    for images, labels in loader:
        correct += (average(images.to(device)).argmax(1) == labels.to(device)).sum().item()
print(correct / len(data))
