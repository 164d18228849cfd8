"""A ConvNeXt as in timm: depth-wise convolutions, layer scale, stochastic depth, mixup, cosine schedule, EMA."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    def __init__(self, width, drop):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.gamma = nn.Parameter(1e-6 * torch.ones(width))
        self.drop = drop

    def forward(self, x):
        y = (self.gamma * self.mlp(self.norm(self.conv(x).permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)
        if self.training and self.drop:
            keep = torch.rand(len(x), 1, 1, 1, device=x.device) > self.drop
            y = y * keep / (1 - self.drop)
        return x + y


class ConvNeXt(nn.Module):
    def __init__(self, depths=(2, 2, 2), widths=(32, 64, 128), classes=10):
        super().__init__()
        stages = [nn.Conv2d(3, widths[0], 4, 4), LayerNorm2d(widths[0])]
        for number, (depth, width) in enumerate(zip(depths, widths)):
            if number:
                stages += [LayerNorm2d(widths[number - 1]), nn.Conv2d(widths[number - 1], width, 2, 2)]
            stages += [Block(width, 0.1 * number) for _ in range(depth)]
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(widths[-1], classes)

    def forward(self, x):
        return self.head(self.stages(x).mean((-2, -1)))


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = ConvNeXt().to(device)
average = copy.deepcopy(model).requires_grad_(False)
decay = [weight for weight in model.parameters() if weight.ndim > 1]
plain = [weight for weight in model.parameters() if weight.ndim <= 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / 8)))
for step in range(4):
    images, labels = torch.randn(16, 3, 64, 64, device=device), torch.randint(0, 10, (16,), device=device)
    share, order = torch.distributions.Beta(0.8, 0.8).sample().item(), torch.randperm(16, device=device)
    mixed = share * images + (1 - share) * images[order]
    targets = share * F.one_hot(labels, 10) + (1 - share) * F.one_hot(labels[order], 10)
    loss = F.cross_entropy(model(mixed), targets, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    schedule.step()
    with torch.no_grad():
        for kept, weight in zip(average.parameters(), model.parameters()):
            kept.lerp_(weight, 0.001)
average.eval()
with torch.inference_mode():
    top = average(torch.randn(32, 3, 64, 64, device=device)).topk(5, dim=-1).indices
    print(loss.item(), top.shape)
