"""Residual GAN at 128x128: spectral norm critic, R1 penalty, two Adam optimizers, generator average."""
import copy
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm

device = "cuda"

SIZE = 128
LATENT = 256
BASE = 64
MAX_CH = 512
BATCH = 48
STEPS = 48
R1_EVERY = 4
R1_GAMMA = 5.0
SAMPLE_EVERY = 16


def channels(res):
    return min(MAX_CH, BASE * SIZE // res)


class GBlock(nn.Module):
    def __init__(self, cin, cout, latent):
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(latent, 2 * cin), nn.Linear(latent, 2 * cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1)

    @staticmethod
    def modulate(x, style):
        gain, bias = style[:, :, None, None].chunk(2, dim=1)
        return F.instance_norm(x) * (1 + gain) + bias

    def forward(self, x, w):
        h = F.leaky_relu(self.modulate(x, self.affine1(w)), 0.2)
        h = self.conv1(F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False))
        h = self.conv2(F.leaky_relu(self.modulate(h, self.affine2(w)), 0.2))
        return h + self.skip(F.interpolate(x, scale_factor=2))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.mapping = nn.Sequential(nn.Linear(LATENT, LATENT), nn.LeakyReLU(0.2), nn.Linear(LATENT, LATENT))
        self.const = nn.Parameter(torch.randn(1, channels(4), 4, 4))
        self.blocks = nn.ModuleList()
        res = 4
        while res < SIZE:
            self.blocks.append(GBlock(channels(res), channels(2 * res), LATENT))
            res *= 2
        self.to_rgb = nn.Conv2d(channels(SIZE), 3, 3, padding=1)

    def forward(self, z):
        w = self.mapping(F.normalize(z, dim=1) * LATENT ** 0.5)
        x = self.const.expand(z.shape[0], -1, -1, -1)
        for block in self.blocks:
            x = block(x, w)
        return torch.tanh(self.to_rgb(F.leaky_relu(x, 0.2)))


class DBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = spectral_norm(nn.Conv2d(cin, cin, 3, padding=1))
        self.conv2 = spectral_norm(nn.Conv2d(cin, cout, 3, padding=1))
        self.skip = spectral_norm(nn.Conv2d(cin, cout, 1))

    def forward(self, x):
        h = self.conv2(F.leaky_relu(self.conv1(F.leaky_relu(x, 0.2)), 0.2))
        return F.avg_pool2d(h, 2) + self.skip(F.avg_pool2d(x, 2))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.from_rgb = spectral_norm(nn.Conv2d(3, channels(SIZE), 3, padding=1))
        blocks, res = [], SIZE
        while res > 4:
            blocks.append(DBlock(channels(res), channels(res // 2)))
            res //= 2
        self.blocks = nn.Sequential(*blocks)
        self.out = spectral_norm(nn.Linear(channels(4) * 16, 1))

    def forward(self, x):
        h = F.leaky_relu(self.blocks(self.from_rgb(x)), 0.2)
        return self.out(h.flatten(1)).squeeze(1)


def real_images(n, g):
    """Random smooth textures built on the GPU."""
    coarse = torch.randn(n, 3, 8, 8, device=device, generator=g)
    fine = torch.randn(n, 3, 32, 32, device=device, generator=g)
    up = lambda t: F.interpolate(t, size=(SIZE, SIZE), mode="bicubic", align_corners=False)
    return torch.tanh(up(coarse) + 0.3 * up(fine))


def requires_grad(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


def main():
    torch.manual_seed(0)
    G, D = Generator().to(device), Discriminator().to(device)
    average = copy.deepcopy(G).eval()
    requires_grad(average, False)
    opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.0, 0.99))
    opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.0, 0.99), foreach=False)
    g = torch.Generator(device=device).manual_seed(3)
    fixed = torch.randn(32, LATENT, device=device, generator=g)
    snapshots, log = [], []
    start = time.time()
    for step in range(STEPS):
        # critic
        requires_grad(D, True)
        real = real_images(BATCH, g)
        with torch.no_grad():
            fake = G(torch.randn(BATCH, LATENT, device=device, generator=g))
        d_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
        opt_d.zero_grad()
        d_loss.backward()
        if step % R1_EVERY == 0:
            real.requires_grad_(True)
            score = D(real).sum()
            grad, = torch.autograd.grad(score, real, create_graph=True)
            penalty = grad.square().sum(dim=(1, 2, 3)).mean()
            (penalty * R1_GAMMA / 2 * R1_EVERY).backward()
        opt_d.step()
        # generator
        requires_grad(D, False)
        fake = G(torch.randn(BATCH, LATENT, device=device, generator=g))
        g_loss = F.softplus(-D(fake)).mean()
        opt_g.zero_grad(set_to_none=True)
        g_loss.backward()
        opt_g.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), G.parameters()):
                a.lerp_(p, 0.01)
        log.append((d_loss.item(), g_loss.item()))
        if (step + 1) % SAMPLE_EVERY == 0:
            with torch.no_grad():
                snapshots.append(average(fixed).cpu())
            print(f"step {step} D {log[-1][0]:.4f} G {log[-1][1]:.4f} R1 {penalty.item():.5f} {time.time() - start:.1f}s")
    drift = (snapshots[-1] - snapshots[0]).abs().mean().item()
    print(f"sample drift {drift:.5f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
