"""x4 super-resolution with a residual-in-residual generator, a U-Net critic and tiled inference on large frames."""
import argparse
import copy
import logging

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

logger = logging.getLogger("sr")


class DenseUnit(nn.Module):
    def __init__(self, nf, gc):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(nf + i * gc, gc if i < 4 else nf, 3, 1, 1) for i in range(5))
        for c in self.convs:
            nn.init.kaiming_normal_(c.weight)
            c.weight.data.mul_(0.1)
            nn.init.zeros_(c.bias)

    def forward(self, x):
        feats = [x]
        for conv in self.convs[:-1]:
            feats.append(F.leaky_relu(conv(torch.cat(feats, 1)), 0.2))
        return x + 0.2 * self.convs[-1](torch.cat(feats, 1))


class RRDB(nn.Module):
    def __init__(self, nf, gc):
        super().__init__()
        self.body = nn.Sequential(*[DenseUnit(nf, gc) for _ in range(3)])

    def forward(self, x):
        return x + 0.2 * self.body(x)


class Generator(nn.Module):
    def __init__(self, nf=54, gc=26, blocks=6):
        super().__init__()
        self.head = nn.Conv2d(3, nf, 3, 1, 1)
        self.trunk = nn.Sequential(*[RRDB(nf, gc) for _ in range(blocks)], nn.Conv2d(nf, nf, 3, 1, 1))
        self.up = nn.ModuleList(nn.Conv2d(nf, nf, 3, 1, 1) for _ in range(2))
        self.tail = nn.Sequential(nn.Conv2d(nf, nf, 3, 1, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(nf, 3, 3, 1, 1))

    def forward(self, x):
        x = self.head(x)
        x = x + self.trunk(x)
        for conv in self.up:
            x = F.leaky_relu(conv(F.interpolate(x, scale_factor=2, mode="nearest")), 0.2, inplace=True)
        return self.tail(x)


class UNetCritic(nn.Module):
    def __init__(self, nf=40):
        super().__init__()
        sn = spectral_norm
        self.c0 = nn.Conv2d(3, nf, 3, 1, 1)
        self.down = nn.ModuleList(sn(nn.Conv2d(nf * 2 ** i, nf * 2 ** (i + 1), 4, 2, 1, bias=False)) for i in range(3))
        self.up = nn.ModuleList(sn(nn.Conv2d(nf * 2 ** (i + 1), nf * 2 ** i, 3, 1, 1, bias=False)) for i in (2, 1, 0))
        self.out = nn.Sequential(sn(nn.Conv2d(nf, nf, 3, 1, 1)), nn.LeakyReLU(0.2), nn.Conv2d(nf, 1, 3, 1, 1))

    def forward(self, x):
        skips = [F.leaky_relu(self.c0(x), 0.2)]
        for d in self.down:
            skips.append(F.leaky_relu(d(skips[-1]), 0.2))
        x = skips.pop()
        for u in self.up:
            skip = skips.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = F.leaky_relu(u(x), 0.2) + skip
        return self.out(x)


class EMA:
    def __init__(self, model, decay):
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


class Textures:
    """Band-limited random textures; the low-resolution view is blurred, decimated and noisy."""

    def __init__(self, device, seed):
        self.gen = torch.Generator(device).manual_seed(seed)
        self.device = device

    def high(self, n, h, w):
        img = torch.zeros(n, 3, h, w, device=self.device)
        for k in (4, 9, 21, 47):
            noise = torch.rand(n, 3, max(2, h * k // 96), max(2, w * k // 96), device=self.device, generator=self.gen)
            img += F.interpolate(noise, size=(h, w), mode="bicubic", align_corners=False) / k ** 0.5
        return (img - img.amin()) / (img.amax() - img.amin())

    def degrade(self, hr):
        lr = F.avg_pool2d(hr, 4)
        return (lr + 0.01 * torch.randn(lr.shape, device=lr.device, generator=self.gen)).clamp(0, 1)


def fit(gen, critic, ema, data, a, device):
    opt_g = torch.optim.Adam(gen.parameters(), lr=2e-4, betas=(0.9, 0.99))
    opt_d = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.9, 0.99))
    bce = nn.BCEWithLogitsLoss()
    for it in range(a.warm_iters + a.gan_iters):
        hr = data.high(a.batch, a.patch * 4, a.patch * 4)
        lr = data.degrade(hr)
        use_gan = it >= a.warm_iters
        critic.requires_grad_(False)
        opt_g.zero_grad()
        sr = gen(lr)
        loss = F.l1_loss(sr, hr)
        if use_gan:
            logits = critic(sr)
            loss = loss + 0.05 * bce(logits, torch.ones_like(logits))
        loss.backward()
        opt_g.step()
        ema.update(gen)
        if use_gan:
            critic.requires_grad_(True)
            opt_d.zero_grad()
            real = critic(hr)
            fake = critic(sr.detach())
            d_loss = bce(real, torch.ones_like(real)) + bce(fake, torch.zeros_like(fake))
            d_loss.backward()
            opt_d.step()
        if it % a.log_every == 0:
            logger.info("iter %d gan=%s g=%.4f", it, use_gan, loss.item())


@torch.no_grad()
def upscale_tiled(net, lr, tile, overlap):
    _, _, h, w = lr.shape
    out = lr.new_zeros(1, 3, h * 4, w * 4)
    weight = torch.zeros_like(out[:, :1])
    for y in range(0, h, tile - overlap):
        for x in range(0, w, tile - overlap):
            piece = lr[:, :, y:y + tile, x:x + tile]
            ys, xs = y * 4, x * 4
            up = net(piece)
            out[:, :, ys:ys + up.shape[2], xs:xs + up.shape[3]] += up
            weight[:, :, ys:ys + up.shape[2], xs:xs + up.shape[3]] += 1
    return out / weight


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--patch", type=int, default=46)
    ap.add_argument("--blocks", type=int, default=6)
    ap.add_argument("--warm-iters", type=int, default=120)
    ap.add_argument("--gan-iters", type=int, default=260)
    ap.add_argument("--frames", type=int, nargs="*", default=[301, 407, 270, 483, 333, 333])
    ap.add_argument("--tile", type=int, default=158)
    ap.add_argument("--log-every", type=int, default=20)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    torch.manual_seed(0)
    device = torch.device(a.device)
    gen, critic = Generator(blocks=a.blocks).to(device), UNetCritic().to(device)
    ema = EMA(gen, 0.998)
    data = Textures(device, 5)
    fit(gen, critic, ema, data, a, device)
    for h, w in zip(a.frames[::2], a.frames[1::2]):
        hr = data.high(1, h * 4, w * 4)
        sr = upscale_tiled(ema.shadow, data.degrade(hr), a.tile, 12)
        mse = F.mse_loss(sr, hr).item()
        logger.info("frame %dx%d -> %s psnr %.2f", h, w, tuple(sr.shape[-2:]), -10 * torch.tensor(mse).log10().item())


if __name__ == "__main__":
    main()
