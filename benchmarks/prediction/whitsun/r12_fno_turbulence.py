"""Neural operator for 2-D decaying turbulence: simulate with a pseudo-spectral solver, then learn by unrolled training."""
import argparse
import logging
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("fno")


class VorticitySolver:
    """Navier-Stokes in vorticity form on a periodic square, RK4 in time, 2/3 de-aliasing."""

    def __init__(self, n, viscosity, device):
        k = torch.fft.fftfreq(n, 1.0 / n, device=device)
        self.kx, self.ky = k[:, None], torch.fft.rfftfreq(n, 1.0 / n, device=device)[None, :]
        self.k2 = self.kx ** 2 + self.ky ** 2
        self.inv = torch.where(self.k2 > 0, 1.0 / self.k2.clamp(min=1), torch.zeros_like(self.k2))
        self.keep = ((self.kx.abs() < n / 3) & (self.ky.abs() < n / 3)).float()
        self.nu, self.n = viscosity, n

    def rhs(self, wh):
        psi = wh * self.inv
        back = lambda z: torch.fft.irfft2(z, s=(self.n, self.n))
        u, v = back(1j * self.ky * psi), back(-1j * self.kx * psi)
        wx, wy = back(1j * self.kx * wh), back(1j * self.ky * wh)
        return -torch.fft.rfft2(u * wx + v * wy) * self.keep - self.nu * self.k2 * wh

    def step(self, wh, dt):
        a = self.rhs(wh)
        b = self.rhs(wh + 0.5 * dt * a)
        c = self.rhs(wh + 0.5 * dt * b)
        d = self.rhs(wh + dt * c)
        return wh + dt / 6 * (a + 2 * b + 2 * c + d)

    def initial(self, batch, gen):
        noise = torch.randn(batch, self.n, self.n, device=self.k2.device, generator=gen)
        spec = torch.fft.rfft2(noise) * torch.exp(-((self.k2.sqrt() - 5) / 2.5) ** 2) * self.keep
        w = torch.fft.irfft2(spec, s=(self.n, self.n))
        return torch.fft.rfft2(4 * w / w.std(dim=(1, 2), keepdim=True))

    def trajectories(self, batch, snaps, inner, dt, gen):
        wh, out = self.initial(batch, gen), []
        for _ in range(snaps):
            out.append(torch.fft.irfft2(wh, s=(self.n, self.n)))
            for _ in range(inner):
                wh = self.step(wh, dt)
        return torch.stack(out, 1)


class SpectralConv(nn.Module):
    def __init__(self, c, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2, c, c, modes, modes, dtype=torch.cfloat) / c)

    def forward(self, x):
        h, w = x.shape[-2:]
        m = self.modes
        spec = torch.fft.rfft2(x, norm="ortho")
        out = torch.zeros_like(spec)
        out[..., :m, :m] = torch.einsum("bixy,ioxy->boxy", spec[..., :m, :m], self.weight[0])
        out[..., -m:, :m] = torch.einsum("bixy,ioxy->boxy", spec[..., -m:, :m], self.weight[1])
        return torch.fft.irfft2(out, s=(h, w), norm="ortho")


class FNO(nn.Module):
    def __init__(self, history, width, modes, depth):
        super().__init__()
        self.lift = nn.Conv2d(history + 2, width, 1)
        self.spec = nn.ModuleList(SpectralConv(width, modes) for _ in range(depth))
        self.mix = nn.ModuleList(nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1)) for _ in range(depth))
        self.skip = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.proj = nn.Sequential(nn.Conv2d(width, 96, 1), nn.GELU(), nn.Conv2d(96, 1, 1))

    def forward(self, x):
        b, _, h, w = x.shape
        grid = torch.stack(torch.meshgrid(torch.linspace(0, 1, h, device=x.device), torch.linspace(0, 1, w, device=x.device), indexing="ij"))
        y = self.lift(torch.cat([x, grid.expand(b, -1, -1, -1)], 1))
        for spec, mix, skip in zip(self.spec, self.mix, self.skip):
            y = y + mix(F.gelu(spec(y) + skip(y)))
        return x[:, -1:] + self.proj(y)


def relative_l2(pred, true):
    return ((pred - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)).mean()


def unroll(model, seq, history, steps):
    state, loss = seq[:, :history], 0.0
    for t in range(steps):
        nxt = model(state)
        loss = loss + relative_l2(nxt, seq[:, history + t:history + t + 1])
        state = torch.cat([state[:, 1:], nxt], 1)
    return loss / steps


def fit(model, data, args, gen):
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    total = sum(args.iters)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)
    for horizon, iters in zip(args.horizons, args.iters):
        for i in range(iters):
            ids = torch.randint(len(data), (args.batch,), device=data.device, generator=gen)
            start = int(torch.randint(data.shape[1] - args.history - horizon + 1, (1,)))
            seq = data[ids, start:start + args.history + horizon]
            if i % 2:
                seq = seq.transpose(-1, -2).neg()
            loss = unroll(model, seq, args.history, horizon)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            if i % 20 == 0:
                log.info("horizon %d iter %d rel-l2 %.4f", horizon, i, loss.item())


@torch.no_grad()
def forecast(model, test, history):
    state, errs = test[:, :history], []
    for t in range(history, test.shape[1]):
        nxt = model(state)
        errs.append(relative_l2(nxt, test[:, t:t + 1]).item())
        state = torch.cat([state[:, 1:], nxt], 1)
    log.info("forecast error %s", " ".join(f"{e:.3f}" for e in errs))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--grid", type=int, default=112)
    ap.add_argument("--fine", type=int, default=2, help="solver resolution relative to the learning grid")
    ap.add_argument("--trajectories", type=int, default=160)
    ap.add_argument("--sim-batch", type=int, default=40)
    ap.add_argument("--snaps", type=int, default=14)
    ap.add_argument("--inner", type=int, default=20)
    ap.add_argument("--history", type=int, default=3)
    ap.add_argument("--width", type=int, default=42)
    ap.add_argument("--modes", type=int, default=18)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--horizons", type=int, nargs="+", default=[1, 3, 5])
    ap.add_argument("--iters", type=int, nargs="+", default=[250, 300, 320])
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    torch.manual_seed(31)
    device = torch.device(args.device)
    gen = torch.Generator(device).manual_seed(31)
    solver = VorticitySolver(args.grid * args.fine, 1e-3, device)
    dt = 0.02 * 2 * math.pi / 64
    parts = []
    with torch.no_grad():
        for lo in range(0, args.trajectories, args.sim_batch):
            fine = solver.trajectories(min(args.sim_batch, args.trajectories - lo), args.snaps, args.inner, dt, gen)
            parts.append(F.avg_pool2d(fine, args.fine))
    data = torch.cat(parts)
    data = data / data.std()
    log.info("simulated %s", tuple(data.shape))
    hold = max(2, len(data) // 10)
    model = FNO(args.history, args.width, args.modes, args.depth).to(device)
    fit(model, data[hold:], args, gen)
    forecast(model, data[:hold], args.history)


if __name__ == "__main__":
    main()
