"""A WaveNet-like network on raw audio: dilated 1-d convolutions, weight norm, fp16 with a scaler."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

torch.manual_seed(19)


class Layer(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.pad = dilation
        self.both = weight_norm(nn.Conv1d(width, 2 * width, 2, dilation=dilation))
        self.mix = weight_norm(nn.Conv1d(width, width, 1))

    def forward(self, x):
        a, b = self.both(F.pad(x, (self.pad, 0))).chunk(2, dim=1)
        h = self.mix(a.tanh() * b.sigmoid())
        return x + h, h


class Wave(nn.Module):
    def __init__(self, width=96, layers=10, stacks=2):
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(Layer(width, 2**i) for _ in range(stacks) for i in range(layers))
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 256, 1), nn.ReLU(), nn.Conv1d(256, 256, 1))

    def forward(self, x):
        x, total = self.first(x), 0
        for layer in self.layers:
            x, skip = layer(x)
            total = total + skip
        return self.last(total)


model = Wave().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for step in range(4):
    audio = torch.rand(8, 1, 16000, device="cuda") * 2 - 1
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(audio[..., :-1])
        loss = F.cross_entropy(logits, ((audio[:, 0, 1:] + 1) * 127.5).long())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item())
