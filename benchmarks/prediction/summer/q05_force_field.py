"""Message-passing interatomic potential: energies + forces (double backward), scatter by index_add."""
import argparse
import math

import torch
import torch.nn as nn


def ssp(x):
    return nn.functional.softplus(x) - math.log(2.0)


def radius_graph(pos, natoms, cutoff):
    """pos: (mols, natoms, 3) -> directed edges (src, dst) with indices into the flat atom list."""
    d = torch.cdist(pos, pos)
    mask = (d < cutoff) & ~torch.eye(natoms, dtype=torch.bool, device=pos.device)
    mol, i, j = mask.nonzero(as_tuple=True)
    return mol * natoms + i, mol * natoms + j


class RadialBasis(nn.Module):
    def __init__(self, n, cutoff):
        super().__init__()
        self.register_buffer("mu", torch.linspace(0, cutoff, n))
        self.gamma = n / cutoff
        self.cutoff = cutoff

    def forward(self, r):
        env = 0.5 * (torch.cos(math.pi * r / self.cutoff) + 1)
        return torch.exp(-self.gamma * (r[:, None] - self.mu) ** 2), env


class Interaction(nn.Module):
    def __init__(self, dim, rbf):
        super().__init__()
        self.filter1 = nn.Linear(rbf, dim)
        self.filter2 = nn.Linear(dim, dim)
        self.inp = nn.Linear(dim, dim, bias=False)
        self.out1 = nn.Linear(dim, dim)
        self.out2 = nn.Linear(dim, dim)
        self.vec_gate = nn.Linear(dim, dim, bias=False)

    def forward(self, h, vec, src, dst, rbf, env, unit):
        w = self.filter2(ssp(self.filter1(rbf))) * env[:, None]
        m = self.inp(h)[src] * w
        agg = torch.zeros_like(h).index_add_(0, dst, m)
        # equivariant channel: sum of gated unit vectors
        g = self.vec_gate(m)
        vec = vec.index_add(0, dst, g.unsqueeze(1) * unit.unsqueeze(-1))
        inv = (vec ** 2).sum(1)
        return h + self.out2(ssp(self.out1(agg + inv))), vec


class Potential(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(100, args.dim)
        self.basis = RadialBasis(args.rbf, args.cutoff)
        self.layers = nn.ModuleList([Interaction(args.dim, args.rbf) for _ in range(args.layers)])
        self.read1 = nn.Linear(args.dim, args.dim // 2)
        self.read2 = nn.Linear(args.dim // 2, 1)

    def forward(self, z, pos, src, dst, mol, nmol):
        delta = pos[src] - pos[dst]
        r = delta.norm(dim=-1)
        unit = delta / r[:, None]
        rbf, env = self.basis(r)
        h = self.embed(z)
        vec = h.new_zeros(h.shape[0], 3, h.shape[1])
        for layer in self.layers:
            h, vec = layer(h, vec, src, dst, rbf, env, unit)
        e_atom = self.read2(ssp(self.read1(h))).squeeze(-1)
        return torch.zeros(nmol, device=pos.device).index_add_(0, mol, e_atom)


def energy_and_forces(model, batch, create_graph):
    pos = batch["pos"].requires_grad_(True)
    e = model(batch["z"], pos, batch["src"], batch["dst"], batch["mol"], batch["nmol"])
    f = -torch.autograd.grad(e.sum(), pos, create_graph=create_graph)[0]
    return e, f


def make_batch(args, device):
    """Jittered lattice in a cubic box, so that no two atoms overlap."""
    side = math.ceil(args.atoms ** (1 / 3))
    grid = torch.stack(torch.meshgrid(*[torch.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)[: args.atoms]
    pos = grid.float() * args.spacing + 0.3 * torch.randn(args.mols, args.atoms, 3)
    src, dst = radius_graph(pos, args.atoms, args.cutoff)
    batch = dict(
        z=torch.randint(1, 20, (args.mols * args.atoms,)), pos=pos.reshape(-1, 3), src=src, dst=dst,
        mol=torch.arange(args.mols).repeat_interleave(args.atoms),
        energy=torch.randn(args.mols), force=torch.randn(args.mols * args.atoms, 3))
    batch = {k: v.to(device) for k, v in batch.items()}
    batch["nmol"] = args.mols
    return batch


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--mols", type=int, default=48)
    p.add_argument("--atoms", type=int, default=125)
    p.add_argument("--spacing", type=float, default=2.2)
    p.add_argument("--cutoff", type=float, default=5.0)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--rbf", type=int, default=50)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--force-weight", type=float, default=50.0)
    args = p.parse_args()

    torch.manual_seed(7)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Potential(args).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=5e-4, amsgrad=True)

    for step in range(args.steps):
        batch = make_batch(args, device)
        e, f = energy_and_forces(model, batch, create_graph=True)
        loss_e = ((e - batch["energy"]) / args.atoms).pow(2).mean()
        loss_f = (f - batch["force"]).pow(2).mean()
        loss = loss_e + args.force_weight * loss_f
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} edges {batch['src'].numel()} energy {loss_e.item():.4f} force {loss_f.item():.4f}")

    model.eval()
    batch = make_batch(args, device)
    _, f = energy_and_forces(model, batch, create_graph=False)
    print(f"force MAE {(f.detach() - batch['force']).abs().mean().item():.4f}")


if __name__ == "__main__":
    main()
