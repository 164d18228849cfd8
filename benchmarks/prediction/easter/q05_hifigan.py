"""HiFi-GAN vocoder at 22.05 kHz: multi-period and multi-scale discriminators, feature matching and a mel loss. fp32 (TF32)."""
import argparse
import itertools
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

SLOPE = 0.1


class ResBlock(nn.Module):
    def __init__(self, ch, k, dilations=(1, 3, 5)):
        super().__init__()
        self.a = nn.ModuleList(weight_norm(nn.Conv1d(ch, ch, k, dilation=d, padding=d * (k - 1) // 2)) for d in dilations)
        self.b = nn.ModuleList(weight_norm(nn.Conv1d(ch, ch, k, padding=(k - 1) // 2)) for _ in dilations)

    def forward(self, x):
        for a, b in zip(self.a, self.b):
            x = x + b(F.leaky_relu(a(F.leaky_relu(x, SLOPE)), SLOPE))
        return x


class Generator(nn.Module):
    def __init__(self, mels, ch, rates=(8, 8, 2, 2), kernels=(16, 16, 4, 4), res=(3, 7, 11)):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(mels, ch, 7, padding=3))
        self.ups, self.res = nn.ModuleList(), nn.ModuleList()
        for i, (r, k) in enumerate(zip(rates, kernels)):
            out = ch // 2 ** (i + 1)
            self.ups.append(weight_norm(nn.ConvTranspose1d(out * 2, out, k, r, padding=(k - r) // 2)))
            self.res.append(nn.ModuleList(ResBlock(out, kk) for kk in res))
        self.post = weight_norm(nn.Conv1d(out, 1, 7, padding=3))

    def forward(self, x):
        x = self.pre(x)
        for up, blocks in zip(self.ups, self.res):
            x = up(F.leaky_relu(x, SLOPE))
            x = sum(b(x) for b in blocks) / len(blocks)
        return torch.tanh(self.post(F.leaky_relu(x)))


class PeriodDisc(nn.Module):
    def __init__(self, period, width=32):
        super().__init__()
        self.period = period
        chs = [1, width, width * 4, width * 16, width * 24]
        self.convs = nn.ModuleList(weight_norm(nn.Conv2d(i, o, (5, 1), (3, 1), padding=(2, 0))) for i, o in zip(chs, chs[1:]))
        self.convs.append(weight_norm(nn.Conv2d(chs[-1], chs[-1], (5, 1), padding=(2, 0))))
        self.post = weight_norm(nn.Conv2d(chs[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, x):
        b, c, t = x.shape
        if t % self.period:
            x = F.pad(x, (0, self.period - t % self.period), mode="reflect")
        x = x.view(b, c, -1, self.period)
        feats = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), SLOPE)
            feats.append(x)
        x = self.post(x)
        return x.flatten(1), feats + [x]


class ScaleDisc(nn.Module):
    def __init__(self, norm):
        super().__init__()
        spec = [(1, 128, 15, 1, 1), (128, 128, 41, 2, 4), (128, 256, 41, 2, 16), (256, 512, 41, 4, 16),
                (512, 768, 41, 4, 16), (768, 768, 5, 1, 1)]
        self.convs = nn.ModuleList(norm(nn.Conv1d(i, o, k, s, padding=k // 2, groups=g)) for i, o, k, s, g in spec)
        self.post = norm(nn.Conv1d(768, 1, 3, padding=1))

    def forward(self, x):
        feats = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), SLOPE)
            feats.append(x)
        x = self.post(x)
        return x.flatten(1), feats + [x]


class Discriminators(nn.Module):
    def __init__(self):
        super().__init__()
        self.mpd = nn.ModuleList(PeriodDisc(p) for p in (2, 3, 5, 7, 11))
        self.msd = nn.ModuleList([ScaleDisc(spectral_norm), ScaleDisc(weight_norm), ScaleDisc(weight_norm)])

    def forward(self, x):
        outs = [d(x) for d in self.mpd]
        for i, d in enumerate(self.msd):
            outs.append(d(x))
            if i < 2:
                x = F.avg_pool1d(x, 4, 2, padding=2)
        return [o[0] for o in outs], [o[1] for o in outs]


class Mel(nn.Module):
    def __init__(self, sr=22050, n_fft=1024, hop=256, mels=80):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        hz = lambda m: 700 * (10 ** (m / 2595) - 1)
        edges = hz(torch.linspace(0, 2595 * math.log10(1 + sr / 2 / 700), mels + 2))
        freqs = torch.linspace(0, sr / 2, n_fft // 2 + 1)
        up = (freqs - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        down = (edges[2:, None] - freqs) / (edges[2:] - edges[1:-1])[:, None]
        self.register_buffer("bank", torch.minimum(up, down).clamp(min=0))
        self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, wav):
        pad = (self.n_fft - self.hop) // 2
        wav = F.pad(wav, (pad, pad), mode="reflect").squeeze(1)
        spec = torch.stft(wav, self.n_fft, self.hop, window=self.window, center=False, return_complex=True)
        mag = torch.sqrt(spec.real ** 2 + spec.imag ** 2 + 1e-9)
        return torch.log(torch.clamp(self.bank @ mag, min=1e-5))


def speechlike(n, length, device, generator):
    f0 = (90 + 160 * torch.rand(n, 1, generator=generator)).to(device)
    t = torch.arange(length, device=device) / 22050
    wave = sum(torch.sin(2 * math.pi * f0 * k * t) / k for k in range(1, 7)) * (0.6 + 0.4 * torch.sin(9 * t))
    return (0.25 * wave + 0.01 * torch.randn(n, length, device=device))[:, None].clamp(-1, 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=18)
    p.add_argument("--segment", type=int, default=8960)
    p.add_argument("--channels", type=int, default=384)
    p.add_argument("--steps", type=int, default=26)
    p.add_argument("--lr", type=float, default=2e-4)
    args = p.parse_args()
    device = "cuda"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    g = torch.Generator().manual_seed(2)

    gen, disc, mel = Generator(80, args.channels).to(device), Discriminators().to(device), Mel().to(device)
    opt_g = torch.optim.AdamW(gen.parameters(), args.lr, betas=(0.8, 0.99))
    opt_d = torch.optim.AdamW(itertools.chain(disc.parameters()), args.lr, betas=(0.8, 0.99))
    sched = [torch.optim.lr_scheduler.ExponentialLR(o, 0.99) for o in (opt_g, opt_d)]
    print(f"generator {sum(q.numel() for q in gen.parameters()) / 1e6:.1f}M "
          f"discriminators {sum(q.numel() for q in disc.parameters()) / 1e6:.1f}M")

    for step in range(args.steps):
        real = speechlike(args.batch, args.segment, device, g)
        target = mel(real)
        fake = gen(target)
        opt_d.zero_grad()
        r, _ = disc(real)
        f, _ = disc(fake.detach())
        loss_d = sum(((1 - a) ** 2).mean() + (b ** 2).mean() for a, b in zip(r, f))
        loss_d.backward()
        opt_d.step()

        opt_g.zero_grad()
        loss_mel = F.l1_loss(mel(fake), target) * 45
        _, fr = disc(real)
        f, ff = disc(fake)
        loss_fm = 2 * sum((x.detach() - y).abs().mean() for a, b in zip(fr, ff) for x, y in zip(a, b))
        loss_adv = sum(((1 - b) ** 2).mean() for b in f)
        loss_g = loss_mel + loss_fm + loss_adv
        loss_g.backward()
        nn.utils.clip_grad_norm_(gen.parameters(), 1000.0)
        opt_g.step()
        for s in sched:
            s.step()
        if step % 5 == 0:
            print(f"step {step} d {loss_d.item():.3f} g {loss_g.item():.3f} mel {loss_mel.item() / 45:.4f}")

    gen.eval()
    with torch.no_grad():
        for seconds in (1.0, 3.7, 6.2):
            wav = speechlike(1, int(seconds * 22050) // 256 * 256, device, g)
            print(f"{seconds}s mel error {F.l1_loss(mel(gen(mel(wav))), mel(wav)).item():.4f}")
    with tempfile.TemporaryDirectory() as d:
        torch.save({"gen": gen.state_dict(), "disc": disc.state_dict(), "opt_d": opt_d.state_dict()}, os.path.join(d, "v.pt"))


if __name__ == "__main__":
    main()
