"""Equivariant interatomic potential (PaiNN-type) on periodic cells: energies, forces and stress; then a short NVE run."""
import argparse
import logging
import math

import numpy as np
import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.utils import scatter

logging.basicConfig(level=logging.INFO, format="%(levelname).1s %(message)s")
log = logging.getLogger("potential")
SPECIES = (1, 6, 8, 14)


def neighbours(pos, cell, rc):
    """Minimum-image neighbour list for an orthorhombic cell (host side, numpy)."""
    d = pos[None] - pos[:, None]
    shift = -np.round(d / cell)
    d = d + shift * cell
    i, j = np.nonzero((np.linalg.norm(d, axis=-1) < rc) & ~np.eye(len(pos), dtype=bool))
    return np.stack([i, j]), shift[i, j] * cell


def reference(pos, ei, sh, z):
    """Smooth pairwise reference used as label."""
    r = pos[ei[1]] - pos[ei[0]] + sh
    d = np.linalg.norm(r, axis=-1)
    s = 1.6 + 0.05 * (z[ei[0]] + z[ei[1]])
    x = np.exp(-(d - s))
    f = np.zeros_like(pos)
    np.add.at(f, ei[0], (0.4 * (x - x ** 2) / d)[:, None] * r)
    return 0.5 * (0.2 * (x ** 2 - 2 * x)).sum(), f


def make_cell(rng, lo, hi, rc):
    n = int(rng.integers(lo, hi + 1))
    side = (n / 0.085) ** (1 / 3)
    cell = side * rng.uniform(0.95, 1.05, 3)
    m = math.ceil(n ** (1 / 3))
    grid = np.stack(np.meshgrid(*[np.arange(m)] * 3, indexing="ij"), -1).reshape(-1, 3)[:n]
    pos = (grid + 0.5) / m * cell + rng.normal(0, 0.12, (n, 3))
    z = rng.integers(0, len(SPECIES), n)
    ei, sh = neighbours(pos, cell, rc)
    e, f = reference(pos, ei, sh, z)
    t = lambda a: torch.tensor(a, dtype=torch.float32)
    return Data(z=torch.tensor(z), pos=t(pos), edge_index=torch.tensor(ei), shift=t(sh), y=t([e]), forces=t(f), cell=t(cell)[None])


class Radial(nn.Module):
    def __init__(self, n, rc):
        super().__init__()
        self.register_buffer("k", torch.arange(1, n + 1) * math.pi / rc)
        self.rc = rc

    def forward(self, d):
        env = 0.5 * (torch.cos(d * math.pi / self.rc) + 1) * (d < self.rc)
        return torch.sin(d * self.k) / d, env


class Message(nn.Module):
    def __init__(self, h, nrbf):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 3 * h))
        self.w = nn.Linear(nrbf, 3 * h)
        self.h = h

    def forward(self, s, v, ei, rbf, env, unit):
        dst, src = ei
        x = self.phi(s)[src] * (self.w(rbf) * env)
        ds, dv, dr = x.split(self.h, -1)
        vec = v[src] * dv[:, None] + unit[..., None] * dr[:, None]
        return s + scatter(ds, dst, 0, s.size(0)), v + scatter(vec, dst, 0, s.size(0))


