"""Multi-resolution hash-grid radiance field, coarse proposal network + fine field, fp16 with GradScaler."""
import argparse
import math

import torch
from torch import nn
import torch.nn.functional as F


class HashGrid(nn.Module):
    PRIMES = (1, 2654435761, 805459861)

    def __init__(self, levels=16, feats=2, log2_size=19, base=16, finest=1024):
        super().__init__()
        growth = math.exp((math.log(finest) - math.log(base)) / max(levels - 1, 1))
        self.res = [int(base * growth ** i) for i in range(levels)]
        self.sizes = [min((r + 1) ** 3, 2 ** log2_size) for r in self.res]
        self.tables = nn.ModuleList(nn.Embedding(s, feats) for s in self.sizes)
        for t in self.tables:
            nn.init.uniform_(t.weight, -1e-4, 1e-4)
        corners = torch.stack(torch.meshgrid(*[torch.arange(2)] * 3, indexing="ij"), -1).view(8, 3)
        self.register_buffer("corners", corners)
        self.out_dim = levels * feats

    def index(self, ijk, level):
        r, size = self.res[level], self.sizes[level]
        if (r + 1) ** 3 <= size:
            return ijk[..., 0] + (r + 1) * (ijk[..., 1] + (r + 1) * ijk[..., 2])
        h = ijk[..., 0] * self.PRIMES[0]
        h = h ^ (ijk[..., 1] * self.PRIMES[1])
        h = h ^ (ijk[..., 2] * self.PRIMES[2])
        return h % size

    def forward(self, x):
        outs = []
        for lv, table in enumerate(self.tables):
            s = x * self.res[lv]
            lo = s.floor().clamp(max=self.res[lv] - 1)
            fr = (s - lo)[:, None]
            ids = self.index(lo.long()[:, None] + self.corners, lv)
            w = torch.where(self.corners.bool(), fr, 1 - fr).prod(-1, keepdim=True)
            outs.append((table(ids) * w).sum(1))
        return torch.cat(outs, -1)


def sh_basis(d):
    x, y, z = d.unbind(-1)
    return torch.stack([torch.full_like(x, 0.282), -0.488 * y, 0.488 * z, -0.488 * x, 1.09 * x * y, -1.09 * y * z,
                        0.315 * (3 * z * z - 1), -1.09 * x * z, 0.546 * (x * x - y * y)], -1)


