import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

# Glow: actnorm, invertible 1x1 convolution, affine coupling, multi-scale; trained on textures, then sampled.
STEPS = int(os.environ.get("STEPS", "80"))
BATCH = max(2, round(96 * float(os.environ.get("SCALE", "1"))))


class ActNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.shift, self.log_scale = nn.Parameter(torch.zeros(1, c, 1, 1)), nn.Parameter(torch.zeros(1, c, 1, 1))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(-x.mean((0, 2, 3), keepdim=True))
                self.log_scale.copy_(-(x.std((0, 2, 3), keepdim=True) + 1e-6).log())
                self.ready.fill_(True)
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum() * x.shape[2] * x.shape[3]

    def inverse(self, y):
        return y * (-self.log_scale).exp() - self.shift


class InvConv(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(c, c))[0].contiguous())

    def forward(self, x):
        logdet = torch.linalg.slogdet(self.weight)[1] * x.shape[2] * x.shape[3]
        return F.conv2d(x, self.weight[:, :, None, None]), logdet

    def inverse(self, y):
        return F.conv2d(y, torch.linalg.inv(self.weight)[:, :, None, None])


class Coupling(nn.Module):
    def __init__(self, c, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(c // 2, hidden, 3, padding=1), nn.ReLU(), nn.Conv2d(hidden, hidden, 1), nn.ReLU(),
                                 nn.Conv2d(hidden, c, 3, padding=1))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def params(self, a):
        t, s = self.net(a).chunk(2, 1)
        return t, torch.sigmoid(s + 2)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        t, s = self.params(a)
        return torch.cat([a, (b + t) * s], 1), s.log().sum((1, 2, 3))

    def inverse(self, y):
        a, b = y.chunk(2, 1)
        t, s = self.params(a)
        return torch.cat([a, b / s - t], 1)


class Step(nn.Module):
    def __init__(self, c, hidden):
        super().__init__()
        self.parts = nn.ModuleList([ActNorm(c), InvConv(c), Coupling(c, hidden)])

    def forward(self, x):
        total = 0.0
        for p in self.parts:
            x, ld = p(x)
            total = total + ld
        return x, total

    def inverse(self, y):
        for p in reversed(self.parts):
            y = p.inverse(y)
        return y


class Glow(nn.Module):
    def __init__(self, size=32, levels=3, depth=8, hidden=320):
        super().__init__()
        self.levels, self.shapes = nn.ModuleList(), []
        c = 3
        for i in range(levels):
            c, size = 4 * c, size // 2
            self.levels.append(nn.ModuleList(Step(c, hidden) for _ in range(depth)))
            if i < levels - 1:
                c //= 2
            self.shapes.append((c, size, size))

    def forward(self, x):
        logdet, zs = x.new_zeros(len(x)), []
        for i, level in enumerate(self.levels):
            x = F.pixel_unshuffle(x, 2)
            for step in level:
                x, ld = step(x)
                logdet = logdet + ld
            if i < len(self.levels) - 1:
                x, z = x.chunk(2, 1)
                zs.append(z)
        return zs + [x], logdet

    @torch.no_grad()
    def sample(self, n, temperature, device):
        zs = [temperature * torch.randn(n, *s, device=device) for s in self.shapes]
        x = zs.pop()
        for i, level in enumerate(reversed(self.levels)):
            if i:
                x = torch.cat([x, zs.pop()], 1)
            for step in reversed(level):
                x = step.inverse(x)
            x = F.pixel_shuffle(x, 2)
        return x


def textures(n):
    g = torch.Generator().manual_seed(6)
    yy, xx = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    f, th, ph = (torch.rand(n, 3, 1, 1, generator=g) for _ in range(3))
    img = torch.sin((0.2 + f) * (xx * torch.cos(6 * th[:, :1]) + yy * torch.sin(6 * th[:, :1])) + 6 * ph)
    return ((img + 1) * 127.5).round().to(torch.uint8)


def bits_per_dim(model, x):
    x = (x.float() + torch.rand(x.shape, device=x.device)) / 256 - 0.5
    zs, logdet = model(x)
    logp = sum(-0.5 * (z.pow(2) + math.log(2 * math.pi)).sum((1, 2, 3)) for z in zs)
    dims = x[0].numel()
    return (-(logp + logdet) / (dims * math.log(2)) + 8).mean()


torch.manual_seed(6)
loader = DataLoader(TensorDataset(textures(BATCH * 20)), batch_size=BATCH, shuffle=True, drop_last=True, pin_memory=torch.cuda.is_available())
model = Glow().to("cuda")
opt = torch.optim.Adamax(model.parameters(), lr=1e-3)
print("parameters", sum(p.numel() for p in model.parameters()))
step = 0
while step < STEPS:
    for (x,) in loader:
        loss = bits_per_dim(model, x.to("cuda", non_blocking=True))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 50)
        opt.step()
        if step % 8 == 0:
            print(f"step {step} bits/dim {loss.item():.3f}", flush=True)
        step += 1
        if step >= STEPS:
            break
images = model.sample(4 * BATCH, 0.7, "cuda")
print("sampled", tuple(images.shape), "std", round(images.std().item(), 3))
