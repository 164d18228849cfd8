"""Hash-grid radiance field with an occupancy grid, ragged sample compaction and chunked eval rendering."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

PRIMES = (1, 2654435761, 805459861)


class HashGrid(nn.Module):
    def __init__(self, levels=16, feats=2, log2_size=19, base=16, growth=1.45):
        super().__init__()
        self.size = 2 ** log2_size
        self.resolutions = [int(base * growth ** i) for i in range(levels)]
        self.tables = nn.Parameter(torch.empty(levels, self.size, feats).uniform_(-1e-2, 1e-2))
        corners = torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
        self.register_buffer("corners", corners)
        self.out_dim = levels * feats

    def forward(self, x):  # (N, 3) in [0, 1]
        outs = []
        for lvl, res in enumerate(self.resolutions):
            p = x * res
            base = p.floor().long()
            frac = (p - base).unsqueeze(1)
            idx = base.unsqueeze(1) + self.corners  # N, 8, 3
            h = idx[..., 0] * PRIMES[0] ^ idx[..., 1] * PRIMES[1] ^ idx[..., 2] * PRIMES[2]
            h = h % self.size
            w = torch.where(self.corners.bool(), frac, 1 - frac).prod(-1, keepdim=True)
            outs.append((self.tables[lvl][h] * w).sum(1))
        return torch.cat(outs, -1)


class Field(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.grid = HashGrid()
        self.density = nn.Sequential(nn.Linear(self.grid.out_dim, hidden), nn.ReLU(), nn.Linear(hidden, 16))
        self.color = nn.Sequential(nn.Linear(15 + 9, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                   nn.Linear(hidden, 3))

    def forward(self, x, d):
        h = self.density(self.grid(x))
        sh = torch.cat([d, d * d, d * d.roll(1, -1)], -1)
        return F.softplus(h[:, 0] - 1), torch.sigmoid(self.color(torch.cat([h[:, 1:], sh], -1)))


def render(field, occ, origins, dirs, n_samples):
    n = origins.shape[0]
    t = torch.linspace(0.05, 1.7, n_samples, device=origins.device)
    t = t + torch.rand(n, n_samples, device=origins.device) * (1.65 / n_samples)
    pts = origins[:, None] + t[..., None] * dirs[:, None]
    inside = ((pts > 0) & (pts < 1)).all(-1)
    cell = (pts.clamp(0, 0.999) * occ.shape[0]).long()
    keep = inside & occ[cell[..., 0], cell[..., 1], cell[..., 2]]
    ray, smp = keep.nonzero(as_tuple=True)
    sigma_k, rgb_k = field(pts[ray, smp], dirs[ray])
    sigma = torch.zeros(n, n_samples, device=t.device).index_put((ray, smp), sigma_k.float())
    rgb = torch.zeros(n, n_samples, 3, device=t.device).index_put((ray, smp), rgb_k.float())
    delta = torch.diff(t, dim=1, append=t[:, -1:] + 1e-2)
    alpha = 1 - torch.exp(-sigma * delta)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    return ((alpha * trans)[..., None] * rgb).sum(1), ray.numel()


def random_rays(n, device):
    o = torch.rand(n, 3, device=device) * 0.2 - 0.1
    target = torch.rand(n, 3, device=device)
    return o, F.normalize(target - o, dim=-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rays", type=int, default=16384)
    ap.add_argument("--samples", type=int, default=128)
    ap.add_argument("--steps", type=int, default=12)
    ap.add_argument("--image", type=int, default=200)
    args = ap.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda")
    field = Field().to(device)
    opt = torch.optim.Adam([{"params": field.grid.parameters(), "lr": 1e-2},
                            {"params": [p for n, p in field.named_parameters() if "grid" not in n], "lr": 1e-3}],
                           eps=1e-15)
    occ = torch.rand(128, 128, 128, device=device) < 0.6
    for step in range(args.steps):
        o, d = random_rays(args.rays, device)
        gt = 0.5 + 0.5 * torch.sin(6 * d + o)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            pred, used = render(field, occ, o, d, args.samples)
        loss = F.huber_loss(pred, gt, delta=0.1)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 4 == 3:  # refresh the occupancy grid
            with torch.no_grad():
                pts = torch.rand(2 ** 18, 3, device=device)
                s, _ = field(pts, torch.zeros_like(pts))
                c = (pts * 128).long().clamp_(max=127)
                occ[c[:, 0], c[:, 1], c[:, 2]] = s > s.median() * 0.5
        print(f"step {step} loss {loss.item():.5f} samples {used}")
    field.eval()
    with torch.no_grad():
        o, d = random_rays(args.image ** 2, device)
        img = torch.cat([render(field, occ, oc, dc, args.samples)[0]
                         for oc, dc in zip(o.split(args.rays), d.split(args.rays))])
        mse = F.mse_loss(img, 0.5 + 0.5 * torch.sin(6 * d + o))
    print(f"eval psnr {-10 * torch.log10(mse).item():.2f}")


if __name__ == "__main__":
    main()
