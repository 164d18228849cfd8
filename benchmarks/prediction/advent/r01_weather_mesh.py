"""Medium-range weather emulator on an icosahedral multi-mesh (encode - process - decode), with a roll-out curriculum."""
import argparse
import logging
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.spatial import cKDTree
from torch.utils.checkpoint import checkpoint

log = logging.getLogger("weather")


def icosphere(levels):
    p = (1 + 5 ** 0.5) / 2
    v = [(-1, p, 0), (1, p, 0), (-1, -p, 0), (1, -p, 0), (0, -1, p), (0, 1, p), (0, -1, -p), (0, 1, -p),
         (p, 0, -1), (p, 0, 1), (-p, 0, -1), (-p, 0, 1)]
    f = [(0, 11, 5), (0, 5, 1), (0, 1, 7), (0, 7, 10), (0, 10, 11), (1, 5, 9), (5, 11, 4), (11, 10, 2), (10, 7, 6), (7, 1, 8),
         (3, 9, 4), (3, 4, 2), (3, 2, 6), (3, 6, 8), (3, 8, 9), (4, 9, 5), (2, 4, 11), (6, 2, 10), (8, 6, 7), (9, 8, 1)]
    verts = [np.array(x) / np.linalg.norm(x) for x in v]
    faces, edges = f, set()

    def collect(fs):
        for a, b, c in fs:
            for s, t in ((a, b), (b, c), (c, a)):
                edges.add((s, t))
                edges.add((t, s))

    collect(faces)
    for _ in range(levels):
        cache, new = {}, []

        def mid(a, b):
            key = (min(a, b), max(a, b))
            if key not in cache:
                m = verts[a] + verts[b]
                verts.append(m / np.linalg.norm(m))
                cache[key] = len(verts) - 1
            return cache[key]

        for a, b, c in faces:
            ab, bc, ca = mid(a, b), mid(b, c), mid(c, a)
            new += [(a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca)]
        faces = new
        collect(faces)
    return np.stack(verts), np.array(sorted(edges)).T


def grid_points(nlat, nlon):
    lat = np.linspace(-math.pi / 2, math.pi / 2, nlat)
    lon = np.arange(nlon) * 2 * math.pi / nlon
    la, lo = np.meshgrid(lat, lon, indexing="ij")
    xyz = np.stack([np.cos(la) * np.cos(lo), np.cos(la) * np.sin(lo), np.sin(la)], -1).reshape(-1, 3)
    return xyz, np.cos(la).reshape(-1)


class MLP(nn.Sequential):
    def __init__(self, din, dim, dout=None, norm=True):
        mods = [nn.Linear(din, dim), nn.SiLU(), nn.Linear(dim, dout or dim)]
        if norm:
            mods.append(nn.LayerNorm(dout or dim))
        super().__init__(*mods)


class Interaction(nn.Module):
    """Message passing from a sender set to a receiver set, updating edges and receivers."""

    def __init__(self, dim):
        super().__init__()
        self.edge = MLP(3 * dim, dim)
        self.node = MLP(2 * dim, dim)

    def forward(self, src, dst, e, si, di):
        m = self.edge(torch.cat([src[:, si], dst[:, di], e], -1))
        agg = torch.zeros(dst.shape[0], dst.shape[1], m.shape[-1], device=m.device, dtype=m.dtype).index_add_(1, di, m)
        dst = dst + self.node(torch.cat([dst, agg], -1))
        return dst, e + m


class MeshForecaster(nn.Module):
    def __init__(self, nvar, nforc, mesh_level, nlat, nlon, dim, layers):
        super().__init__()
        gx, w = grid_points(nlat, nlon)
        mx, me = icosphere(mesh_level)
        _, nn3 = cKDTree(mx).query(gx, k=4)
        gi = np.repeat(np.arange(len(gx)), 4)
        mi = nn3.reshape(-1)
        half = len(gx) * 4
        buf = dict(g2m_s=gi, g2m_d=mi, m2m_s=me[0], m2m_d=me[1])
        for k, val in buf.items():
            self.register_buffer(k, torch.as_tensor(val, dtype=torch.long), persistent=False)
        self.register_buffer("mesh_xyz", torch.tensor(mx, dtype=torch.float32))
        self.register_buffer("grid_xyz", torch.tensor(gx, dtype=torch.float32))
        self.register_buffer("area", torch.tensor(w / w.mean(), dtype=torch.float32))
        log.info("mesh %d nodes, %d edges; grid %d nodes, %d grid/mesh edges", len(mx), me.shape[1], len(gx), half)
        self.grid_in = MLP(2 * nvar + nforc + 3, dim)
        self.mesh_in = MLP(3, dim)
        self.e_g2m, self.e_m2m, self.e_m2g = MLP(4, dim), MLP(4, dim), MLP(4, dim)
        self.enc, self.dec = Interaction(dim), Interaction(dim)
        self.proc = nn.ModuleList(Interaction(dim) for _ in range(layers))
        self.head = MLP(dim, dim, nvar, norm=False)
        self.use_ckpt = True

    @staticmethod
    def geo(a, b):
        d = a - b
        return torch.cat([d, d.norm(dim=-1, keepdim=True)], -1)[None]

    def forward(self, prev, cur, forcing):
        B = cur.shape[0]
        gpos = self.grid_xyz.expand(B, -1, -1)
        g = self.grid_in(torch.cat([prev, cur, forcing, gpos], -1))
        m = self.mesh_in(self.mesh_xyz).expand(B, -1, -1)
        eg = self.e_g2m(self.geo(self.grid_xyz[self.g2m_s], self.mesh_xyz[self.g2m_d])).expand(B, -1, -1)
        em = self.e_m2m(self.geo(self.mesh_xyz[self.m2m_s], self.mesh_xyz[self.m2m_d])).expand(B, -1, -1)
        eo = self.e_m2g(self.geo(self.mesh_xyz[self.g2m_d], self.grid_xyz[self.g2m_s])).expand(B, -1, -1)
        m, _ = self.enc(g, m, eg, self.g2m_s, self.g2m_d)
        for blk in self.proc:
            if self.use_ckpt and self.training:
                m, em = checkpoint(blk, m, m, em, self.m2m_s, self.m2m_d, use_reentrant=False)
            else:
                m, em = blk(m, m, em, self.m2m_s, self.m2m_d)
        g, _ = self.dec(m, g, eo, self.g2m_d, self.g2m_s)
        return cur + self.head(g).float()


