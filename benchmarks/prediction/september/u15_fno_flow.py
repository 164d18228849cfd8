"""Fourier neural operator for a 2-D advection-diffusion flow, trained through short rollouts."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def simulate(n, side, frames, device, seed, dt=0.04, nu=2e-3):
    """Random smooth scalar fields moved by a random shear and diffused, solved in Fourier space in chunks."""
    g = torch.Generator(device=device).manual_seed(seed)
    k = torch.fft.fftfreq(side, 1 / side, device=device)
    kx, ky = torch.meshgrid(k, k, indexing="ij")
    k2 = kx ** 2 + ky ** 2
    out = []
    for s in range(0, n, 20):
        b = min(20, n - s)
        noise = torch.randn(b, side, side, generator=g, device=device)
        amp = (k2 + 9.0) ** -1.5
        u = torch.fft.ifft2(torch.fft.fft2(noise) * amp).real
        u = u / u.std(dim=(1, 2), keepdim=True)
        speed = torch.randn(b, 2, 1, 1, generator=g, device=device)
        series = [u]
        uh = torch.fft.fft2(u)
        for _ in range(frames - 1):
            phase = -2j * math.pi * dt * (speed[:, 0] * kx + speed[:, 1] * ky)
            uh = uh * torch.exp(phase - nu * dt * 4 * math.pi ** 2 * k2)
            series.append(torch.fft.ifft2(uh).real)
        out.append(torch.stack(series, 1).cpu())
    return torch.cat(out)


class SpectralConv2d(nn.Module):
    def __init__(self, cin, cout, m1, m2):
        super().__init__()
        self.m1, self.m2, self.cout = m1, m2, cout
        scale = 1 / (cin * cout)
        self.w1 = nn.Parameter(scale * torch.rand(cin, cout, m1, m2, dtype=torch.cfloat))
        self.w2 = nn.Parameter(scale * torch.rand(cin, cout, m1, m2, dtype=torch.cfloat))

    def forward(self, x):
        h, w = x.shape[-2:]
        xf = torch.fft.rfft2(x, norm="ortho")
        of = torch.zeros(x.size(0), self.cout, h, w // 2 + 1, dtype=torch.cfloat, device=x.device)
        of[:, :, :self.m1, :self.m2] = torch.einsum("bixy,ioxy->boxy", xf[:, :, :self.m1, :self.m2], self.w1)
        of[:, :, -self.m1:, :self.m2] = torch.einsum("bixy,ioxy->boxy", xf[:, :, -self.m1:, :self.m2], self.w2)
        return torch.fft.irfft2(of, s=(h, w), norm="ortho")


class FNO2d(nn.Module):
    def __init__(self, cin, width, modes, layers, pad=7):
        super().__init__()
        self.pad = pad
        self.lift = nn.Conv2d(cin + 2, width, 1)
        self.spectral = nn.ModuleList(SpectralConv2d(width, width, modes, modes) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))
        self.project = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, 1, 1))

    def forward(self, x):
        b, _, h, w = x.shape
        gy = torch.linspace(0, 1, h, device=x.device).view(1, 1, h, 1).expand(b, 1, h, w)
        gx = torch.linspace(0, 1, w, device=x.device).view(1, 1, 1, w).expand(b, 1, h, w)
        x = self.lift(torch.cat([x, gy, gx], 1))
        x = F.pad(x, (0, self.pad, 0, self.pad))
        for i, (s, l) in enumerate(zip(self.spectral, self.local)):
            x = s(x) + l(x)
            if i < len(self.spectral) - 1:
                x = F.gelu(x)
        return self.project(x[..., :h, :w])


def rollout(model, history, steps):
    frames = []
    for _ in range(steps):
        nxt = history[:, -1:] + model(history)
        frames.append(nxt)
        history = torch.cat([history[:, 1:], nxt], 1)
    return torch.cat(frames, 1)


def relative_l2(pred, true):
    return ((pred - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)).mean()


@torch.no_grad()
def evaluate(model, loader, context, device):
    model.eval()
    errors = []
    for (u,) in loader:
        u = u.to(device)
        pred = rollout(model, u[:, :context], u.size(1) - context)
        errors.append(relative_l2(pred, u[:, context:]).item())
    model.train()
    return sum(errors) / len(errors)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--side", type=int, default=101)
    ap.add_argument("--frames", type=int, default=14)
    ap.add_argument("--context", type=int, default=4)
    ap.add_argument("--unroll", type=int, default=3)
    ap.add_argument("--width", type=int, default=47)
    ap.add_argument("--modes", type=int, default=18)
    ap.add_argument("--layers", type=int, default=4)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--train-size", type=int, default=240)
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    torch.manual_seed(33)
    device = torch.device("cuda")

    train_u = simulate(args.train_size, args.side, args.frames, device, 1)
    test_u = simulate(48, args.side, args.frames, device, 2)
    train = DataLoader(TensorDataset(train_u), args.batch, shuffle=True, drop_last=True)
    test = DataLoader(TensorDataset(test_u), 24)
    model = FNO2d(args.context, args.width, args.modes, args.layers).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=1e-5)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(train))

    for epoch in range(args.epochs):
        unroll = min(1 + epoch // 3, args.unroll)     # curriculum: the rollout grows
        total = 0.0
        for (u,) in train:
            start = int(torch.randint(0, args.frames - args.context - unroll + 1, (1,)))
            u = u[:, start:start + args.context + unroll].to(device)
            pred = rollout(model, u[:, :args.context], unroll)
            loss = relative_l2(pred, u[:, args.context:])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            total += loss.item()
        print(f"epoch {epoch} unroll {unroll} train {total / len(train):.4f} "
              f"test rollout {evaluate(model, test, args.context, device):.4f}", flush=True)


if __name__ == "__main__":
    main()
