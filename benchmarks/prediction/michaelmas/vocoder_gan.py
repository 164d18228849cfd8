"""HiFi-GAN-like vocoder: weight-normed generator, period discriminators, multi-resolution STFT loss, fp16 scaler."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

class ResBlock(nn.Module):
    def __init__(self, ch, k):
        super().__init__()
        self.a = nn.ModuleList(weight_norm(nn.Conv1d(ch, ch, k, dilation=d, padding=d * (k - 1) // 2))
                               for d in (1, 3, 5))
        self.b = nn.ModuleList(weight_norm(nn.Conv1d(ch, ch, k, padding=(k - 1) // 2)) for _ in range(3))

    def forward(self, x):
        for a, b in zip(self.a, self.b):
            x = x + b(F.leaky_relu(a(F.leaky_relu(x, 0.1)), 0.1))
        return x

class Generator(nn.Module):
    def __init__(self, mels=80, ch=384, rates=(8, 8, 2, 2), kernels=(3, 7, 11)):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(mels, ch, 7, padding=3))
        self.ups, self.res = nn.ModuleList(), nn.ModuleList()
        for r in rates:
            self.ups.append(weight_norm(nn.ConvTranspose1d(ch, ch // 2, 2 * r, r, padding=r // 2)))
            ch //= 2
            self.res.append(nn.ModuleList(ResBlock(ch, k) for k in kernels))
        self.post = weight_norm(nn.Conv1d(ch, 1, 7, padding=3))

    def forward(self, mel):
        x = self.pre(mel)
        for up, blocks in zip(self.ups, self.res):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(b(x) for b in blocks) / len(blocks)
        return torch.tanh(self.post(F.leaky_relu(x)))

class PeriodDisc(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period = period
        chans = (1, 32, 128, 512, 1024)
        self.convs = nn.ModuleList(weight_norm(nn.Conv2d(i, o, (5, 1), (3, 1), padding=(2, 0)))
                                   for i, o in zip(chans[:-1], chans[1:]))
        self.out = weight_norm(nn.Conv2d(chans[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, x):
        if x.shape[-1] % self.period:
            x = F.pad(x, (0, self.period - x.shape[-1] % self.period), mode="reflect")
        x = x.view(x.shape[0], 1, -1, self.period)
        feats = []
        for c in self.convs:
            x = F.leaky_relu(c(x), 0.1)
            feats.append(x)
        return self.out(x), feats

def spectral_loss(y, x, sizes=(512, 1024, 2048)):
    total = 0.0
    for n in sizes:
        w = torch.hann_window(n, device=y.device)
        sy, sx = (torch.stft(v.squeeze(1).float(), n, n // 4, n, w, return_complex=True).abs().clamp_min(1e-5)
                  for v in (y, x))
        total = total + (sy - sx).norm() / sy.norm() + F.l1_loss(sx.log(), sy.log())
    return total / len(sizes)

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--frames", type=int, default=64)
    ap.add_argument("--steps", type=int, default=8)
    ap.add_argument("--width", type=int, default=384)
    args = ap.parse_args()
    torch.manual_seed(3)
    dev = "cuda"
    gen = Generator(ch=args.width).to(dev)
    discs = nn.ModuleList(PeriodDisc(p) for p in (2, 3, 5, 7, 11)).to(dev)
    g_opt = torch.optim.AdamW(gen.parameters(), 2e-4, betas=(0.8, 0.99))
    d_opt = torch.optim.AdamW(discs.parameters(), 2e-4, betas=(0.8, 0.99))
    scaler_g, scaler_d = torch.amp.GradScaler(dev), torch.amp.GradScaler(dev)
    for step in range(args.steps):
        mel = torch.randn(args.batch, 80, args.frames, device=dev)
        t = torch.arange(args.frames * 256, device=dev) / 22050
        wav = torch.sin(2 * torch.pi * t * (100 + 300 * torch.rand(args.batch, 1, 1, device=dev))) * 0.5
        with torch.autocast(dev, dtype=torch.float16):
            fake = gen(mel)
            d_loss = 0.0
            for d in discs:
                r, _ = d(wav)
                f, _ = d(fake.detach())
                d_loss = d_loss + ((1 - r) ** 2).mean() + (f ** 2).mean()
        d_opt.zero_grad()
        scaler_d.scale(d_loss).backward()
        scaler_d.step(d_opt)
        scaler_d.update()

        with torch.autocast(dev, dtype=torch.float16):
            adv = fm = 0.0
            for d in discs:
                with torch.no_grad():
                    _, rf = d(wav)
                f, ff = d(fake)
                adv = adv + ((1 - f) ** 2).mean()
                fm = fm + sum(F.l1_loss(a, b) for a, b in zip(ff, rf))
        g_loss = adv + 2 * fm + 15 * spectral_loss(wav, fake)
        g_opt.zero_grad()
        scaler_g.scale(g_loss).backward()
        scaler_g.unscale_(g_opt)
        nn.utils.clip_grad_norm_(gen.parameters(), 100.0)
        scaler_g.step(g_opt)
        scaler_g.update()
        print(f"step {step} d {d_loss.item():.4f} g {g_loss.item():.4f} scale {scaler_g.get_scale():.0f}")
    gen.eval()
    with torch.no_grad(), torch.autocast(dev, dtype=torch.float16):
        long = gen(torch.randn(1, 80, args.frames * 12 + 5, device=dev))
    print("synthesised", tuple(long.shape), f"rms {long.float().pow(2).mean().sqrt().item():.4f}")

if __name__ == "__main__":
    main()
