"""FFJORD: a continuous normalizing flow fitted to a 2-d density with adaptive dopri5 and the adjoint method."""
import argparse
import math

import torch
import torch.nn as nn
from torchdiffeq import odeint_adjoint


class ConcatSquash(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.layer, self.gate, self.bias = nn.Linear(i, o), nn.Linear(1, o), nn.Linear(1, o, bias=False)

    def forward(self, t, x):
        t = t.view(1, 1)
        return self.layer(x) * self.gate(t).sigmoid() + self.bias(t)


class Dynamics(nn.Module):
    """Velocity, exact trace of its Jacobian, and kinetic energy, integrated together."""

    def __init__(self, dim, hidden, depth):
        super().__init__()
        sizes = [dim] + [hidden] * depth + [dim]
        self.layers = nn.ModuleList(ConcatSquash(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
        self.nfe = 0

    def velocity(self, t, x):
        for layer in self.layers[:-1]:
            x = layer(t, x).tanh()
        return self.layers[-1](t, x)

    def forward(self, t, state):
        self.nfe += 1
        x = state[0]
        with torch.enable_grad():
            x = x.requires_grad_(True)
            v = self.velocity(t, x)
            trace = 0.0
            for d in range(x.size(1)):
                trace = trace + torch.autograd.grad(v[:, d].sum(), x, create_graph=True)[0][:, d]
        return v, -trace[:, None], v.square().sum(1, keepdim=True)


class Flow(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.odefunc = Dynamics(2, args.hidden, args.depth)
        self.tol = args.tol

    def integrate(self, x, start, end):
        zeros = torch.zeros(x.size(0), 1, device=x.device)
        times = torch.tensor([start, end], device=x.device)
        out = odeint_adjoint(self.odefunc, (x, zeros, zeros), times, rtol=self.tol, atol=self.tol, method="dopri5",
                             adjoint_options={"norm": "seminorm"})
        return [o[-1] for o in out]

    def forward(self, x):
        z, dlogp, energy = self.integrate(x, 0.0, 1.0)
        logp = -0.5 * z.square().sum(1) - math.log(2 * math.pi) - dlogp[:, 0]
        return logp, energy.mean()

    @torch.no_grad()
    def sample(self, n, device):
        return self.integrate(torch.randn(n, 2, device=device), 1.0, 0.0)[0]


def pinwheel(n, device, arms=5):
    label = torch.randint(0, arms, (n,), device=device)
    radial = torch.randn(n, device=device) * 0.3 + 1.0
    tangent = torch.randn(n, device=device) * 0.08
    angle = 2 * math.pi * label / arms + 0.25 * torch.exp(radial)
    c, s = angle.cos(), angle.sin()
    return 2 * torch.stack([radial * c - tangent * s, radial * s + tangent * c], 1)


@torch.no_grad()
def coverage(x, y, bins=64):
    """Histogram overlap of two point clouds."""
    def hist(p):
        idx = ((p + 4) / 8 * bins).long().clamp_(0, bins - 1)
        return torch.bincount(idx[:, 0] * bins + idx[:, 1], minlength=bins * bins).float() / len(p)
    return torch.minimum(hist(x), hist(y)).sum().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--points", type=int, default=150000)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--depth", type=int, default=4)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--tol", type=float, default=1e-4)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--kinetic", type=float, default=0.02)
    args = p.parse_args()
    torch.manual_seed(9)
    device = torch.device("cuda")

    flow = Flow(args).to(device)
    opt = torch.optim.AdamW(flow.parameters(), lr=args.lr, weight_decay=1e-5)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=2)
    for step in range(args.steps):
        flow.odefunc.nfe = 0
        logp, energy = flow(pinwheel(args.points, device))
        loss = -logp.mean() + args.kinetic * energy
        forward_evals = flow.odefunc.nfe
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step(loss.item())
        print(f"step {step} nll {-logp.mean().item():.4f} energy {energy.item():.3f} nfe {forward_evals}/{flow.odefunc.nfe - forward_evals}")
        if not math.isfinite(loss.item()):
            break
    print(f"coverage {coverage(flow.sample(args.points // 2, device), pinwheel(args.points // 2, device)):.3f}")
    print(f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