class Field(nn.Module):
    def __init__(self, hidden, **grid):
        super().__init__()
        self.grid = HashGrid(**grid)
        self.sigma = nn.Sequential(nn.Linear(self.grid.out_dim, hidden), nn.ReLU(), nn.Linear(hidden, 16))
        self.color = nn.Sequential(nn.Linear(16 + 9, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def density(self, x):
        h = self.sigma(self.grid(x))
        return F.softplus(h[:, 0].float() - 1), h

    def forward(self, x, d):
        s, h = self.density(x)
        return s, torch.sigmoid(self.color(torch.cat([h, sh_basis(d).to(h.dtype)], -1)).float())


class Proposal(nn.Module):
    def __init__(self, log2_size):
        super().__init__()
        self.grid = HashGrid(levels=5, feats=2, log2_size=log2_size, finest=128)
        self.net = nn.Sequential(nn.Linear(self.grid.out_dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return F.softplus(self.net(self.grid(x)).squeeze(-1).float() - 1)


def weights_of(sigma, t):
    delta = t[:, 1:] - t[:, :-1]
    tau = sigma * delta
    trans = torch.exp(-torch.cumsum(F.pad(tau, (1, 0))[:, :-1], 1))
    return trans * (1 - torch.exp(-tau))


def resample(t, w, n, det):
    pdf = (w + 1e-3) / (w + 1e-3).sum(1, keepdim=True)
    cdf = F.pad(pdf.cumsum(1), (1, 0))
    u = torch.linspace(0, 1 - 1e-4, n + 1, device=t.device).expand(len(t), n + 1).contiguous()
    if not det:
        u = (u + torch.rand(len(t), 1, device=t.device) / (n + 1)).clamp(max=1 - 1e-5)
    i = torch.searchsorted(cdf, u, right=True).clamp(1, t.shape[1] - 1)
    c0, c1 = cdf.gather(1, i - 1), cdf.gather(1, i)
    t0, t1 = t.gather(1, i - 1), t.gather(1, i)
    return t0 + (t1 - t0) * ((u - c0) / (c1 - c0).clamp(min=1e-5)).clamp(0, 1)


def scene_color(o, d):
    """Analytic target: shaded sphere in front of a checker backdrop."""
    b = (o * d).sum(-1)
    disc = b * b - (o * o).sum(-1) + 0.36
    hit = disc > 0
    p = o + d * (-b - disc.clamp(min=0).sqrt())[:, None]
    shade = 0.5 + 0.5 * F.normalize(p, dim=-1)
    back = (torch.sin(d * 9).sign() + 1) / 2
    return torch.where(hit[:, None], shade, back)


def camera_rays(n, device, gen):
    o = F.normalize(torch.randn(n, 3, device=device, generator=gen), dim=-1) * 1.6
    tgt = torch.randn(n, 3, device=device, generator=gen) * 0.35
    return o, F.normalize(tgt - o, dim=-1)


class Renderer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.prop = Proposal(a.log2_size - 2)
        self.field = Field(a.hidden, levels=a.levels, log2_size=a.log2_size)
        self.n_prop, self.n_fine = a.n_prop, a.n_fine

    def points(self, o, d, t):
        mid = (t[:, 1:] + t[:, :-1]) / 2
        x = o[:, None] + d[:, None] * mid[..., None]
        return ((x + 1.8) / 3.6).clamp(0, 1).reshape(-1, 3)

    def forward(self, o, d):
        R = len(o)
        t = torch.linspace(0.2, 3.2, self.n_prop + 1, device=o.device).expand(R, -1)
        wp = weights_of(self.prop(self.points(o, d, t)).view(R, -1), t)
        tf = resample(t, wp.detach(), self.n_fine, det=not self.training)
        dirs = d[:, None].expand(-1, self.n_fine, -1).reshape(-1, 3)
        sg, rgb = self.field(self.points(o, d, tf), dirs)
        wf = weights_of(sg.view(R, -1), tf)
        col = (wf[..., None] * rgb.view(R, -1, 3)).sum(1)
        return col, (t, wp), (tf, wf)


def interlevel(t, wp, tf, wf):
    cw = F.pad(wp.cumsum(1), (1, 0))
    hi = torch.searchsorted(t.contiguous(), tf[:, 1:].contiguous()).clamp(max=t.shape[1] - 1)
    lo = (torch.searchsorted(t.contiguous(), tf[:, :-1].contiguous(), right=True) - 1).clamp(min=0)
    bound = cw.gather(1, hi) - cw.gather(1, lo)
    w = wf.detach()
    return ((w - bound).clamp(min=0) ** 2 / (w + 1e-5)).mean()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    p.add_argument("--rays", type=int, default=10240)
    p.add_argument("--n-prop", type=int, default=96)
    p.add_argument("--n-fine", type=int, default=72)
    p.add_argument("--levels", type=int, default=16)
    p.add_argument("--log2-size", type=int, default=19)
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--steps", type=int, default=180)
    p.add_argument("--image", type=int, nargs=2, default=(378, 504))
    p.add_argument("--chunk", type=int, default=20000)
    p.add_argument("--views", type=int, default=3)
    return p.parse_args()


def main():
    a = parse()
    torch.manual_seed(11)
    model = Renderer(a).to(a.device)
    grids = [q for n, q in model.named_parameters() if "tables" in n]
    mlps = [q for n, q in model.named_parameters() if "tables" not in n]
    opt = torch.optim.Adam([{"params": grids, "lr": 1e-2}, {"params": mlps, "lr": 2e-3, "weight_decay": 1e-6}], betas=(0.9, 0.99), eps=1e-15)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.33 ** (1 / max(a.steps, 1)))
    scaler = torch.amp.GradScaler(a.device, enabled=a.device.startswith("cuda"))
    half = torch.float16 if a.device.startswith("cuda") else torch.bfloat16
    gen = torch.Generator(a.device).manual_seed(5)
    model.train()
    for it in range(a.steps):
        o, d = camera_rays(a.rays, a.device, gen)
        gt = scene_color(o, d)
        with torch.autocast(a.device, dtype=half):
            col, prop, fine = model(o, d)
            rec = F.smooth_l1_loss(col, gt, beta=0.1)
            loss = rec + interlevel(*prop, *fine)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        sched.step()
        if it % 20 == 0:
            print(f"it {it:4d} psnr {-10 * math.log10(F.mse_loss(col, gt).item()):.2f} lr {sched.get_last_lr()[0]:.2e}")
    model.eval()
    H, W = a.image
    ys, xs = torch.meshgrid(torch.linspace(-0.4, 0.4, H, device=a.device), torch.linspace(-0.5, 0.5, W, device=a.device), indexing="ij")
    for v in range(a.views):
        ang = 2 * math.pi * v / a.views
        o = torch.tensor([1.6 * math.cos(ang), 1.6 * math.sin(ang), 0.0], device=a.device)
        fwd = -F.normalize(o, dim=0)
        right = torch.stack([fwd[1], -fwd[0], fwd[2]])
        up = torch.linalg.cross(right, fwd)
        d = F.normalize(fwd + xs[..., None] * right + ys[..., None] * up, dim=-1).view(-1, 3)
        o = o.expand_as(d)
        with torch.no_grad(), torch.autocast(a.device, dtype=half):
            img = torch.cat([model(oc, dc)[0] for oc, dc in zip(o.split(a.chunk), d.split(a.chunk))])
        print(f"view {v}: psnr {-10 * math.log10(F.mse_loss(img, scene_color(o, d)).item()):.2f}")


if __name__ == "__main__":
    main()
