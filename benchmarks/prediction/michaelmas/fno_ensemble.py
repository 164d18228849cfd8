"""Ensemble of Fourier neural operators trained with torch.func (vmap over members), autoregressive rollout."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, stack_module_state, vmap


class SpectralConv(nn.Module):
    def __init__(self, ch, modes):
        super().__init__()
        self.modes = modes
        scale = 1 / ch
        self.w1 = nn.Parameter(scale * torch.randn(ch, ch, modes, modes, dtype=torch.cfloat))
        self.w2 = nn.Parameter(scale * torch.randn(ch, ch, modes, modes, dtype=torch.cfloat))

    def forward(self, x):
        m, (h, w) = self.modes, x.shape[-2:]
        f = torch.fft.rfft2(x, norm="ortho")
        top = torch.einsum("bixy,ioxy->boxy", f[..., :m, :m], self.w1)
        bot = torch.einsum("bixy,ioxy->boxy", f[..., -m:, :m], self.w2)
        mid = top.new_zeros(*top.shape[:2], h - 2 * m, m)
        out = F.pad(torch.cat([top, mid, bot], -2), (0, w // 2 + 1 - m))
        return torch.fft.irfft2(out, s=(h, w), norm="ortho")


class FNO(nn.Module):
    def __init__(self, ch=32, modes=20, layers=4):
        super().__init__()
        self.lift = nn.Conv2d(3, ch, 1)
        self.spec = nn.ModuleList(SpectralConv(ch, modes) for _ in range(layers))
        self.skip = nn.ModuleList(nn.Conv2d(ch, ch, 1) for _ in range(layers))
        self.head = nn.Sequential(nn.Conv2d(ch, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def forward(self, u):
        b, _, h, w = u.shape
        gy = torch.linspace(0, 1, h, device=u.device).view(1, 1, h, 1).expand(b, 1, h, w)
        gx = torch.linspace(0, 1, w, device=u.device).view(1, 1, 1, w).expand(b, 1, h, w)
        x = self.lift(torch.cat([u, gy, gx], 1))
        for s, k in zip(self.spec, self.skip):
            x = F.gelu(s(x) + k(x))
        return u + self.head(x)


def burgers_like(u, nu=1e-3, dt=0.05):
    """One pseudo-spectral step, the data generator."""
    h, w = u.shape[-2:]
    ky = torch.fft.fftfreq(h, 1 / h, device=u.device).view(h, 1)
    kx = torch.fft.rfftfreq(w, 1 / w, device=u.device).view(1, -1)
    f = torch.fft.rfft2(u)
    ux = torch.fft.irfft2(1j * kx * f, s=(h, w))
    adv = torch.fft.rfft2(-0.05 * u * ux)
    return torch.fft.irfft2((f + dt * adv) / (1 + dt * nu * (kx ** 2 + ky ** 2)), s=(h, w))


def smooth_noise(b, n, device):
    k = torch.fft.fftfreq(n, 1 / n, device=device)
    amp = 1 / (1 + k[:, None] ** 2 + k[None, : n // 2 + 1] ** 2) ** 1.5
    u = torch.fft.irfft2(torch.fft.rfft2(torch.randn(b, 1, n, n, device=device)) * amp, s=(n, n))
    return u / u.std((-2, -1), keepdim=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--members", type=int, default=4)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--size", type=int, default=130)
    ap.add_argument("--modes", type=int, default=20)
    ap.add_argument("--rollout", type=int, default=2)
    ap.add_argument("--steps", type=int, default=10)
    a = ap.parse_args()
    torch.manual_seed(13)
    device = "cuda"
    models = [FNO(modes=a.modes).to(device) for _ in range(a.members)]
    params, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    del models

    def loss_fn(p, b, traj):
        u, total = traj[0], 0.0
        for t in range(1, traj.shape[0]):
            u = functional_call(base, (p, b), (u,))
            total = total + (u - traj[t]).norm() / traj[t].norm()
        return total / (traj.shape[0] - 1)

    step_fn = vmap(grad_and_value(loss_fn), in_dims=(0, 0, 0))
    predict = vmap(lambda p, b, u: functional_call(base, (p, b), (u,)), in_dims=(0, 0, None))
    leaves = list(params.values())
    opt = torch.optim.Adam(leaves, lr=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    for step in range(a.steps):
        traj = [smooth_noise(a.members * a.batch, a.size, device)]
        for _ in range(a.rollout):
            traj.append(burgers_like(traj[-1]))
        traj = torch.stack(traj).view(a.rollout + 1, a.members, a.batch, 1, a.size, a.size).transpose(0, 1)
        grads, losses = step_fn(params, buffers, traj)
        for k, p in params.items():
            p.grad = grads[k]
        opt.step()
        sched.step()
        print(f"step {step} losses {[round(v, 4) for v in losses.tolist()]}")
    with torch.no_grad():
        u = ref = smooth_noise(2 * a.batch, a.size, device)
        for t in range(5):
            ens = predict(params, buffers, u)
            u, ref = ens.mean(0), burgers_like(ref)
            print(f"rollout {t} err {((u - ref).norm() / ref.norm()).item():.4f} spread {ens.std(0).mean().item():.4f}")


if __name__ == "__main__":
    main()
