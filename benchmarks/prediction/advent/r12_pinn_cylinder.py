"""Inverse problem with a physics-informed network: recover viscosity and pressure of unsteady flow from sparse velocity data."""
import argparse
import csv
import logging
import math
import os
import tempfile

import torch
import torch.nn as nn
from torch.autograd import grad

log = logging.getLogger("pinn")


class FourierEmbedding(nn.Module):
    def __init__(self, din, n, scale):
        super().__init__()
        self.register_buffer("B", torch.randn(din, n) * scale)

    def forward(self, x):
        p = x @ self.B
        return torch.cat([p.sin(), p.cos()], -1)


class ModifiedMLP(nn.Module):
    """Two gating encoders mixed into every hidden layer."""

    def __init__(self, din=3, dout=3, width=256, depth=6, features=96, scale=1.5):
        super().__init__()
        self.embed = FourierEmbedding(din, features, scale)
        d = 2 * features
        self.u, self.v = nn.Linear(d, width), nn.Linear(d, width)
        self.first = nn.Linear(d, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth - 1))
        self.last = nn.Linear(width, dout)
        self.slope = nn.Parameter(torch.ones(depth))
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        e = self.embed(x)
        U, V = torch.tanh(self.u(e)), torch.tanh(self.v(e))
        h = torch.tanh(self.slope[0] * self.first(e))
        for i, l in enumerate(self.hidden, 1):
            z = torch.tanh(self.slope[i] * l(h))
            h = z * U + (1 - z) * V
        return self.last(h)


class TaylorGreen:
    """Decaying vortex used as ground truth; nu is hidden from the solver."""

    def __init__(self, nu=0.02, k=2.0):
        self.nu, self.k = nu, k

    def __call__(self, x):
        t, X, Y = (x * torch.tensor([1.0, math.pi, math.pi], device=x.device)).unbind(-1)
        dec = torch.exp(-2 * self.nu * (self.k * math.pi) ** 2 * t / math.pi ** 2)
        u = -torch.cos(self.k * X / 2) * torch.sin(self.k * Y / 2) * dec
        v = torch.sin(self.k * X / 2) * torch.cos(self.k * Y / 2) * dec
        p = -0.25 * (torch.cos(self.k * X) + torch.cos(self.k * Y)) * dec ** 2
        return torch.stack([u, v, p], -1)


