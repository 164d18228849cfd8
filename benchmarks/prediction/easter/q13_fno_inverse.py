"""Fourier neural operator for 2D advection-diffusion-reaction: rolled-out training, then an inverse problem by L-BFGS.

The reference is a pseudo-spectral solver on the same odd grid. fp32 throughout, TF32 off.
"""
import argparse
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


class SpectralConv(nn.Module):
    def __init__(self, width, m1, m2):
        super().__init__()
        self.m1, self.m2 = m1, m2
        self.low = nn.Parameter(torch.randn(width, width, m1, m2, dtype=torch.cfloat) / width)
        self.high = nn.Parameter(torch.randn(width, width, m1, m2, dtype=torch.cfloat) / width)

    def forward(self, x):
        f = torch.fft.rfft2(x, norm="ortho")
        out = torch.zeros_like(f)
        out[:, :, : self.m1, : self.m2] = torch.einsum("bixy,ioxy->boxy", f[:, :, : self.m1, : self.m2], self.low)
        out[:, :, -self.m1:, : self.m2] = torch.einsum("bixy,ioxy->boxy", f[:, :, -self.m1:, : self.m2], self.high)
        return torch.fft.irfft2(out, s=x.shape[-2:], norm="ortho")


class FNO(nn.Module):
    def __init__(self, width, m1, m2, layers):
        super().__init__()
        self.lift = nn.Sequential(nn.Conv2d(3, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1))
        self.spectral = nn.ModuleList(SpectralConv(width, m1, m2) for _ in range(layers))
        self.skip = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))
        self.project = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, 1, 1))

    def forward(self, u):
        b, _, h, w = u.shape
        gy = torch.linspace(0, 1, h, device=u.device).view(1, 1, h, 1).expand(b, 1, h, w)
        gx = torch.linspace(0, 1, w, device=u.device).view(1, 1, 1, w).expand(b, 1, h, w)
        x = self.lift(torch.cat([u, gy, gx], 1))
        for i, (s, k) in enumerate(zip(self.spectral, self.skip)):
            x = s(x) + k(x)
            if i < len(self.spectral) - 1:
                x = F.gelu(x)
        return u + self.project(x)


class Solver:
    """du/dt + c.grad u = nu lap u + r u (1 - u^2), periodic; exponential integrator."""

    def __init__(self, h, w, device, nu=2e-3, c=(0.6, -0.4), dt=5e-3):
        ky = 2 * math.pi * torch.fft.fftfreq(h, 1 / h, device=device)[:, None]
        kx = 2 * math.pi * torch.fft.rfftfreq(w, 1 / w, device=device)[None]
        self.factor = torch.exp(dt * (-nu * (ky ** 2 + kx ** 2) - 1j * (c[0] * ky + c[1] * kx)))
        self.damp = (1 + 0.01 * (ky ** 2 + kx ** 2)) ** -1.5
        self.dt, self.shape, self.device = dt, (h, w), device

    def start(self, n):
        z = torch.fft.rfft2(torch.randn(n, 1, *self.shape, device=self.device))
        u = torch.fft.irfft2(z * self.damp, s=self.shape)
        return 0.8 * u / u.std(dim=(-1, -2), keepdim=True)

    def advance(self, u, steps=10):
        for _ in range(steps):
            u = u + self.dt * 2.0 * u * (1 - u ** 2)
            u = torch.fft.irfft2(torch.fft.rfft2(u) * self.factor, s=self.shape)
        return u

    def trajectory(self, n, frames):
        out = [self.start(n)]
        for _ in range(frames):
            out.append(self.advance(out[-1]))
        return torch.cat(out, 1)


def relative(pred, true):
    return ((pred - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)).mean()


def sobolev(pred, true):
    d = pred - true
    grad = lambda z: torch.cat([z - z.roll(1, -1), z - z.roll(1, -2)], 1)
    return relative(pred, true) + 0.3 * grad(d).flatten(1).norm(dim=1).mean() / grad(true).flatten(1).norm(dim=1).mean()


def rollout(model, u, frames):
    out = []
    for _ in range(frames):
        u = model(u)
        out.append(u)
    return torch.cat(out, 1)


def invert(model, solver, args):
    """Find the first frame from scattered observations of the last one."""
    truth = solver.trajectory(args.inverse_batch, args.frames + 1)
    seen = torch.rand_like(truth[:, -1:]) < 0.15
    target = truth[:, -1:] * seen
    u0 = torch.zeros_like(truth[:, :1]).requires_grad_()
    opt = torch.optim.LBFGS([u0], lr=0.8, max_iter=8, history_size=20, line_search_fn="strong_wolfe")

    def closure():
        opt.zero_grad()
        last = rollout(model, u0, args.frames + 1)[:, -1:]
        smooth = (u0 - u0.roll(1, -1)).pow(2).mean() + (u0 - u0.roll(1, -2)).pow(2).mean()
        loss = ((last - truth[:, -1:]) * seen).pow(2).sum() / target.pow(2).sum() + 0.01 * smooth
        loss.backward()
        return loss

    for outer in range(args.inverse_steps):
        print(f"inverse {outer} misfit {opt.step(closure).item():.4f} error {relative(u0.detach(), truth[:, :1]).item():.4f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--grid", type=int, nargs=2, default=[90, 110])
    p.add_argument("--width", type=int, default=44)
    p.add_argument("--modes", type=int, nargs=2, default=[20, 22])
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--batch", type=int, default=22)
    p.add_argument("--frames", type=int, default=4)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--inverse-batch", type=int, default=6)
    p.add_argument("--inverse-steps", type=int, default=3)
    args = p.parse_args()
    torch.manual_seed(21)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False

    solver = Solver(*args.grid, "cuda")
    model = FNO(args.width, *args.modes, args.layers).to("cuda")
    opt = torch.optim.Adam(model.parameters(), args.lr, weight_decay=1e-5)
    sched = torch.optim.lr_scheduler.StepLR(opt, max(args.steps // 3, 1), 0.5)
    for step in range(args.steps):
        data = solver.trajectory(args.batch, args.frames)
        frames = args.frames if step > args.steps // 4 else 2                     # longer rollouts later
        pred = rollout(model, data[:, :1], frames)
        loss = sum(sobolev(pred[:, i:i + 1], data[:, i + 1:i + 2]) for i in range(frames)) / frames
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step} frames {frames} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")

    model.eval()
    with torch.no_grad():
        fine = Solver(2 * args.grid[0], 2 * args.grid[1], "cuda")
        for name, s in (("same grid", solver), ("finer grid", fine)):
            data = s.trajectory(10, 8)
            print(name, f"error over 8 frames {relative(rollout(model, data[:, :1], 8), data[:, 1:]).item():.4f}")
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), os.path.join(folder, "fno.pt"))
    model.requires_grad_(False)
    invert(model, solver, args)


if __name__ == "__main__":
    main()
