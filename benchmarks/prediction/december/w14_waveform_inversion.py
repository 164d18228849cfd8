"""Seismic full waveform inversion: recover a 2-D velocity model from recorded shots.

Acoustic finite differences (8th order in space, 2nd in time) with an absorbing sponge; gradients by autograd through
checkpointed segments of time steps; L-BFGS with strong Wolfe line search, frequencies from low to high, Tikhonov penalty.
"""
import argparse
import os
import tempfile
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def true_velocity(nz, nx, device):
    z = torch.arange(nz, device=device)[:, None] / nz
    x = torch.arange(nx, device=device)[None, :] / nx
    v = 1600 + 1500 * z + 0 * x
    v = torch.where(z > 0.45 + 0.12 * torch.sin(5 * x), v + 350, v)
    lens = ((x - 0.62) / 0.16) ** 2 + ((z - 0.42) / 0.10) ** 2 < 1
    return torch.where(lens, torch.full_like(v, 3300.0), v)


def smooth(v, k):
    w = torch.ones(1, 1, k, k, device=v.device) / (k * k)
    return F.conv2d(F.pad(v[None, None], (k // 2,) * 4, mode="replicate"), w)[0, 0]


def ricker(freq, nt, dt, device):
    t = torch.arange(nt, device=device) * dt - 1.2 / freq
    a = (torch.pi * freq * t) ** 2
    return (1 - 2 * a) * torch.exp(-a)


class Acoustic(torch.nn.Module):
    def __init__(self, nz, nx, pad, dx, dt, device):
        super().__init__()
        self.pad, self.dx, self.dt = pad, dx, dt
        c = torch.tensor([-1 / 560, 8 / 315, -1 / 5, 8 / 5, -205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560], device=device)
        self.register_buffer("along_z", (c / dx ** 2).view(1, 1, 9, 1))
        self.register_buffer("along_x", (c / dx ** 2).view(1, 1, 1, 9))
        ramp = lambda n: torch.cat([torch.arange(pad, 0, -1), torch.zeros(n), torch.arange(1, pad + 1)]).to(device) / pad
        damp = torch.maximum(ramp(nz)[:, None], ramp(nx)[None, :])
        self.register_buffer("sponge", torch.exp(-(0.22 * damp) ** 2))

    def segment(self, c2, now, prev, wavelet, src, rec):
        """Advance len(wavelet) steps; returns the two last fields and the traces of this segment."""
        rows = torch.arange(now.shape[0], device=now.device)
        traces = []
        for amplitude in wavelet:
            lap = F.conv2d(now, self.along_z, padding=(4, 0)) + F.conv2d(now, self.along_x, padding=(0, 4))
            new = (2 * now - prev * self.sponge + c2 * lap) * self.sponge
            force = torch.zeros_like(new).index_put((rows, torch.zeros_like(rows), src[:, 0], src[:, 1]), amplitude.expand(len(rows)))
            new = new + force
            prev, now = now * self.sponge, new
            traces.append(now[:, 0, rec[:, 0], rec[:, 1]])
        return now, prev, torch.stack(traces, dim=-1)

    def forward(self, v, wavelet, src, rec, every):
        padded = F.pad(v[None, None], (self.pad,) * 4, mode="replicate")
        c2 = (padded * self.dt) ** 2
        now = torch.zeros(len(src), 1, *padded.shape[-2:], device=v.device)
        prev, out = torch.zeros_like(now), []
        for piece in wavelet.split(every):
            if torch.is_grad_enabled() and v.requires_grad:
                now, prev, tr = checkpoint(self.segment, c2, now, prev, piece, src, rec, use_reentrant=False)
            else:
                now, prev, tr = self.segment(c2, now, prev, piece, src, rec)
            out.append(tr)
        return torch.cat(out, dim=-1)


def roughness(v):
    return (v[1:] - v[:-1]).square().mean() + (v[:, 1:] - v[:, :-1]).square().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--nz", type=int, default=180)
    ap.add_argument("--nx", type=int, default=396)
    ap.add_argument("--pad", type=int, default=30)
    ap.add_argument("--shots", type=int, default=44)
    ap.add_argument("--steps", type=int, default=480)
    ap.add_argument("--every", type=int, default=55)
    ap.add_argument("--freqs", type=float, nargs="+", default=[5.0, 9.0])
    ap.add_argument("--iterations", type=int, default=3)
    args = ap.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda")
    dx, dt = 10.0, 0.0014
    physics = Acoustic(args.nz, args.nx, args.pad, dx, dt, device)
    truth = true_velocity(args.nz, args.nx, device)
    start = smooth(truth, 41)
    xs = torch.linspace(5, args.nx - 6, args.shots, device=device).long() + args.pad
    src = torch.stack([torch.full_like(xs, args.pad + 2), xs], -1)
    xr = torch.arange(4, args.nx - 4, 3, device=device) + args.pad
    rec = torch.stack([torch.full_like(xr, args.pad + 3), xr], -1)

    model = torch.nn.Parameter((start / 1000).clone())
    t0 = time.time()
    for stage, freq in enumerate(args.freqs):
        wavelet = ricker(freq, args.steps, dt, device)
        with torch.no_grad():
            observed = physics(truth, wavelet, src, rec, args.every)
            observed = observed + 0.01 * observed.std() * torch.randn_like(observed)
            power = observed.square().mean()
        opt = torch.optim.LBFGS([model], lr=0.8, max_iter=args.iterations, max_eval=2 * args.iterations, history_size=6,
                                line_search_fn="strong_wolfe", tolerance_change=0.0, tolerance_grad=0.0)
        values = []

        def closure():
            opt.zero_grad()
            v = (model * 1000).clamp(1400, 3900)
            traces = physics(v, wavelet, src, rec, args.every)
            loss = (traces - observed).square().mean() / power + 1e-2 * roughness(model)
            loss.backward()
            model.grad[:4] = 0  # water and source layer are known
            values.append(loss.item())
            return loss

        opt.step(closure)
        error = ((model.detach() * 1000 - truth) / truth).abs().mean().item()
        print(f"stage {stage} at {freq} Hz: misfit {values[0]:.4f} -> {values[-1]:.4f} in {len(values)} evaluations, "
              f"model error {100 * error:.2f} %, {time.time() - t0:.1f} s", flush=True)
    with torch.no_grad():
        before = (physics(start, wavelet, src, rec, args.every) - observed).square().mean() / power
        after = (physics(model * 1000, wavelet, src, rec, args.every) - observed).square().mean() / power
    print(f"relative data residual {before.item():.4f} -> {after.item():.4f}")
    with tempfile.TemporaryDirectory() as tmp:
        torch.save({"velocity": model.detach().cpu(), "truth": truth.cpu()}, os.path.join(tmp, "fwi.pt"))


if __name__ == "__main__":
    main()
