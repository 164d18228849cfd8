"""HiFi-GAN like vocoder: weight-normed generator, period discriminators, multi-resolution STFT and mel losses."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations


class MRF(nn.Module):
    def __init__(self, c, kernels=(3, 7, 11), dils=(1, 3, 5)):
        super().__init__()
        self.stacks = nn.ModuleList(nn.ModuleList(nn.ModuleList([
            weight_norm(nn.Conv1d(c, c, k, padding=d * (k - 1) // 2, dilation=d)),
            weight_norm(nn.Conv1d(c, c, k, padding=(k - 1) // 2))]) for d in dils) for k in kernels)

    def forward(self, x):
        total = 0
        for stack in self.stacks:
            h = x
            for c1, c2 in stack:
                h = h + c2(F.leaky_relu(c1(F.leaky_relu(h, 0.1)), 0.1))
            total = total + h
        return total / len(self.stacks)


def generator(mels, ch, rates=(8, 8, 2, 2)):
    layers = [weight_norm(nn.Conv1d(mels, ch, 7, padding=3))]
    for r in rates:
        layers += [nn.LeakyReLU(0.1), weight_norm(nn.ConvTranspose1d(ch, ch := ch // 2, 2 * r, r, r // 2)), MRF(ch)]
    last = weight_norm(nn.Conv1d(ch, 1, 7, padding=3))
    return nn.Sequential(*layers, nn.LeakyReLU(), last, nn.Tanh(), nn.Flatten())


class PeriodDisc(nn.Module):
    def __init__(self, period, ch):
        super().__init__()
        self.p = period
        dims = [1, ch, ch * 4, ch * 8, ch * 8]
        self.convs = nn.ModuleList(weight_norm(nn.Conv2d(i, o, (5, 1), (3, 1), (2, 0)))
                                   for i, o in zip(dims, dims[1:]))
        self.last = weight_norm(nn.Conv2d(dims[-1], 1, (3, 1), 1, (1, 0)))

    def forward(self, x):
        if x.size(-1) % self.p:
            x = F.pad(x, (0, self.p - x.size(-1) % self.p), mode="reflect")
        x = x.view(x.size(0), 1, -1, self.p)
        feats = []
        for c in self.convs:
            feats.append(x := F.leaky_relu(c(x), 0.1))
        return self.last(x).flatten(1), feats


def stft_loss(fake, real, sizes=(512, 1024, 2048, 240)):
    total = 0.0
    for n in sizes:
        win = torch.hann_window(n, device=fake.device)
        f = torch.stft(fake, n, n // 4, n, win, return_complex=True)
        r = torch.stft(real, n, n // 4, n, win, return_complex=True)
        fm, rm = f.abs().clamp(min=1e-5), r.abs().clamp(min=1e-5)
        conv = torch.linalg.norm(rm - fm) / torch.linalg.norm(rm)
        total = total + conv + F.l1_loss(fm.log(), rm.log()) - 0.1 * (f * r.conj()).real.div(fm * rm).mean()
    return total / len(sizes)


def log_mel(x, n=1024, hop=256, mels=80):
    centre = torch.logspace(0.5, 2.7, mels, device=x.device)[:, None]
    fb = torch.exp(-((torch.arange(n // 2 + 1, device=x.device) - centre) / (0.1 * centre + 1)) ** 2)
    x = F.pad(x[:, None], ((n - hop) // 2,) * 2, mode="reflect")[:, 0]
    s = torch.stft(x, n, hop, n, torch.hann_window(n, device=x.device), center=False, return_complex=True)
    return torch.log((fb @ s.abs()).clamp(min=1e-5))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    defaults = dict(batch=16, segment=16384, ch=384, dch=32, steps=8, infer_frames=900)
    for name, value in defaults.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = p.parse_args()
    torch.manual_seed(99)
    gen = generator(80, a.ch).to(a.device)
    discs = nn.ModuleList(PeriodDisc(k, a.dch) for k in (2, 3, 5, 7, 11)).to(a.device)
    og = torch.optim.AdamW(gen.parameters(), lr=2e-4, betas=(0.8, 0.99))
    od = torch.optim.AdamW(discs.parameters(), lr=2e-4, betas=(0.8, 0.99))
    t = torch.arange(a.segment) / 22050.0
    for step in range(a.steps):
        f0 = torch.rand(a.batch, 1) * 300 + 80
        real = sum(torch.sin(2 * torch.pi * f0 * h * t) / h for h in range(1, 5)) * 0.3
        real = (real + 0.02 * torch.randn_like(real)).to(a.device)
        cond = log_mel(real)
        fake = gen(cond)
        loss_d = sum((1 - d(real)[0]).square().mean() + d(fake.detach())[0].square().mean() for d in discs)
        od.zero_grad()
        loss_d.backward()
        od.step()
        discs.requires_grad_(False)
        adv = fm = 0.0
        for d in discs:
            (score, ff), (_, fr) = d(fake), d(real)
            adv = adv + (1 - score).square().mean()
            fm = fm + sum(F.l1_loss(x, y) for x, y in zip(ff, fr))
        rec = F.l1_loss(log_mel(fake), cond)
        loss_g = adv + 2 * fm + 45 * rec + stft_loss(fake, real)
        og.zero_grad()
        loss_g.backward()
        og.step()
        discs.requires_grad_(True)
        print(f"step {step} D {loss_d.item():.4f} G {loss_g.item():.4f} mel {rec.item():.4f}")
    for m in gen.eval().modules():
        if isinstance(m, (nn.Conv1d, nn.ConvTranspose1d)):
            remove_parametrizations(m, "weight")
    with torch.inference_mode():
        wav = gen(torch.randn(2, 80, a.infer_frames, device=a.device))
    print("vocoded", tuple(wav.shape), f"rms {wav.square().mean().sqrt().item():.4f}")


if __name__ == "__main__":
    main()
