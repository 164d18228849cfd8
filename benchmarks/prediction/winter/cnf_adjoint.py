"""Continuous normalizing flow (FFJORD): fixed-step RK4 with the adjoint method in a custom autograd.Function."""
import math
import os

import torch
import torch.nn as nn


class ConcatSquash(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin, self.gate, self.bias = nn.Linear(i, o), nn.Linear(1, o), nn.Linear(1, o, bias=False)

    def forward(self, t, x):
        t = t.view(1, 1)
        return self.lin(x) * torch.sigmoid(self.gate(t)) + self.bias(t)


class Dynamics(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        sizes = [dim, hidden, hidden, hidden, dim]
        self.layers = nn.ModuleList(ConcatSquash(a, b) for a, b in zip(sizes, sizes[1:]))
        self.noise = None

    def field(self, t, x):
        for i, layer in enumerate(self.layers):
            x = layer(t, x)
            if i < len(self.layers) - 1:
                x = torch.nn.functional.softplus(x)
        return x

    def forward(self, t, state):
        """d(x, logp)/dt with Hutchinson's trace estimate."""
        x, _ = state
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_(True)
            dx = self.field(t, x)
            vjp = torch.autograd.grad(dx, x, self.noise, create_graph=True)[0]
            div = (vjp * self.noise).sum(1)
        return dx, -div


def rk4(f, t, h, y):
    add = lambda a, k, s: tuple(u + s * v for u, v in zip(a, k))
    k1 = f(t, y)
    k2 = f(t + h / 2, add(y, k1, h / 2))
    k3 = f(t + h / 2, add(y, k2, h / 2))
    k4 = f(t + h, add(y, k3, h))
    return tuple(a + h / 6 * (p + 2 * q + 2 * r + s) for a, p, q, r, s in zip(y, k1, k2, k3, k4))


class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, func, steps, x, logp, *params):
        ctx.func, ctx.steps = func, steps
        h = 1.0 / steps
        y = (x, logp)
        with torch.no_grad():
            f = lambda t, s: tuple(v.detach() for v in func(t, s))
            for i in range(steps):
                y = rk4(f, torch.tensor(i * h, device=x.device), h, y)
        ctx.save_for_backward(*y)
        return y

    @staticmethod
    def backward(ctx, gx, gl):
        func, params = ctx.func, tuple(ctx.func.parameters())
        x, logp = ctx.saved_tensors

        def augmented(t, s):
            x, logp, ax, al = s[:4]
            with torch.enable_grad():
                x = x.detach().requires_grad_(True)
                dx, dl = func(t, (x, logp))
                g = torch.autograd.grad((dx, dl), (x,) + params, (-ax, -al), allow_unused=True)
            g = [torch.zeros_like(p) if v is None else v for v, p in zip(g, (x,) + params)]
            return (dx.detach(), dl.detach(), g[0], torch.zeros_like(al), *g[1:])

        state = (x, logp, gx, gl, *[torch.zeros_like(p) for p in params])
        h = -1.0 / ctx.steps
        with torch.no_grad():
            for i in range(ctx.steps):
                state = rk4(augmented, torch.tensor(1.0 + i * h, device=x.device), h, state)
        return (None, None, state[2], state[3], *state[4:])


def density_data(n, dim, gen):
    """A ring of Gaussians embedded by a fixed random rotation."""
    a = torch.randint(0, 8, (n,), device="cuda", generator=gen).float() * math.pi / 4
    x = torch.randn(n, dim, device="cuda", generator=gen) * 0.2
    x[:, 0] += 2 * a.cos()
    x[:, 1] += 2 * a.sin()
    q = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(1)))[0].to("cuda")
    return x @ q


def main():
    torch.manual_seed(13)
    gen = torch.Generator("cuda").manual_seed(13)
    dim, hidden, steps = 43, 512, int(os.environ.get("ODE_STEPS", "10"))
    n = max(1, round(24_000 * float(os.environ.get("SCALE", "1"))))
    func = Dynamics(dim, hidden).to("cuda")
    opt = torch.optim.AdamW(func.parameters(), lr=2e-3)
    for it in range(int(os.environ.get("STEPS", "20"))):
        x = density_data(n, dim, gen)
        func.noise = torch.randint(0, 2, x.shape, device="cuda", generator=gen).float() * 2 - 1
        z, dlogp = Adjoint.apply(func, steps, x, torch.zeros(n, device="cuda"), *func.parameters())
        logp = -0.5 * (z.pow(2) + math.log(2 * math.pi)).sum(1) - dlogp
        loss = -logp.mean() / dim
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 3 == 0:
            print(f"iteration {it} nll/dim {loss.item():.4f} peak {torch.cuda.max_memory_allocated() / 1e6:.0f} MB")
    with torch.no_grad():           # there and back again
        func.noise = func.noise[:256]
        f = lambda t, s: tuple(v.detach() for v in func(t, s))
        y = (x[:256], torch.zeros(min(256, n), device="cuda"))
        for sign in (1, -1):
            for i in range(steps):
                t = i / steps if sign > 0 else 1 - i / steps
                y = rk4(f, torch.tensor(t, device="cuda"), sign / steps, y)
    print(f"round trip error {(y[0] - x[:256]).abs().max().item():.2e}")


if __name__ == "__main__":
    main()
