"""3-D voxel GAN (64^3) with a lazy R1 penalty, minibatch-stddev and path-free generator EMA."""
import argparse
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

class AdaNorm(nn.Module):
    def __init__(self, ch, zdim):
        super().__init__()
        self.norm = nn.InstanceNorm3d(ch)
        self.fc = nn.Linear(zdim, 2 * ch)
    def forward(self, x, z):
        g, b = self.fc(z)[:, :, None, None, None].chunk(2, 1)
        return self.norm(x) * (1 + g) + b

class GBlock(nn.Module):
    def __init__(self, i, o, zdim):
        super().__init__()
        self.conv = nn.Conv3d(i, o, 3, padding=1)
        self.noise = nn.Parameter(torch.zeros(1, o, 1, 1, 1))
        self.norm = AdaNorm(o, zdim)
    def forward(self, x, z):
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        x = self.conv(x)
        x = x + self.noise * torch.randn(x.size(0), 1, *x.shape[2:], device=x.device)
        return F.leaky_relu(self.norm(x, z), 0.2)
class Generator(nn.Module):
    def __init__(self, zdim, ch, levels):
        super().__init__()
        self.map = nn.Sequential(nn.Linear(zdim, 256), nn.LeakyReLU(0.2), nn.Linear(256, zdim))
        top = ch * 2 ** (levels - 1)
        self.const = nn.Parameter(torch.randn(1, top, 4, 4, 4))
        dims = [top] + [top // 2 ** i for i in range(1, levels)] + [ch // 2]
        self.blocks = nn.ModuleList(GBlock(a, b, zdim) for a, b in zip(dims, dims[1:]))
        self.out = nn.Conv3d(dims[-1], 1, 3, padding=1)
    def forward(self, z):
        w = self.map(z)
        x = self.const.expand(z.size(0), -1, -1, -1, -1)
        for b in self.blocks:
            x = b(x, w)
        return torch.sigmoid(self.out(x))
class Discriminator(nn.Module):
    def __init__(self, ch, levels):
        super().__init__()
        self.stem = nn.Conv3d(1, ch // 2, 3, padding=1)
        dims = [ch // 2] + [ch * 2 ** i for i in range(levels)]
        self.convs = nn.ModuleList(nn.Conv3d(a, b, 3, padding=1) for a, b in zip(dims, dims[1:]))
        self.skips = nn.ModuleList(nn.Conv3d(a, b, 1, bias=False) for a, b in zip(dims, dims[1:]))
        self.fc = nn.Linear((dims[-1] + 1) * 64, 1)
    def forward(self, x):
        x = F.leaky_relu(self.stem(x), 0.2)
        for c, s in zip(self.convs, self.skips):
            x = F.leaky_relu(F.avg_pool3d(c(x), 2), 0.2) + s(F.avg_pool3d(x, 2))
        std = torch.sqrt(x.var(0, unbiased=False) + 1e-8).mean().expand(x.size(0), 1, *x.shape[2:])
        return self.fc(torch.cat([x, std], 1).flatten(1)).squeeze(1)
def solid_shapes(n, size, device):
    """Random ellipsoids and boxes as soft occupancy grids."""
    ax = torch.linspace(-1, 1, size, device=device)
    grid = torch.stack(torch.meshgrid(ax, ax, ax, indexing="ij"))[None]
    c = (torch.rand(n, 3, 1, 1, 1, device=device) - 0.5)
    r = torch.rand(n, 3, 1, 1, 1, device=device) * 0.5 + 0.2
    d = (grid - c) / r
    ball = torch.sigmoid(20 * (1 - d.pow(2).sum(1, keepdim=True)))
    box = torch.sigmoid(20 * (1 - d.abs().amax(1, keepdim=True)))
    pick = torch.rand(n, 1, 1, 1, 1, device=device) < 0.5
    return torch.where(pick, ball, box)

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=10)
    p.add_argument("--channels", type=int, default=32)
    p.add_argument("--levels", type=int, default=4, help="64^3 needs 4 doublings from 4^3")
    p.add_argument("--zdim", type=int, default=128)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--r1-every", type=int, default=4)
    p.add_argument("--r1-gamma", type=float, default=5.0)
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    size = 4 * 2 ** a.levels
    torch.manual_seed(0)
    G = Generator(a.zdim, a.channels, a.levels).to(a.device)
    D = Discriminator(a.channels, a.levels).to(a.device)
    G_ema = copy.deepcopy(G).eval().requires_grad_(False)
    og = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.0, 0.99))
    od = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.0, 0.99))
    for step in range(a.steps):
        real = solid_shapes(a.batch, size, a.device)
        # discriminator
        D.requires_grad_(True)
        with torch.no_grad():
            fake = G(torch.randn(a.batch, a.zdim, device=a.device))
        lr_, lf_ = D(real), D(fake)
        loss_d = F.softplus(-lr_).mean() + F.softplus(lf_).mean()
        od.zero_grad(set_to_none=True)
        loss_d.backward()
        r1 = None
        if step % a.r1_every == a.r1_every - 1:
            x = real.detach().requires_grad_(True)
            g, = torch.autograd.grad(D(x).sum(), x, create_graph=True)
            r1 = g.pow(2).sum((1, 2, 3, 4)).mean()
            (0.5 * a.r1_gamma * a.r1_every * r1).backward()
        od.step()
        # generator
        D.requires_grad_(False)
        loss_g = F.softplus(-D(G(torch.randn(a.batch, a.zdim, device=a.device)))).mean()
        og.zero_grad(set_to_none=True)
        loss_g.backward()
        og.step()
        with torch.no_grad():
            for pe, pg in zip(G_ema.parameters(), G.parameters()):
                pe.mul_(0.99).add_(pg, alpha=0.01)
        extra = "" if r1 is None else f" r1 {r1.item():.4f}"
        print(f"step {step} D {loss_d.item():.4f} G {loss_g.item():.4f}{extra}")
    with torch.no_grad():
        vox = torch.cat([G_ema(z) for z in torch.randn(24, a.zdim, device=a.device).split(8)])
    print("occupied fraction", (vox > 0.5).float().mean().item(), tuple(vox.shape))

if __name__ == "__main__":
    main()