class Reanalysis(torch.utils.data.Dataset):
    """Travelling waves on the sphere standing in for normalised reanalysis fields."""

    def __init__(self, n, steps, nvar, nforc, nlat, nlon, seed=3):
        self.n, self.steps, self.nvar, self.nforc = n, steps, nvar, nforc
        self.xyz, _ = grid_points(nlat, nlon)
        self.seed = seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        r = np.random.default_rng(self.seed * 100003 + i)
        k = r.normal(size=(3, self.nvar)) * 2
        om, ph = r.normal(size=self.nvar) * 0.3, r.uniform(0, 6.28, self.nvar)
        base = self.xyz @ k
        seq = np.stack([np.sin(base + om * t + ph) for t in range(self.steps + 2)]).astype(np.float32)
        forc = np.stack([np.cos(self.xyz[:, :1] * (j + 1)) for j in range(self.nforc)], 1)[..., 0].astype(np.float32)
        return torch.from_numpy(seq), torch.from_numpy(forc)


def rollout_loss(model, seq, forc, n, amp):
    prev, cur, total = seq[:, 0], seq[:, 1], 0.0
    for t in range(n):
        with amp:
            nxt = model(prev, cur, forc)
        err = (nxt - seq[:, t + 2]).pow(2) * model.area[None, :, None]
        total = total + err.mean() / n
        prev, cur = cur, nxt
    return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--nlat", type=int, default=121)
    ap.add_argument("--nlon", type=int, default=240)
    ap.add_argument("--nvar", type=int, default=69)
    ap.add_argument("--mesh-level", type=int, default=5)
    ap.add_argument("--dim", type=int, default=256)
    ap.add_argument("--layers", type=int, default=10)
    ap.add_argument("--stages", default="1:70,2:40,3:24", help="rollout:steps pairs")
    ap.add_argument("--eval-steps", type=int, default=12)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    torch.manual_seed(0)
    dev = torch.device(args.device)
    model = MeshForecaster(args.nvar, 5, args.mesh_level, args.nlat, args.nlon, args.dim, args.layers).to(dev)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95), weight_decay=0.1)
    amp = torch.autocast(dev.type, dtype=torch.bfloat16)
    stages = [tuple(map(int, s.split(":"))) for s in args.stages.split(",")]
    for n_roll, steps in stages:
        ds = Reanalysis(steps, n_roll, args.nvar, 5, args.nlat, args.nlon, seed=n_roll)
        dl = torch.utils.data.DataLoader(ds, batch_size=1, num_workers=4 if dev.type == "cuda" else 0, pin_memory=dev.type == "cuda")
        model.train()
        t0 = time.time()
        for i, (seq, forc) in enumerate(dl):
            loss = rollout_loss(model, seq.to(dev, non_blocking=True), forc.to(dev, non_blocking=True), n_roll, amp)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            gn = nn.utils.clip_grad_norm_(model.parameters(), 32.0)
            opt.step()
            if i % 10 == 0:
                log.info("roll %d step %d loss %.4f |g| %.2f %.1fs", n_roll, i, loss.item(), gn.item(), time.time() - t0)
    model.eval()
    seq, forc = Reanalysis(1, args.eval_steps, args.nvar, 5, args.nlat, args.nlon, seed=99)[0]
    with torch.no_grad():
        prev, cur = seq[None, 0].to(dev), seq[None, 1].to(dev)
        f = forc[None].to(dev)
        for t in range(args.eval_steps):
            with amp:
                prev, cur = cur, model(prev, cur, f)
            rmse = F.mse_loss(cur, seq[None, t + 2].to(dev)).sqrt()
            log.info("lead %3dh rmse %.3f", 6 * (t + 1), rmse.item())


if __name__ == "__main__":
    main()