class NavierStokes(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.log_nu = nn.Parameter(torch.tensor(math.log(0.1)))

    def residual(self, pts):
        pts = pts.detach().requires_grad_(True)
        u, v, p = self.net(pts).unbind(-1)
        d = lambda f: grad(f.sum(), pts, create_graph=True)[0]
        du, dv, dp = d(u), d(v), d(p)
        uxx, uyy = d(du[:, 1])[:, 1], d(du[:, 2])[:, 2]
        vxx, vyy = d(dv[:, 1])[:, 1], d(dv[:, 2])[:, 2]
        nu = self.log_nu.exp()
        mx = du[:, 0] + u * du[:, 1] + v * du[:, 2] + dp[:, 1] - nu * (uxx + uyy)
        my = dv[:, 0] + u * dv[:, 1] + v * dv[:, 2] + dp[:, 2] - nu * (vxx + vyy)
        return mx, my, du[:, 1] + dv[:, 2]


def causal_weights(t, res, bins, eps):
    idx = (t * bins).long().clamp(max=bins - 1)
    m = torch.zeros(bins, device=t.device).index_add_(0, idx, res)
    n = torch.zeros(bins, device=t.device).index_add_(0, idx, torch.ones_like(res)).clamp(min=1)
    m = m / n
    w = torch.exp(-eps * (m.cumsum(0) - m)).detach()
    return w, m


class Problem:
    def __init__(self, a):
        self.a, self.truth = a, TaylorGreen()
        self.gen = torch.Generator().manual_seed(a.seed)
        self.model = NavierStokes(ModifiedMLP(width=a.width, depth=a.depth)).to(a.device)
        xd = self.uniform(a.sensors)
        self.xd, self.yd = xd, self.truth(xd)[:, :2] + 0.01 * torch.randn(a.sensors, 2, generator=self.gen).to(a.device)

    def uniform(self, n):
        x = torch.rand(n, 3, generator=self.gen)
        x[:, 1:] = 2 * x[:, 1:] - 1
        return x.to(self.a.device)

    def adaptive(self, n):
        """Residual-based refinement from an oversampled pool, scored in pieces."""
        pool, scores = self.uniform(4 * n), []
        for part in pool.split(self.a.pool_chunk):
            mx, my, c = self.model.residual(part)
            scores.append((mx.abs() + my.abs() + c.abs()).detach())
        s = torch.cat(scores)
        keep = torch.multinomial((s / s.mean() + 1.0).cpu(), n // 2, generator=self.gen).to(pool.device)
        return torch.cat([pool[keep], self.uniform(n - n // 2)])

    def loss(self, pts):
        mx, my, c = self.model.residual(pts)
        w, m = causal_weights(pts[:, 0], mx ** 2 + my ** 2 + c ** 2, 24, 1.0)
        data = (self.model.net(self.xd)[:, :2] - self.yd).pow(2).mean()
        return (w * m).mean() + 20.0 * data, data

    @torch.no_grad()
    def evaluate(self, n=160):
        lin = torch.linspace(-1, 1, n, device=self.a.device)
        gx, gy = torch.meshgrid(lin, lin, indexing="ij")
        errs = []
        for t in (0.1, 0.5, 0.9):
            x = torch.stack([torch.full_like(gx, t), gx, gy], -1).view(-1, 3)
            y, ref = self.model.net(x), self.truth(x)
            y[:, 2] += (ref[:, 2] - y[:, 2]).mean()
            errs.append(((y - ref).norm(dim=0) / ref.norm(dim=0)).tolist())
        return errs


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--points", type=int, default=24000)
    ap.add_argument("--pool-chunk", type=int, default=16384)
    ap.add_argument("--sensors", type=int, default=5000)
    ap.add_argument("--width", type=int, default=256)
    ap.add_argument("--depth", type=int, default=6)
    ap.add_argument("--adam", type=int, default=240)
    ap.add_argument("--resample", type=int, default=60)
    ap.add_argument("--lbfgs-rounds", type=int, default=3)
    ap.add_argument("--lbfgs-iter", type=int, default=25)
    ap.add_argument("--lbfgs-points", type=int, default=27000)
    ap.add_argument("--seed", type=int, default=17)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(a.seed)
    prob = Problem(a)
    opt = torch.optim.Adam([{"params": prob.model.net.parameters()}, {"params": [prob.model.log_nu], "lr": 5e-3}], lr=1e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.998)
    rows, pts = [], prob.uniform(a.points)
    for it in range(a.adam):
        if it and it % a.resample == 0:
            pts = prob.adaptive(a.points)
        opt.zero_grad()
        loss, data = prob.loss(pts)
        loss.backward()
        opt.step()
        sched.step()
        if it % 20 == 0:
            rows.append((it, loss.item(), data.item(), prob.model.log_nu.exp().item()))
            log.info("adam %4d loss %.3e data %.3e nu %.4f", *rows[-1])
    opt.zero_grad(set_to_none=True)
    lb = torch.optim.LBFGS(prob.model.parameters(), lr=1.0, max_iter=a.lbfgs_iter, history_size=40, line_search_fn="strong_wolfe")
    for r in range(a.lbfgs_rounds):
        pts = prob.adaptive(a.lbfgs_points)

        def closure():
            lb.zero_grad()
            value, _ = prob.loss(pts)
            value.backward()
            return value

        rows.append((a.adam + r, lb.step(closure).item(), float("nan"), prob.model.log_nu.exp().item()))
        log.info("lbfgs round %d loss %.3e nu %.4f", r, rows[-1][1], rows[-1][3])
    for t, e in zip((0.1, 0.5, 0.9), prob.evaluate()):
        log.info("t=%.1f relative error u %.3f v %.3f p %.3f", t, *e)
    with open(os.path.join(tempfile.mkdtemp(), "trace.csv"), "w", newline="") as fh:
        csv.writer(fh).writerows([("it", "loss", "data", "nu"), *rows])


if __name__ == "__main__":
    main()
