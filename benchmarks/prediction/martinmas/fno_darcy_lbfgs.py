"""Fourier neural operator for a Darcy-like problem: Adam warm-up, then L-BFGS, then Hessian-vector power iteration."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, jvp

class SpectralConv(nn.Module):
    def __init__(self, ch, m1, m2):
        super().__init__()
        self.m1, self.m2 = m1, m2
        shape = (2, ch, ch, m1, m2)
        self.weight = nn.Parameter(torch.randn(*shape, 2) / ch)

    def forward(self, x):
        w = torch.view_as_complex(self.weight)
        f = torch.fft.rfft2(x, norm="ortho")
        out = torch.zeros_like(f)
        out[:, :, : self.m1, : self.m2] = torch.einsum("bixy,ioxy->boxy", f[:, :, : self.m1, : self.m2], w[0])
        out[:, :, -self.m1:, : self.m2] = torch.einsum("bixy,ioxy->boxy", f[:, :, -self.m1:, : self.m2], w[1])
        return torch.fft.irfft2(out, s=x.shape[-2:], norm="ortho")

class FNO(nn.Module):
    def __init__(self, ch, modes, layers, pad=9):
        super().__init__()
        self.pad = pad
        self.lift = nn.Conv2d(3, ch, 1)
        self.spec = nn.ModuleList(SpectralConv(ch, modes, modes) for _ in range(layers))
        self.point = nn.ModuleList(nn.Conv2d(ch, ch, 1) for _ in range(layers))
        self.proj = nn.Sequential(nn.Conv2d(ch, 2 * ch, 1), nn.GELU(), nn.Conv2d(2 * ch, 1, 1))

    def forward(self, a):
        n, _, h, w = a.shape
        ys = torch.linspace(0, 1, h, device=a.device).view(1, 1, h, 1).expand(n, 1, h, w)
        xs = torch.linspace(0, 1, w, device=a.device).view(1, 1, 1, w).expand(n, 1, h, w)
        x = F.pad(self.lift(torch.cat([a, xs, ys], 1)), [0, self.pad, 0, self.pad])
        for i, (s, p) in enumerate(zip(self.spec, self.point)):
            x = s(x) + p(x)
            if i < len(self.spec) - 1:
                x = F.gelu(x)
        return self.proj(x[..., :h, :w])

def random_field(n, size, device, tau=5.0, alpha=2.0):
    k = torch.fft.fftfreq(size, 1.0 / size, device=device)
    k2 = k[:, None] ** 2 + k[None, : size // 2 + 1] ** 2
    noise = torch.randn(n, 1, size, size // 2 + 1, dtype=torch.cfloat, device=device)
    f = torch.fft.irfft2(noise * (k2 + tau ** 2) ** (-alpha / 2), s=(size, size))
    return f / f.std((2, 3), keepdim=True)

def solve(a, iters=60):
    """Jacobi iterations on -lap(u) = f(a): a cheap stand-in for the reference solver."""
    kern = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=a.dtype, device=a.device)[None, None] / 4
    u = torch.zeros_like(a)
    src = torch.where(a > 0, 12.0, 3.0) / 100
    for _ in range(iters):
        u = F.conv2d(u, kern, padding=1) + src
    return u

def rel_l2(pred, y):
    return ((pred - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()

def main():
    p = argparse.ArgumentParser()
    for k, v in dict(size=127, batch=20, width=64, modes=20, layers=4, adam=6, lbfgs=2, inner=4, power=3).items():
        p.add_argument(f"--{k}", type=int, default=v)
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    torch.manual_seed(123)
    net = FNO(a.width, a.modes, a.layers).to(a.device)
    with torch.no_grad():
        field = random_field(4 * a.batch, a.size, a.device)
        sol = solve(field)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(a.adam):
        idx = torch.randperm(len(field), device=a.device)[: a.batch]
        loss = rel_l2(net(field[idx]), sol[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"adam {step} loss {loss.item():.4f}")
    del opt
    x, y = field[: a.batch], sol[: a.batch]
    lb = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=a.inner, history_size=5, line_search_fn="strong_wolfe")

    def closure():
        lb.zero_grad()
        loss = rel_l2(net(x), y)
        loss.backward()
        return loss

    for step in range(a.lbfgs):
        loss = lb.step(closure)
        print(f"lbfgs {step} loss {loss.item():.4f}")
    del lb
    net.zero_grad(set_to_none=True)
    # largest curvature, forward-over-reverse on a quarter of the batch
    params = {k: v.detach() for k, v in net.named_parameters()}
    q = max(1, a.batch // 4)

    def objective(ps):
        return rel_l2(functional_call(net, ps, (x[:q],)), y[:q])

    vec = {k: torch.randn_like(v) for k, v in params.items()}
    for it in range(a.power):
        norm = torch.sqrt(sum((v ** 2).sum() for v in vec.values()))
        vec = {k: v / norm for k, v in vec.items()}
        _, hv = jvp(grad(objective), (params,), (vec,))
        eig = sum((vec[k] * hv[k]).sum() for k in vec)
        vec = {k: v.detach() for k, v in hv.items()}
        print(f"power {it} curvature {eig.item():.4f}")

if __name__ == "__main__":
    main()
