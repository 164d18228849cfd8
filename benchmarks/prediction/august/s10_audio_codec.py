"""Neural audio codec (strided 1-D convolutions + residual vector quantiser) trained on a multi-resolution STFT loss."""
import argparse
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, Dataset


class Tones(Dataset):
    """A few decaying harmonics plus noise: enough for a codec to have something to learn."""

    def __init__(self, n, samples, rate, seed):
        self.n, self.samples, self.rate, self.seed = n, samples, rate, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100_003 + i)
        t = torch.arange(self.samples) / self.rate
        f0 = 80 + 400 * torch.rand(1, generator=g)
        wave = torch.zeros(self.samples)
        for k in range(1, 5):
            wave += torch.rand(1, generator=g) / k * torch.sin(2 * math.pi * k * f0 * t)
        wave = wave * torch.exp(-1.5 * torch.rand(1, generator=g) * t) + 0.01 * torch.randn(self.samples, generator=g)
        return (wave / wave.abs().max()).unsqueeze(0)


def conv(cin, cout, k, **kw):
    return weight_norm(nn.Conv1d(cin, cout, k, **kw))


class Snake(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x):
        return x + torch.sin(self.alpha * x).pow(2) / (self.alpha + 1e-6)


class ResidualUnit(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.body = nn.Sequential(Snake(c), conv(c, c, 7, dilation=dilation, padding=3 * dilation), Snake(c), conv(c, c, 1))

    def forward(self, x):
        return x + self.body(x)


def encoder(base, strides, latent):
    layers, c = [conv(1, base, 7, padding=3)], base
    for s in strides:
        layers += [ResidualUnit(c, d) for d in (1, 3)]
        layers += [Snake(c), conv(c, 2 * c, 2 * s, stride=s, padding=math.ceil(s / 2))]
        c *= 2
    return nn.Sequential(*layers, Snake(c), conv(c, latent, 3, padding=1))


def decoder(base, strides, latent):
    c = base * 2 ** len(strides)
    layers = [conv(latent, c, 7, padding=3)]
    for s in reversed(strides):
        layers += [Snake(c), weight_norm(nn.ConvTranspose1d(c, c // 2, 2 * s, stride=s, padding=math.ceil(s / 2), output_padding=s % 2))]
        c //= 2
        layers += [ResidualUnit(c, d) for d in (1, 3)]
    return nn.Sequential(*layers, Snake(c), conv(c, 1, 7, padding=3), nn.Tanh())


class ResidualVQ(nn.Module):
    def __init__(self, stages, entries, dim):
        super().__init__()
        self.codebooks = nn.ParameterList(nn.Parameter(torch.randn(entries, dim) * 0.1 / 2 ** i) for i in range(stages))

    def forward(self, z):
        residual = z.transpose(1, 2)
        quantised, loss, codes = torch.zeros_like(residual), 0.0, []
        for book in self.codebooks:
            flat = residual.detach().reshape(-1, residual.size(-1))
            idx = torch.cdist(flat, book).argmin(1).view(residual.shape[:2])
            q = F.embedding(idx, book)
            loss = loss + F.mse_loss(q, residual.detach()) + 0.25 * F.mse_loss(residual, q.detach())
            q = residual + (q - residual).detach()
            quantised, residual = quantised + q, residual - q.detach()
            codes.append(idx)
        return quantised.transpose(1, 2), loss, torch.stack(codes, 1)


class Codec(nn.Module):
    def __init__(self, base, strides, latent, stages, entries):
        super().__init__()
        self.encoder, self.decoder = encoder(base, strides, latent), decoder(base, strides, latent)
        self.quantiser = ResidualVQ(stages, entries, latent)

    def forward(self, x):
        q, vq_loss, codes = self.quantiser(self.encoder(x))
        return self.decoder(q)[..., : x.size(-1)], vq_loss, codes


class SpectralLoss(nn.Module):
    def __init__(self, ffts=(2048, 1024, 512, 256)):
        super().__init__()
        self.ffts = ffts
        for n in ffts:
            self.register_buffer(f"window{n}", torch.hann_window(n), persistent=False)

    def magnitude(self, x, n):
        spec = torch.stft(x.squeeze(1), n, n // 4, window=getattr(self, f"window{n}"), return_complex=True)
        return spec.abs().clamp(min=1e-5)

    def forward(self, y, x):
        total = 0.0
        for n in self.ffts:
            my, mx = self.magnitude(y, n), self.magnitude(x, n)
            converge = torch.linalg.norm(mx - my) / torch.linalg.norm(mx)
            total = total + converge + F.l1_loss(my.log(), mx.log())
        return total / len(self.ffts)


@torch.no_grad()
def evaluate(model, spectral, loader, device):
    model.eval()
    sdr, dist, used = [], [], set()
    for x in loader:
        x = x.to(device)
        y, _, codes = model(x)
        noise = (x - y).pow(2).sum((1, 2)).clamp(min=1e-8)
        sdr.append((10 * torch.log10(x.pow(2).sum((1, 2)) / noise)).mean().item())
        dist.append(spectral(y, x).item())
        used |= set(codes[:, 0].unique().tolist())
    model.train()
    return sum(sdr) / len(sdr), sum(dist) / len(dist), len(used)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rate", type=int, default=24000)
    ap.add_argument("--seconds", type=float, default=1.6)
    ap.add_argument("--base", type=int, default=32)
    ap.add_argument("--strides", type=int, nargs="+", default=[2, 4, 5, 8])
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()

    torch.manual_seed(44)
    device = torch.device("cuda")
    samples = int(args.rate * args.seconds)
    train = DataLoader(Tones(args.batch * args.steps, samples, args.rate, 1), args.batch, num_workers=2, pin_memory=True)
    test = DataLoader(Tones(args.batch * 3, 2 * samples, args.rate, 2), args.batch)
    model = Codec(args.base, args.strides, 128, stages=6, entries=1024).to(device)
    spectral = SpectralLoss().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.8, 0.99))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, {samples} samples a clip")

    for step, x in enumerate(train, 1):
        x = x.to(device, non_blocking=True)
        y, vq, _ = model(x)
        spec, wave = spectral(y, x), F.l1_loss(y, x)
        loss = spec + 10 * wave + vq
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        scheduler.step()
        if step % 8 == 0:
            print(f"step {step} spectral {spec.item():.3f} wave {wave.item():.4f} vq {vq.item():.4f} norm {norm.item():.2f}")
    sdr, dist, used = evaluate(model, spectral, test, device)
    print(f"test: SDR {sdr:.2f} dB, spectral {dist:.3f}, {used} entries of the first codebook used")
    with tempfile.TemporaryDirectory() as d:
        torch.save(model.state_dict(), os.path.join(d, "codec.pt"))


if __name__ == "__main__":
    main()
