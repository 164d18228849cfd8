"""Neural audio codec: strided conv encoder, residual vector quantiser with EMA codebooks, complex-STFT discriminators."""
import argparse
import itertools
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


def wconv(cin, cout, k, stride=1, dilation=1):
    return weight_norm(nn.Conv1d(cin, cout, k, stride, padding=((k - 1) * dilation + 1 - stride + 1) // 2, dilation=dilation))


class Snake(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, ch, 1))

    def forward(self, x):
        return x + torch.sin(self.alpha * x).pow(2) / (self.alpha + 1e-9)


class ResUnit(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.f = nn.Sequential(Snake(ch), wconv(ch, ch, 7, dilation=dilation), Snake(ch), wconv(ch, ch, 1))

    def forward(self, x):
        return x + self.f(x)


def encoder(ch, strides, latent):
    mods = [wconv(1, ch, 7)]
    for s in strides:
        mods += [ResUnit(ch, d) for d in (1, 3, 9)] + [Snake(ch), weight_norm(nn.Conv1d(ch, 2 * ch, 2 * s, s, padding=(s + 1) // 2))]
        ch *= 2
    return nn.Sequential(*mods, Snake(ch), wconv(ch, latent, 3)), ch


def decoder(ch, strides, latent):
    mods = [wconv(latent, ch, 7)]
    for s in reversed(strides):
        mods += [Snake(ch), weight_norm(nn.ConvTranspose1d(ch, ch // 2, 2 * s, s, padding=(s + 1) // 2, output_padding=s % 2))]
        ch //= 2
        mods += [ResUnit(ch, d) for d in (1, 3, 9)]
    return nn.Sequential(*mods, Snake(ch), wconv(ch, 1, 7), nn.Tanh())


class Codebook(nn.Module):
    def __init__(self, size, dim, decay=0.99):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(size, dim) * 0.1)
        self.register_buffer("count", torch.ones(size))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        dist = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codes.t() + self.codes.pow(2).sum(1)
        idx = dist.argmin(1)
        q = F.embedding(idx, self.codes)
        if self.training:
            with torch.no_grad():
                onehot = F.one_hot(idx, len(self.codes)).to(flat.dtype)
                self.count.lerp_(onehot.sum(0), 1 - self.decay)
                self.sums.lerp_(onehot.t() @ flat, 1 - self.decay)
                self.codes.copy_(self.sums / self.count.clamp(min=1e-3)[:, None])
        return q.view_as(x), idx.view(x.shape[:-1])


class ResidualVQ(nn.Module):
    def __init__(self, stages, size, dim):
        super().__init__()
        self.books = nn.ModuleList(Codebook(size, dim) for _ in range(stages))

    def forward(self, z, n=None):
        res, out, commit, ids = z, torch.zeros_like(z), 0.0, []
        for book in self.books[:n]:
            q, i = book(res.detach())
            commit = commit + F.mse_loss(res, q)
            res, out = res - q, out + q
            ids.append(i)
        return z + (out - z).detach(), commit, torch.stack(ids, 1)


class Codec(nn.Module):
    def __init__(self, ch, strides, latent, stages, size):
        super().__init__()
        self.enc, top = encoder(ch, strides, latent)
        self.dec = decoder(top, strides, latent)
        self.hop = math.prod(strides)
        self.rvq = ResidualVQ(stages, size, latent)

    def forward(self, wav, n=None):
        padded = F.pad(wav, (0, -wav.shape[-1] % self.hop))
        q, commit, ids = self.rvq(self.enc(padded).transpose(1, 2), n)
        out = self.dec(q.transpose(1, 2))
        return out[..., : wav.shape[-1]], commit, ids


class STFTDisc(nn.Module):
    def __init__(self, n_fft, ch=32):
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("win", torch.hann_window(n_fft), persistent=False)
        wn = weight_norm
        self.convs = nn.ModuleList([wn(nn.Conv2d(2, ch, (3, 9), padding=(1, 4)))]
                                   + [wn(nn.Conv2d(ch, ch, (3, 9), (1, 2), padding=(d, 4), dilation=(d, 1))) for d in (1, 2, 4)]
                                   + [wn(nn.Conv2d(ch, ch, 3, padding=1))])
        self.post = wn(nn.Conv2d(ch, 1, 3, padding=1))

    def forward(self, wav):
        s = torch.stft(wav.squeeze(1), self.n_fft, self.n_fft // 4, window=self.win, return_complex=True)
        x = torch.view_as_real(s).permute(0, 3, 2, 1)
        maps = []
        for c in self.convs:
            x = F.leaky_relu(c(x), 0.2)
            maps.append(x)
        return self.post(x), maps


class MelLike(nn.Module):
    """Multi-scale log-magnitude distance on pooled spectra."""

    def __init__(self, ffts=(256, 512, 1024, 2048)):
        super().__init__()
        self.ffts = ffts

    def forward(self, a, b):
        loss = 0.0
        for n in self.ffts:
            w = torch.hann_window(n, device=a.device)
            A, B = (torch.stft(t.squeeze(1), n, n // 4, window=w, return_complex=True).abs() for t in (a, b))
            A, B = (F.adaptive_avg_pool1d(t.transpose(1, 2), 80).clamp(min=1e-5) for t in (A, B))
            loss = loss + F.l1_loss(A.log10(), B.log10()) + F.l1_loss(A, B)
        return loss


class Tones(torch.utils.data.IterableDataset):
    def __init__(self, samples, sr, n):
        self.samples, self.sr, self.n = samples, sr, n

    def __iter__(self):
        g = torch.Generator().manual_seed(8)
        t = torch.arange(self.samples) / self.sr
        for _ in range(self.n):
            f = 80 + 400 * torch.rand(6, 1, generator=g)
            amp = torch.rand(6, 1, generator=g) / 6
            vib = torch.sin(2 * torch.pi * 5 * t) * 3
            yield ((amp * torch.sin(2 * torch.pi * f * t + vib)).sum(0) + 0.01 * torch.randn(self.samples, generator=g))[None]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    p.add_argument("--sr", type=int, default=24000)
    p.add_argument("--seconds", type=float, default=1.45)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--channels", type=int, default=32)
    p.add_argument("--stages", type=int, default=8)
    p.add_argument("--codes", type=int, default=1024)
    p.add_argument("--steps", type=int, default=110)
    p.add_argument("--warmup-gan", type=int, default=30)
    p.add_argument("--long-seconds", type=float, default=20.0)
    a = p.parse_args()
    torch.manual_seed(2)
    strides = (2, 4, 5, 8)
    dev = torch.device(a.device)
    codec = Codec(a.channels, strides, 128, a.stages, a.codes).to(dev)
    discs = nn.ModuleList(STFTDisc(n) for n in (512, 1024, 2048)).to(dev)
    spec = MelLike()
    og = torch.optim.AdamW(codec.parameters(), lr=3e-4, betas=(0.8, 0.99))
    od = torch.optim.AdamW(discs.parameters(), lr=3e-4, betas=(0.8, 0.99))
    sg, sd = (torch.optim.lr_scheduler.ExponentialLR(o, 0.9995) for o in (og, od))
    ds = Tones(int(a.sr * a.seconds), a.sr, a.batch * a.steps)
    dl = torch.utils.data.DataLoader(ds, batch_size=a.batch, num_workers=1, pin_memory=dev.type == "cuda")
    quant = itertools.cycle((a.stages, a.stages // 2, 2))
    t0 = time.time()
    for step, wav in enumerate(dl):
        wav = wav.to(dev, non_blocking=True)
        fake, commit, _ = codec(wav, next(quant))
        d_loss = torch.zeros((), device=dev)
        adversarial = step >= a.warmup_gan
        if adversarial:
            for d in discs:
                real, _ = d(wav)
                fk, _ = d(fake.detach())
                d_loss = d_loss + F.relu(1 - real).mean() + F.relu(1 + fk).mean()
            od.zero_grad()
            d_loss.backward()
            od.step()
            sd.step()
        g_loss = 15 * spec(fake, wav) + F.l1_loss(fake, wav) + 0.25 * commit
        if adversarial:
            discs.requires_grad_(False)
            for d in discs:
                with torch.no_grad():
                    _, ref = d(wav)
                score, feats = d(fake)
                g_loss = g_loss - score.mean() + 2 * sum(F.l1_loss(x, y) for x, y in zip(feats, ref)) / len(ref)
            discs.requires_grad_(True)
        og.zero_grad()
        g_loss.backward()
        nn.utils.clip_grad_norm_(codec.parameters(), 1e3)
        og.step()
        sg.step()
        if step % 10 == 0:
            print(f"[{time.time() - t0:6.1f}s] step {step} G {g_loss.item():.3f} D {d_loss.item():.3f} commit {commit.item():.4f}", flush=True)
    codec.eval()
    long = next(iter(Tones(int(a.sr * a.long_seconds), a.sr, 1)))[None].to(dev)
    with torch.inference_mode():
        for n in (2, a.stages):
            rec, _, ids = codec(long, n)
            snr = 10 * torch.log10(long.pow(2).mean() / (long - rec).pow(2).mean())
            print(f"{n} codebooks: tokens {tuple(ids.shape)} snr {snr.item():.2f} dB")


if __name__ == "__main__":
    main()
