"""SchNet-like potential on random molecules: energies and forces (double backward), message passing with index_add."""
import argparse
import math
import os
import tempfile
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Graph:
    z: torch.Tensor
    pos: torch.Tensor
    edge: torch.Tensor
    batch: torch.Tensor
    energy: torch.Tensor
    force: torch.Tensor

    def to(self, device):
        return Graph(**{k: v.to(device) for k, v in vars(self).items()})


def pair_reference(pos, i, j):
    """Soft pair potential, whose gradient is known."""
    d = pos[j] - pos[i]
    r = d.norm(dim=-1)
    e = torch.exp(-r)
    force = torch.zeros_like(pos).index_add_(0, i, -(e / r)[:, None] * d)
    return 0.5 * e.sum(), force


class Molecules(Dataset):
    def __init__(self, n, lo, hi, cutoff, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            a = int(torch.randint(lo, hi + 1, (1,), generator=g))
            side = (a * 14.0) ** (1 / 3)
            pos = torch.rand(a, 3, generator=g) * side
            z = torch.tensor([1, 6, 7, 8])[torch.randint(0, 4, (a,), generator=g)]
            dist = torch.cdist(pos, pos)
            near = (dist < cutoff) & ~torch.eye(a, dtype=torch.bool)
            i, j = near.nonzero(as_tuple=True)
            energy, force = pair_reference(pos, i, j)
            self.items.append((z, pos, torch.stack([i, j]), energy, force))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


def collate(items):
    sizes = torch.tensor([len(it[0]) for it in items])
    offsets = torch.cumsum(sizes, 0) - sizes
    return Graph(
        z=torch.cat([it[0] for it in items]),
        pos=torch.cat([it[1] for it in items]),
        edge=torch.cat([it[2] + off for it, off in zip(items, offsets)], dim=1),
        batch=torch.repeat_interleave(torch.arange(len(items)), sizes),
        energy=torch.stack([it[3] for it in items]),
        force=torch.cat([it[4] for it in items]),
    )


def ssp(x):
    return F.softplus(x) - math.log(2.0)


class Interaction(nn.Module):
    def __init__(self, dim, n_rbf):
        super().__init__()
        self.f1, self.f2 = nn.Linear(n_rbf, dim), nn.Linear(dim, dim)
        self.lin_in = nn.Linear(dim, dim, bias=False)
        self.out1, self.out2 = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, h, rbf, envelope, src, dst):
        w = self.f2(ssp(self.f1(rbf))) * envelope
        msg = self.lin_in(h)[src] * w
        agg = torch.zeros_like(h).index_add(0, dst, msg)
        return h + self.out2(ssp(self.out1(agg)))


class SchNet(nn.Module):
    def __init__(self, dim=128, blocks=5, n_rbf=50, cutoff=5.0):
        super().__init__()
        self.cutoff = cutoff
        self.emb = nn.Embedding(20, dim)
        self.register_buffer("centers", torch.linspace(0, cutoff, n_rbf))
        self.gamma = 0.5 / float(cutoff / (n_rbf - 1)) ** 2
        self.blocks = nn.ModuleList(Interaction(dim, n_rbf) for _ in range(blocks))
        self.read = nn.Sequential(nn.Linear(dim, dim // 2), nn.Softplus(), nn.Linear(dim // 2, 1))

    def forward(self, g):
        src, dst = g.edge
        r = (g.pos[src] - g.pos[dst]).norm(dim=-1, keepdim=True)
        rbf = torch.exp(-self.gamma * (r - self.centers) ** 2)
        envelope = 0.5 * (torch.cos(math.pi * r / self.cutoff) + 1)
        h = self.emb(g.z)
        for block in self.blocks:
            h = block(h, rbf, envelope, src, dst)
        atom = self.read(h).squeeze(-1)
        return torch.zeros_like(g.energy).index_add(0, g.batch, atom)


def energy_and_force(model, g, training):
    g.pos.requires_grad_(True)
    e = model(g)
    (grad,) = torch.autograd.grad(e.sum(), g.pos, create_graph=training)
    return e, -grad


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--molecules", type=int, default=1080)
    ap.add_argument("--valid", type=int, default=180)
    ap.add_argument("--atoms", type=int, nargs=2, default=[18, 62])
    ap.add_argument("--cutoff", type=float, default=5.0)
    ap.add_argument("--batch-size", type=int, default=72)
    ap.add_argument("--epochs", type=int, default=7)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--blocks", type=int, default=5)
    ap.add_argument("--rho", type=float, default=0.95)
    args = ap.parse_args()
    torch.manual_seed(17)

    train = DataLoader(Molecules(args.molecules, *args.atoms, args.cutoff, 1), args.batch_size, shuffle=True,
                       collate_fn=collate)
    valid = DataLoader(Molecules(args.valid, *args.atoms, args.cutoff, 2), args.batch_size, collate_fn=collate)
    model = SchNet(args.dim, args.blocks, cutoff=args.cutoff).to("cuda")
    opt = torch.optim.Adam(model.parameters(), lr=5e-4, amsgrad=True)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1)
    path = os.path.join(tempfile.mkdtemp(), "schnet.pt")

    for epoch in range(args.epochs):
        model.train()
        total, edges = 0.0, 0
        for g in train:
            g = g.to("cuda")
            e, f = energy_and_force(model, g, training=True)
            loss = (1 - args.rho) * F.mse_loss(e, g.energy) + args.rho * F.mse_loss(f, g.force)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            opt.step()
            total += loss.item()
            edges = max(edges, g.edge.shape[1])
        model.eval()
        mae_e, mae_f, n = 0.0, 0.0, 0
        for g in valid:
            g = g.to("cuda")
            e, f = energy_and_force(model, g, training=False)
            mae_e += (e.detach() - g.energy).abs().sum().item()
            mae_f += (f - g.force).abs().mean().item() * len(e)
            n += len(e)
        sched.step(mae_f / n)
        print(f"epoch {epoch} loss {total / len(train):.4f} MAE E {mae_e / n:.3f} F {mae_f / n:.4f} max edges {edges}")
        torch.save(model.state_dict(), path)


if __name__ == "__main__":
    main()
