# WGAN-GP on 64x64 "faces" (synthetic blobs). Plain script, run it and look at the numbers.
import os
import random
from itertools import chain

import torch
import torch.nn as nn
import torch.nn.functional as F

tiny = os.environ.get("TINY") == "1"
scale = float(os.environ.get("SCALE", "1"))
torch.manual_seed(0)
random.seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"

BATCH = max(1, round((4 if tiny else 32) * scale))
ITERS = 6 if tiny else 18
N_CRITIC = 2 if tiny else 3
ZDIM = 128
NGF = 8 if tiny else 48
NDF = 8 if tiny else 48
LAMBDA = 10.0
HISTORY_P = 0.3     # share of the critic's fakes which come from earlier generators


class GBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.n1, self.c1 = nn.BatchNorm2d(i), nn.Conv2d(i, o, 3, 1, 1)
        self.n2, self.c2 = nn.BatchNorm2d(o), nn.Conv2d(o, o, 3, 1, 1)
        self.skip = nn.Conv2d(i, o, 1)

    def forward(self, x):
        up = lambda t: F.interpolate(t, scale_factor=2, mode="nearest")
        h = self.c1(up(F.relu(self.n1(x))))
        h = self.c2(F.relu(self.n2(h)))
        return h + up(self.skip(x))


class DBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.c1 = nn.Conv2d(i, i, 3, 1, 1)
        self.c2 = nn.Conv2d(i, o, 3, 1, 1)
        self.skip = nn.Conv2d(i, o, 1)

    def forward(self, x):
        h = self.c2(F.silu(self.c1(F.silu(x))))
        return F.avg_pool2d(h, 2) + self.skip(F.avg_pool2d(x, 2))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(ZDIM, 8 * NGF * 4 * 4)
        self.blocks = nn.Sequential(GBlock(8 * NGF, 4 * NGF), GBlock(4 * NGF, 4 * NGF),
                                    GBlock(4 * NGF, 2 * NGF), GBlock(2 * NGF, NGF))
        self.out = nn.Sequential(nn.BatchNorm2d(NGF), nn.ReLU(), nn.Conv2d(NGF, 3, 3, 1, 1), nn.Tanh())

    def forward(self, z):
        return self.out(self.blocks(self.fc(z).view(z.size(0), -1, 4, 4)))


G = Generator().to(dev)
D = nn.Sequential(nn.Conv2d(3, NDF, 3, 1, 1), DBlock(NDF, 2 * NDF), DBlock(2 * NDF, 4 * NDF),
                  DBlock(4 * NDF, 4 * NDF), DBlock(4 * NDF, 8 * NDF), nn.SiLU(),
                  nn.Flatten(), nn.Linear(8 * NDF * 16, 1)).to(dev)
optG = torch.optim.Adam(G.parameters(), lr=1e-4, betas=(0.0, 0.9), foreach=True)
optD = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.0, 0.9), foreach=True)
print("params", sum(p.numel() for p in chain(G.parameters(), D.parameters())))


def real_batch(n):
    t = torch.linspace(-1, 1, 64, device=dev)
    cx, cy = (torch.rand(2, n, 1, 1, device=dev) - 0.5)
    rad = torch.rand(n, 1, 1, device=dev) * 0.3 + 0.3
    blob = torch.sigmoid(12 * (rad - ((t[None, None] - cx) ** 2 + (t[None, :, None] - cy) ** 2).sqrt()))
    col = torch.rand(n, 3, 1, 1, device=dev)
    return (blob[:, None] * col * 2 - 1).clamp(-1, 1)


def gradient_penalty(real, fake):
    eps = torch.rand(real.size(0), 1, 1, 1, device=dev)
    x = (eps * real + (1 - eps) * fake).requires_grad_(True)
    out = D(x)
    g, = torch.autograd.grad(out.sum(), x, create_graph=True)
    return ((g.flatten(1).norm(dim=1) - 1) ** 2).mean()


history = []        # fakes from earlier iterations, as in Shrivastava et al. (2017)

for it in range(ITERS):
    for k in range(N_CRITIC):
        real = real_batch(BATCH)
        fake = G(torch.randn(BATCH, ZDIM, device=dev))
        seen = fake.detach()
        if history:
            n_old = int(HISTORY_P * BATCH)
            seen = torch.cat([random.choice(history)[:n_old].detach(), seen[n_old:]])
        loss_real, loss_fake = D(real).mean(), D(seen).mean()
        gp = gradient_penalty(real, seen)
        loss_d = loss_fake - loss_real + LAMBDA * gp
        optD.zero_grad(set_to_none=True)
        loss_d.backward()
        optD.step()
    history.append(fake)

    for p in D.parameters():
        p.requires_grad_(False)
    loss_g = -D(G(torch.randn(BATCH, ZDIM, device=dev))).mean()
    optG.zero_grad(set_to_none=True)
    loss_g.backward()
    optG.step()
    for p in D.parameters():
        p.requires_grad_(True)

    if it % 4 == 0 or it == ITERS - 1:
        print(f"iter {it:3d}  D {loss_d.item():+.3f}  G {loss_g.item():+.3f}  gp {gp.item():.4f}  "
              f"W {(loss_real - loss_fake).item():+.3f}")

with torch.no_grad():
    drift = (history[-1] - history[0]).abs().mean()
print("drift of the generator's output over the run", round(drift.item(), 4))
print("done")
