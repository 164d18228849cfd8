"""Continuous normalizing flow (FFJORD) for tabular density estimation with torchdiffeq.

Training back-propagates through a fixed-step RK4 solve; the first epoch may use the adjoint instead; evaluation is adaptive.
"""
import argparse
import math
import os
import tempfile
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torchdiffeq import odeint, odeint_adjoint


class ConcatSquash(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.lin = nn.Linear(cin, cout)
        self.gate = nn.Linear(1, cout)
        self.bias = nn.Linear(1, cout, bias=False)

    def forward(self, t, x):
        t = t.reshape(1, 1)
        return self.lin(x) * torch.sigmoid(self.gate(t)) + self.bias(t)


class Dynamics(nn.Module):
    def __init__(self, dim, hidden, depth):
        super().__init__()
        dims = [dim] + [hidden] * depth + [dim]
        self.layers = nn.ModuleList(ConcatSquash(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.noise = None
        self.calls = 0

    def velocity(self, t, z):
        for i, layer in enumerate(self.layers):
            z = layer(t, z)
            if i < len(self.layers) - 1:
                z = nn.functional.softplus(z)
        return z

    def forward(self, t, state):
        z = state[0]
        self.calls += 1
        with torch.enable_grad():
            z = z.requires_grad_(True) if z.is_leaf else z
            dz = self.velocity(t, z)
            vjp = torch.autograd.grad(dz, z, self.noise, create_graph=True)[0]
            div = (vjp * self.noise).sum(1, keepdim=True)
        return dz, -div


class Flow(nn.Module):
    def __init__(self, dim, hidden, depth, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(Dynamics(dim, hidden, depth) for _ in range(blocks))

    def log_prob(self, x, solver):
        logdet = torch.zeros(len(x), 1, device=x.device)
        span = torch.tensor([0.0, 1.0], device=x.device)
        for block in self.blocks:
            block.noise = torch.randint(0, 2, x.shape, device=x.device).to(x) * 2 - 1
            z, change = solver(block, (x, torch.zeros_like(logdet)), span)
            x, logdet = z[-1], logdet + change[-1]
        base = -0.5 * (x.square() + math.log(2 * math.pi)).sum(1)
        return base - logdet[:, 0]


def mixture(n, dim, seed):
    g = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(0)
    centres = torch.randn(6, dim, generator=fixed) * 1.5
    which = torch.randint(6, (n,), generator=g)
    return centres[which] + 0.4 * torch.randn(n, dim, generator=g) * (1 + which[:, None] / 4)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=43)
    p.add_argument("--hidden", type=int, default=430)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--blocks", type=int, default=2)
    p.add_argument("--batch", type=int, default=2500)
    p.add_argument("--train-size", type=int, default=30_000)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--solver-steps", type=int, default=7)
    p.add_argument("--adjoint-epochs", type=int, default=1)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()
    torch.manual_seed(30)
    torch.backends.cuda.matmul.allow_tf32 = True

    train = DataLoader(TensorDataset(mixture(args.train_size, args.dim, 1)), args.batch, shuffle=True, drop_last=True)
    valid = mixture(6000, args.dim, 2)
    flow = Flow(args.dim, args.hidden, args.depth, args.blocks).to("cuda")
    opt = torch.optim.Adamax(flow.parameters(), lr=args.lr, weight_decay=1e-6)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(train), eta_min=args.lr / 10)

    fixed = {"method": "rk4", "options": {"step_size": 1.0 / args.solver_steps}}
    through = lambda f, y, t: odeint(f, y, t, **fixed)
    adjoint = lambda f, y, t: odeint_adjoint(f, y, t, **fixed)
    adaptive = lambda f, y, t: odeint(f, y, t, method="dopri5", rtol=1e-3, atol=1e-3)
    begin = time.time()
    for epoch in range(args.epochs):
        solver = adjoint if epoch < args.adjoint_epochs else through
        for step, (x,) in enumerate(train):
            x = x.to("cuda")
            loss = -flow.log_prob(x, solver).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
            opt.step()
            sched.step()
            if step % 4 == 0:
                print(f"epoch {epoch} step {step} nll {loss.item():.3f} {time.time() - begin:.1f}s")
        flow.eval()
        total = 0.0
        with torch.no_grad():
            for part in valid.split(1500):
                total -= flow.log_prob(part.to("cuda"), adaptive).sum().item()
        flow.train()
        print(f"epoch {epoch} validation nll {total / len(valid):.3f} evaluations {sum(b.calls for b in flow.blocks)}")
    with tempfile.TemporaryDirectory() as d:
        torch.save(flow.state_dict(), os.path.join(d, "flow.pt"))


if __name__ == "__main__":
    main()
