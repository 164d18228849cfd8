"""Physics-informed network for the 2D Helmholtz problem in double precision: Adam, then L-BFGS.

u_xx + u_yy + k^2 u = q on the square, u = 0 on its boundary; exact solution sin(a pi x) sin(b pi y).
"""
import argparse
import math
import time

import torch
import torch.nn as nn
from torch.func import functional_call, jvp


class FourierMLP(nn.Module):
    def __init__(self, width, depth, features):
        super().__init__()
        self.register_buffer("freq", torch.randn(2, features) * 2.0)
        dims = [2 * features] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.gate = nn.Linear(2 * features, width)
        self.out = nn.Linear(width, 1)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, xy):
        z = xy @ self.freq
        z = torch.cat([torch.sin(z), torch.cos(z)], -1)
        g = torch.sigmoid(self.gate(z))
        for layer in self.hidden:
            z = torch.tanh(layer(z))
            if z.shape == g.shape:
                z = z * g + z
        return self.out(z)


class Helmholtz:
    def __init__(self, a, b, k):
        self.a, self.b, self.k = a * math.pi, b * math.pi, k

    def exact(self, xy):
        return torch.sin(self.a * xy[:, :1]) * torch.sin(self.b * xy[:, 1:])

    def source(self, xy):
        return (self.k ** 2 - self.a ** 2 - self.b ** 2) * self.exact(xy)


def residual(model, xy, problem):
    xy = xy.requires_grad_(True)
    u = model(xy)
    grad = torch.autograd.grad(u.sum(), xy, create_graph=True)[0]
    u_xx = torch.autograd.grad(grad[:, 0].sum(), xy, create_graph=True)[0][:, :1]
    u_yy = torch.autograd.grad(grad[:, 1].sum(), xy, create_graph=True)[0][:, 1:]
    return u_xx + u_yy + problem.k ** 2 * u - problem.source(xy)


def residual_forward(model, xy, problem):
    """The same by nested forward-mode derivatives; for evaluation, without a graph."""
    params = {k: v.detach() for k, v in model.state_dict().items()}
    f = lambda z: functional_call(model, params, (z,))
    lap = 0.0
    for axis in range(2):
        direction = torch.zeros_like(xy)
        direction[:, axis] = 1.0
        first = lambda z: jvp(f, (z,), (direction,))[1]
        lap = lap + jvp(first, (xy,), (direction,))[1]
    return lap + problem.k ** 2 * f(xy) - problem.source(xy)


def boundary_points(n, device):
    t = torch.rand(n, 1, device=device) * 2 - 1
    side = torch.randint(0, 2, (n, 1), device=device).double() * 2 - 1
    half = n // 2
    return torch.cat([torch.cat([t[:half], side[:half]], 1), torch.cat([side[half:], t[half:]], 1)])


@torch.no_grad()
def report(model, problem, n, device, chunk):
    axis = torch.linspace(-1, 1, n, device=device)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    err = ref = res = 0.0
    for part in grid.split(chunk):
        u, exact = model(part), problem.exact(part)
        err += (u - exact).square().sum().item()
        ref += exact.square().sum().item()
        res += residual_forward(model, part, problem).square().sum().item()
    print(f"  relative L2 {math.sqrt(err / ref):.4f}, residual rms {math.sqrt(res / len(grid)):.3f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--width", type=int, default=200)
    p.add_argument("--depth", type=int, default=5)
    p.add_argument("--features", type=int, default=64)
    p.add_argument("--points", type=int, default=18_000)
    p.add_argument("--boundary", type=int, default=4000)
    p.add_argument("--adam", type=int, default=80)
    p.add_argument("--lbfgs", type=int, default=6)
    p.add_argument("--history", type=int, default=50)
    p.add_argument("--grid", type=int, default=301)
    args = p.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(21)
    device = "cuda"

    problem = Helmholtz(1, 3, 1.0)
    model = FourierMLP(args.width, args.depth, args.features).to(device)
    print(sum(t.numel() for t in model.parameters()), "parameters")

    def loss_on(inner, edge):
        r = residual(model, inner, problem)
        return r.square().mean() / 1e3 + 20.0 * model(edge).square().mean()

    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.985)
    start = time.time()
    for step in range(1, args.adam + 1):
        inner = torch.rand(args.points, 2, device=device) * 2 - 1
        loss = loss_on(inner, boundary_points(args.boundary, device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 20 == 0:
            print(f"adam {step} loss {loss.item():.4e} {time.time() - start:.1f}s")
    report(model, problem, args.grid, device, 8192)

    # L-BFGS on a fixed, somewhat larger set of points
    inner = torch.rand(args.points * 5 // 4, 2, device=device) * 2 - 1
    edge = boundary_points(args.boundary, device)
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=8, history_size=args.history,
                              line_search_fn="strong_wolfe", tolerance_grad=1e-9, tolerance_change=1e-12)

    def closure():
        lbfgs.zero_grad()
        loss = loss_on(inner, edge)
        loss.backward()
        return loss

    for step in range(1, args.lbfgs + 1):
        loss = lbfgs.step(closure)
        print(f"lbfgs {step} loss {loss.item():.4e} {time.time() - start:.1f}s")
    report(model, problem, args.grid, device, 8192)


if __name__ == "__main__":
    main()
