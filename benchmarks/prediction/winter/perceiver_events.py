"""Perceiver on event-camera streams. Cross attention is checkpointed: reentrant for the long reads, non-reentrant for
the latent stack. The remainder of the epoch is folded into the last batch, which is therefore bigger."""
import math
import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

EVENTS, LATENTS, WIDTH, CLASSES = 4096, 192, 384, 24


def fourier(x, bands=12):
    f = 2.0 ** torch.arange(bands, device=x.device) * math.pi
    a = (x.unsqueeze(-1) * f).flatten(-2)
    return torch.cat([x, a.sin(), a.cos()], -1)


class Attention(nn.Module):
    def __init__(self, q_dim, kv_dim, heads):
        super().__init__()
        self.h = heads
        self.nq, self.nk = nn.LayerNorm(q_dim), nn.LayerNorm(kv_dim)
        self.q = nn.Linear(q_dim, q_dim, bias=False)
        self.kv = nn.Linear(kv_dim, 2 * q_dim, bias=False)
        self.o = nn.Linear(q_dim, q_dim)

    def forward(self, x, ctx):
        B, N, D = x.shape
        q = self.q(self.nq(x)).view(B, N, self.h, -1).transpose(1, 2)
        k, v = self.kv(self.nk(ctx)).view(B, ctx.shape[1], 2, self.h, -1).permute(2, 0, 3, 1, 4)
        w = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        w = w.softmax(-1)
        return x + self.o((w @ v).transpose(1, 2).reshape(B, N, D))


class MLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        return x + self.net(x)


class LatentBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.att, self.mlp = Attention(d, d, heads), MLP(d)

    def forward(self, x):
        return self.mlp(self.att(x, x))


class Perceiver(nn.Module):
    def __init__(self, reads=3, depth=3):
        super().__init__()
        self.latent = nn.Parameter(torch.randn(LATENTS, WIDTH) * 0.02)
        self.embed = nn.Linear(4 + 4 * 24, 128)
        self.cross = nn.ModuleList(Attention(WIDTH, 128, 4) for _ in range(reads))
        self.stack = nn.ModuleList(nn.ModuleList(LatentBlock(WIDTH, 8) for _ in range(depth)) for _ in range(reads))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, events):
        ctx = self.embed(fourier(events))
        x = self.latent.expand(len(events), -1, -1)
        for cross, blocks in zip(self.cross, self.stack):
            if self.training:
                x = checkpoint(cross, x, ctx, use_reentrant=True)
                for b in blocks:
                    x = checkpoint(b, x, use_reentrant=False)
            else:
                x = cross(x, ctx)
                for b in blocks:
                    x = b(x)
        return self.head(x.mean(1))


def dataset(n, seed):
    """Each class is a curve in (x, y, t) that emits noisy events."""
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (n,), generator=g)
    t = torch.rand(n, EVENTS, generator=g)
    phase = label[:, None] * (2 * math.pi / CLASSES)
    xy = torch.stack([torch.sin(6 * t + phase), torch.cos((2 + label[:, None] % 5) * t + phase)], -1)
    xy = xy + 0.1 * torch.randn(xy.shape, generator=g)
    pol = (torch.rand(n, EVENTS, generator=g) < 0.5).float() * 2 - 1
    return torch.cat([xy, t.unsqueeze(-1), pol.unsqueeze(-1)], -1), label


def batches(n, size):
    """Full batches only; what is left over joins the last one."""
    order = torch.randperm(n)
    count = max(1, n // size)
    for i in range(count):
        yield order[i * size:] if i == count - 1 else order[i * size:(i + 1) * size]


def main():
    torch.manual_seed(21)
    bs = max(1, round(24 * float(os.environ.get("SCALE", "1"))))
    n = int(bs * 9.7)
    x, y = dataset(n, 3)
    xv, yv = dataset(max(1, n // 4), 4)
    model = Perceiver().to("cuda")
    opt = torch.optim.RAdam(model.parameters(), lr=3e-4)
    for epoch in range(int(os.environ.get("EPOCHS", "5"))):
        model.train()
        for i, idx in enumerate(batches(n, bs)):
            xb, yb = x[idx].to("cuda"), y[idx].to("cuda")
            loss = nn.functional.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if i % 4 == 0:
                print(f"epoch {epoch} batch {i} of {len(idx)} loss {loss.item():.4f}", flush=True)
        model.eval()
        with torch.no_grad():
            ok = sum((model(a.to("cuda")).argmax(1).cpu() == b).sum().item() for a, b in zip(xv.split(bs), yv.split(bs)))
        print(f"epoch {epoch} last batch {len(idx)}, validation accuracy {ok / len(yv):.3f}")


if __name__ == "__main__":
    main()
