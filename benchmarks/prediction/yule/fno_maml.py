"""Meta-learning a Fourier neural operator over families of PDE coefficients: second-order MAML with torch.func."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap


class SpectralConv(nn.Module):
    def __init__(self, ch, modes):
        super().__init__()
        self.m = modes
        scale = 1 / ch
        self.pos = nn.Parameter(scale * torch.randn(ch, ch, modes, modes, 2))
        self.neg = nn.Parameter(scale * torch.randn(ch, ch, modes, modes, 2))

    def forward(self, x):
        H, W = x.shape[-2:]
        m = self.m
        f = torch.fft.rfft2(x, norm="ortho")
        top = torch.einsum("bixy,ioxy->boxy", f[..., :m, :m], torch.view_as_complex(self.pos))
        bot = torch.einsum("bixy,ioxy->boxy", f[..., -m:, :m], torch.view_as_complex(self.neg))
        gap = top.new_zeros(*top.shape[:-2], H - 2 * m, m)
        low = torch.cat([top, gap, bot], -2)
        full = torch.cat([low, low.new_zeros(*low.shape[:-1], W // 2 + 1 - m)], -1)
        return torch.fft.irfft2(full, s=(H, W), norm="ortho")


class FNO(nn.Module):
    def __init__(self, ch, modes, layers):
        super().__init__()
        self.lift = nn.Conv2d(3, ch, 1)
        self.spec = nn.ModuleList(SpectralConv(ch, modes) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv2d(ch, ch, 1) for _ in range(layers))
        self.proj = nn.Sequential(nn.Conv2d(ch, 2 * ch, 1), nn.GELU(), nn.Conv2d(2 * ch, 1, 1))

    def forward(self, u):
        B, _, H, W = u.shape
        gy = torch.linspace(0, 1, H, device=u.device).view(1, 1, H, 1).expand(B, 1, H, W)
        gx = torch.linspace(0, 1, W, device=u.device).view(1, 1, 1, W).expand(B, 1, H, W)
        x = self.lift(torch.cat([u, gy, gx], 1))
        for s, l in zip(self.spec, self.local):
            x = F.gelu(s(x) + l(x))
        return self.proj(x)


@torch.no_grad()
def heat_task(n, size, tasks, device):
    """Pairs (u0, u_T) of advection-diffusion with one random coefficient set per task, solved in Fourier space."""
    k = torch.fft.fftfreq(size, 1 / size, device=device)
    kr = torch.fft.rfftfreq(size, 1 / size, device=device)
    ky, kx = torch.meshgrid(k, kr, indexing="ij")
    lap = ky ** 2 + kx ** 2
    noise = torch.fft.rfft2(torch.randn(tasks, n, 1, size, size, device=device))
    u0 = noise * torch.exp(-lap / 60)
    nu = torch.rand(tasks, 1, 1, 1, 1, device=device) * 0.02 + 0.002
    c = torch.randn(2, tasks, 1, 1, 1, 1, device=device) * 0.5
    uT = u0 * torch.exp(-nu * lap - 1j * (c[0] * ky + c[1] * kx))
    a, b = torch.fft.irfft2(u0, s=(size, size)), torch.fft.irfft2(uT, s=(size, size))
    scale = a.std(dim=(1, 2, 3, 4), keepdim=True)
    return a / scale, b / scale


def rel_l2(pred, y):
    return ((pred - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    defaults = dict(tasks=6, shots=4, size=128, ch=32, modes=16, layers=4, inner=2, steps=10)
    for name, value in defaults.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = p.parse_args()
    torch.manual_seed(2024)
    net = FNO(a.ch, a.modes, a.layers).to(a.device)
    inner_lr = nn.ParameterDict({n.replace(".", "_"): torch.tensor(0.02) for n, _ in net.named_parameters()}).to(a.device)
    opt = torch.optim.Adam([{"params": net.parameters(), "lr": 1e-3}, {"params": inner_lr.parameters(), "lr": 1e-4}])

    def task_loss(params, x, y):
        return rel_l2(functional_call(net, params, (x,)), y)

    def adapt(params, lrs, x, y, steps):
        first = None
        for _ in range(steps):
            g, loss = grad_and_value(task_loss)(params, x, y)
            first = loss if first is None else first
            params = {n: q - lrs[n.replace(".", "_")] * g[n] for n, q in params.items()}
        return params, first

    def meta(params, lrs, xs, ys, xq, yq):
        fast, before = adapt(params, lrs, xs, ys, a.inner)
        return task_loss(fast, xq, yq), before

    for step in range(a.steps):
        x, y = heat_task(2 * a.shots, a.size, a.tasks, a.device)
        params, lrs = dict(net.named_parameters()), dict(inner_lr.items())
        after, before = vmap(meta, in_dims=(None, None, 0, 0, 0, 0))(
            params, lrs, x[:, :a.shots], y[:, :a.shots], x[:, a.shots:], y[:, a.shots:])
        loss = after.mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        print(f"step {step} before {before.mean().item():.4f} after {loss.item():.4f}")

    # held-out family at a finer grid: adapt a little longer, first order only
    x, y = heat_task(2 * a.shots, a.size * 3 // 2, 1, a.device)
    params = {n: q.detach() for n, q in net.named_parameters()}
    lrs = {n: q.detach() for n, q in inner_lr.items()}
    fast, before = adapt(params, lrs, x[0, :a.shots], y[0, :a.shots], 5)
    with torch.no_grad():
        print(f"new task before {before.item():.4f} after {task_loss(fast, x[0, a.shots:], y[0, a.shots:]).item():.4f}")


if __name__ == "__main__":
    main()
