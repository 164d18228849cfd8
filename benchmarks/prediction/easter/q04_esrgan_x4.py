"""Real-ESRGAN style x4 super-resolution: RRDB generator, U-Net discriminator with spectral norm, tiled evaluation."""
import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset


class DenseBlock(nn.Module):
    def __init__(self, nf=64, gc=32):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(nf + i * gc, gc if i < 4 else nf, 3, padding=1) for i in range(5))
        for c in self.convs:
            nn.init.kaiming_normal_(c.weight)
            c.weight.data *= 0.1
        self.act = nn.LeakyReLU(0.2, inplace=True)

    def forward(self, x):
        feats = [x]
        for conv in self.convs[:-1]:
            feats.append(self.act(conv(torch.cat(feats, 1))))
        return x + 0.2 * self.convs[-1](torch.cat(feats, 1))


class RRDB(nn.Module):
    def __init__(self, nf, gc):
        super().__init__()
        self.body = nn.Sequential(*[DenseBlock(nf, gc) for _ in range(3)])

    def forward(self, x):
        return x + 0.2 * self.body(x)


class Generator(nn.Module):
    def __init__(self, blocks, nf=64, gc=32):
        super().__init__()
        self.first = nn.Conv2d(3, nf, 3, padding=1)
        self.body = nn.Sequential(*[RRDB(nf, gc) for _ in range(blocks)], nn.Conv2d(nf, nf, 3, padding=1))
        self.up1, self.up2 = nn.Conv2d(nf, nf, 3, padding=1), nn.Conv2d(nf, nf, 3, padding=1)
        self.last = nn.Sequential(nn.Conv2d(nf, nf, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(nf, 3, 3, padding=1))

    def forward(self, x):
        f = self.first(x)
        f = f + self.body(f)
        f = F.leaky_relu(self.up1(F.interpolate(f, scale_factor=2, mode="nearest")), 0.2)
        f = F.leaky_relu(self.up2(F.interpolate(f, scale_factor=2, mode="nearest")), 0.2)
        return self.last(f)


class UNetDiscriminator(nn.Module):
    def __init__(self, nf=48):
        super().__init__()
        def sn(i, o, k=3, s=1):
            return spectral_norm(nn.Conv2d(i, o, k, s, 1, bias=False))
        self.c0 = nn.Conv2d(3, nf, 3, padding=1)
        self.d1, self.d2, self.d3 = sn(nf, 2 * nf, 4, 2), sn(2 * nf, 4 * nf, 4, 2), sn(4 * nf, 8 * nf, 4, 2)
        self.u1, self.u2, self.u3 = sn(8 * nf, 4 * nf), sn(4 * nf, 2 * nf), sn(2 * nf, nf)
        self.out = nn.Sequential(sn(nf, nf), nn.LeakyReLU(0.2, True), nn.Conv2d(nf, 1, 3, padding=1))

    def forward(self, x):
        act = lambda v: F.leaky_relu(v, 0.2)
        up = lambda v: F.interpolate(v, scale_factor=2, mode="bilinear", align_corners=False)
        x0 = act(self.c0(x))
        x1 = act(self.d1(x0))
        x2 = act(self.d2(x1))
        x3 = act(self.d3(x2))
        y = act(self.u1(up(x3))) + x2
        y = act(self.u2(up(y))) + x1
        y = act(self.u3(up(y))) + x0
        return self.out(y)


class Textures(Dataset):
    def __init__(self, n, sizes, seed):
        self.n, self.sizes, self.seed = n, sizes, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        h, w = self.sizes[i % len(self.sizes)]
        coarse = torch.rand(1, 3, h // 8, w // 8, generator=g)
        hr = F.interpolate(coarse, size=(h, w), mode="bicubic", align_corners=False)
        hr = (hr + 0.05 * torch.rand(1, 1, h, w, generator=g)).clamp(0, 1)
        return hr[0]


def degrade(hr, noise=0.02):
    lr = F.interpolate(hr, scale_factor=0.25, mode="bicubic", antialias=True, align_corners=False)
    return (lr + noise * torch.randn_like(lr)).clamp(0, 1)


@torch.no_grad()
def tiled(model, lr, tile, pad, device):
    _, _, h, w = lr.shape
    out = lr.new_zeros(1, 3, h * 4, w * 4)
    for y in range(0, h, tile):
        for x in range(0, w, tile):
            y0, x0, y1, x1 = max(y - pad, 0), max(x - pad, 0), min(y + tile + pad, h), min(x + tile + pad, w)
            with torch.autocast(device, dtype=torch.bfloat16):
                sr = model(lr[:, :, y0:y1, x0:x1]).float()
            ye, xe = min(y + tile, h), min(x + tile, w)
            out[:, :, 4 * y:4 * ye, 4 * x:4 * xe] = sr[:, :, 4 * (y - y0):4 * (ye - y0), 4 * (x - x0):4 * (xe - x0)]
    return out.clamp(0, 1)


def fft_loss(a, b):
    return (torch.fft.rfft2(a, norm="ortho") - torch.fft.rfft2(b, norm="ortho")).abs().mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--blocks", type=int, default=9)
    p.add_argument("--patch", type=int, default=208)
    p.add_argument("--batch", type=int, default=14)
    p.add_argument("--steps", type=int, default=36)
    p.add_argument("--warm", type=int, default=10, help="steps without the adversarial term")
    p.add_argument("--lr", type=float, default=1e-4)
    args = p.parse_args()
    device = "cuda"
    torch.manual_seed(7)
    torch.backends.cudnn.allow_tf32 = True

    gen, disc = Generator(args.blocks).to(device), UNetDiscriminator().to(device)
    ema = AveragedModel(gen, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    g_opt = torch.optim.Adam(gen.parameters(), lr=args.lr, betas=(0.9, 0.99))
    d_opt = torch.optim.Adam(disc.parameters(), lr=args.lr, betas=(0.9, 0.99))
    g_sched = torch.optim.lr_scheduler.MultiStepLR(g_opt, [args.steps // 2, args.steps * 3 // 4], 0.5)
    loader = DataLoader(Textures(args.steps * args.batch, [(args.patch, args.patch)], 10), args.batch, num_workers=2)
    bce = nn.BCEWithLogitsLoss()

    for step, hr in enumerate(loader):
        hr = hr.to(device, non_blocking=True)
        lr = degrade(hr)
        disc.requires_grad_(False)
        with torch.autocast(device, dtype=torch.bfloat16):
            sr = gen(lr)
            fake = disc(sr) if step >= args.warm else None
        loss = F.l1_loss(sr.float(), hr) + 0.05 * fft_loss(sr.float(), hr)
        if fake is not None:
            loss = loss + 0.1 * bce(fake.float(), torch.ones_like(fake, dtype=torch.float32))
        g_opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(gen.parameters(), 1.0)
        g_opt.step()
        g_sched.step()
        ema.update_parameters(gen)
        d_loss = torch.zeros(())
        if step >= args.warm:
            disc.requires_grad_(True)
            with torch.autocast(device, dtype=torch.bfloat16):
                real_out, fake_out = disc(hr), disc(sr.detach())
            d_loss = bce(real_out.float(), torch.ones_like(real_out, dtype=torch.float32)) + \
                bce(fake_out.float(), torch.zeros_like(fake_out, dtype=torch.float32))
            d_opt.zero_grad()
            d_loss.backward()
            d_opt.step()
        if step % 6 == 0:
            print(f"step {step} gen {loss.item():.4f} disc {d_loss.item():.4f}")

    ema.eval()
    scores = []
    for hr in DataLoader(Textures(5, [(572, 804), (444, 996), (700, 700)], 999), 1):
        hr = hr.to(device)
        sr = tiled(ema, degrade(hr), 96, 10, device)
        scores.append(-10 * torch.log10(F.mse_loss(sr, hr)).item())
    print("psnr", " ".join(f"{s:.2f}" for s in scores))
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"g": gen.state_dict(), "d": disc.state_dict(), "ema": ema.state_dict()}, os.path.join(folder, "x4.pt"))


if __name__ == "__main__":
    main()