class UpdateBlock(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.uv = nn.Linear(h, 2 * h, bias=False)
        self.net = nn.Sequential(nn.Linear(2 * h, h), nn.SiLU(), nn.Linear(h, 3 * h))

    def forward(self, s, v):
        U, V = self.uv(v).chunk(2, -1)
        a, b, c = self.net(torch.cat([s, (V.pow(2).sum(1) + 1e-8).sqrt()], -1)).chunk(3, -1)
        return s + a + b * (U * V).sum(1), v + U * c[:, None]


class Potential(nn.Module):
    def __init__(self, h=128, layers=4, nrbf=20, rc=5.0):
        super().__init__()
        self.emb = nn.Embedding(len(SPECIES), h)
        self.rad = Radial(nrbf, rc)
        self.msg = nn.ModuleList(Message(h, nrbf) for _ in range(layers))
        self.upd = nn.ModuleList(UpdateBlock(h) for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(h, h // 2), nn.SiLU(), nn.Linear(h // 2, 1))

    def energy(self, z, pos, ei, shift, batch, n, strain=None):
        vec = pos[ei[1]] - pos[ei[0]] + shift
        if strain is not None:
            sym = 0.5 * (strain + strain.transpose(1, 2))
            vec = vec + torch.einsum("ei,eij->ej", vec, sym[batch[ei[0]]])
        d = vec.norm(dim=-1, keepdim=True)
        rbf, env = self.rad(d)
        s = self.emb(z)
        v = s.new_zeros(s.size(0), 3, s.size(1))
        for m, u in zip(self.msg, self.upd):
            s, v = u(*m(s, v, ei, rbf, env, vec / d))
        return scatter(self.out(s).squeeze(-1), batch, 0, n)

    def forward(self, b, stress=True):
        pos = b.pos.requires_grad_(True)
        strain = torch.zeros(b.num_graphs, 3, 3, device=pos.device, requires_grad=True)
        e = self.energy(b.z, pos, b.edge_index, b.shift, b.batch, b.num_graphs, strain if stress else None)
        inputs = (pos, strain) if stress else (pos,)
        g = torch.autograd.grad(e.sum(), inputs, create_graph=self.training)
        vir = g[1] / b.cell.prod(1)[:, None, None] if stress else None
        return e, -g[0], vir


def run_md(model, d, steps, dt, rc, device, rebuild=10):
    model.eval()
    pos, vel = d.pos.numpy().astype(np.float64), np.zeros((d.num_nodes, 3))
    batch = torch.zeros(d.num_nodes, dtype=torch.long, device=device)
    cell, trace = d.cell[0].numpy(), []
    z = d.z.to(device)

    def force(p):
        q = torch.tensor(p, dtype=torch.float32, device=device, requires_grad=True)
        e = model.energy(z, q, ei, sh, batch, 1)
        (g,) = torch.autograd.grad(e.sum(), q)
        return e.item(), -g.cpu().numpy().astype(np.float64)

    for t in range(steps):
        if t % rebuild == 0:
            e_np, s_np = neighbours(pos, cell, rc)
            ei, sh = torch.tensor(e_np, device=device), torch.tensor(s_np, dtype=torch.float32, device=device)
            e, f = force(pos)
        vel += 0.5 * dt * f
        pos = pos + dt * vel
        e, f = force(pos)
        vel += 0.5 * dt * f
        trace.append(e + 0.5 * (vel ** 2).sum())
    return trace


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--cells", type=int, default=420)
    ap.add_argument("--atoms", type=int, nargs=2, default=(60, 110))
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--hidden", type=int, default=128)
    ap.add_argument("--layers", type=int, default=4)
    ap.add_argument("--rc", type=float, default=5.0)
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--md-atoms", type=int, default=1331)
    ap.add_argument("--md-steps", type=int, default=60)
    a = ap.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    cells = [make_cell(rng, *a.atoms, a.rc) for _ in range(a.cells)]
    mean = torch.stack([c.y / c.num_nodes for c in cells]).mean()
    for c in cells:
        c.y = c.y - mean * c.num_nodes
    cut = int(0.85 * len(cells))
    train = DataLoader(cells[:cut], a.batch, shuffle=True, generator=torch.Generator().manual_seed(1))
    valid = DataLoader(cells[cut:], 2 * a.batch)
    model = Potential(a.hidden, a.layers, rc=a.rc).to(a.device)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    opt = torch.optim.Adam(model.parameters(), lr=5e-4, amsgrad=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.epochs)
    log.info("%d cells, mean degree %.1f", len(cells), np.mean([c.num_edges / c.num_nodes for c in cells]))
    for ep in range(a.epochs):
        model.train()
        hist = []
        for b in train:
            b = b.to(a.device)
            e, f, vir = model(b)
            n = torch.bincount(b.batch, minlength=b.num_graphs)
            loss = ((e - b.y) / n).abs().mean() + 20 * (f - b.forces).norm(dim=-1).mean() + 1e-3 * vir.pow(2).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            opt.step()
            ema.update_parameters(model)
            hist.append(loss.item())
        sched.step()
        ema.eval()
        err = []
        for b in valid:
            b = b.to(a.device)
            _, f, _ = ema.module(b, stress=False)
            err.append((f - b.forces).abs().mean().item())
        log.info("epoch %d train %.4f valid force MAE %.4f", ep, sum(hist) / len(hist), sum(err) / len(err))
    big = make_cell(np.random.default_rng(5), a.md_atoms, a.md_atoms, a.rc)
    trace = run_md(ema.module, big, a.md_steps, 0.01, a.rc, a.device)
    log.info("NVE drift over %d steps: %.5f", len(trace), trace[-1] - trace[0])


if __name__ == "__main__":
    main()
