"""Fit anisotropic 3D Gaussians to a few views of a synthetic scene (no custom kernels).

Every iteration picks one view and a random set of its pixels, projects all Gaussians, sorts
them by depth and composites front to back in plain PyTorch.  Gaussians whose screen space
gradient is large are split every `densify_every` iterations.
"""
import math
import os
import time

import torch

TINY = os.environ.get("TINY") == "1"
SCALE = float(os.environ.get("SCALE", "1"))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Opt:
    n_init = 80 if TINY else 1500
    n_max = 200 if TINY else 6000
    image = 24 if TINY else 160
    n_views = 3 if TINY else 8
    pixels = max(1, round((128 if TINY else 12288) * SCALE))
    iters = 8 if TINY else 30
    densify_every = 3 if TINY else 10
    render_chunk = 4096
    split_share = 1.0


def look_at(angle, radius=4.0):
    eye = torch.tensor([radius * math.cos(angle), 0.6, radius * math.sin(angle)])
    fwd = torch.nn.functional.normalize(-eye, dim=0)
    right = torch.nn.functional.normalize(torch.linalg.cross(fwd, torch.tensor([0.0, 1.0, 0.0])), dim=0)
    up = torch.linalg.cross(right, fwd)
    R = torch.stack([right, -up, fwd])
    return R.to(device), (-R @ eye.to(R.device)).to(device)


def quat_to_rot(q):
    w, x, y, z = torch.nn.functional.normalize(q, dim=-1).unbind(-1)
    return torch.stack([
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1).view(-1, 3, 3)


class Gaussians:
    LRS = {"xyz": 5e-3, "scale": 1e-2, "quat": 5e-3, "color": 2e-2, "opacity": 3e-2}

    def __init__(self, n):
        data = {
            "xyz": torch.randn(n, 3, device=device) * 0.6,
            "scale": torch.full((n, 3), math.log(0.12), device=device),
            "quat": torch.randn(n, 4, device=device),
            "color": torch.randn(n, 3, device=device) * 0.3,
            "opacity": torch.full((n,), -1.0, device=device),
        }
        self.set(data)

    def set(self, data):
        self.p = {k: v.detach().clone().requires_grad_(True) for k, v in data.items()}
        self.optim = torch.optim.Adam([{"params": [v], "lr": self.LRS[k], "name": k} for k, v in self.p.items()], eps=1e-15)
        self.grad_acc = torch.zeros(len(self), device=device)

    def __len__(self):
        return self.p["xyz"].shape[0]

    def project(self, R, t, focal, size):
        cam = self.p["xyz"] @ R.T + t
        z = cam[:, 2].clamp(min=0.2)
        uv = focal * cam[:, :2] / z[:, None] + size / 2
        M = quat_to_rot(self.p["quat"]) * self.p["scale"].exp()[:, None, :]
        zero = torch.zeros_like(z)
        J = torch.stack([focal / z, zero, -focal * cam[:, 0] / z ** 2,
                         zero, focal / z, -focal * cam[:, 1] / z ** 2], -1).view(-1, 2, 3)
        T = J @ R @ M
        cov = T @ T.transpose(1, 2) + 0.3 * torch.eye(2, device=device)
        return uv, torch.linalg.inv(cov), z

    def shade(self, pix, R, t, focal, size, keep_uv=False):
        uv, prec, z = self.project(R, t, focal, size)
        if keep_uv:
            uv.retain_grad()
            self.uv = uv
        order = z.detach().argsort()
        uv, prec = uv[order], prec[order]
        color, op = self.p["color"][order].sigmoid(), self.p["opacity"][order].sigmoid()
        dx = pix[:, None, 0] - uv[None, :, 0]                    # [P, N]
        dy = pix[:, None, 1] - uv[None, :, 1]
        power = -0.5 * (prec[:, 0, 0] * dx * dx + prec[:, 1, 1] * dy * dy) - prec[:, 0, 1] * dx * dy
        alpha = (op * power.exp()).clamp(max=0.99)
        trans = torch.cumprod(1 - alpha + 1e-8, dim=1)
        weight = alpha * torch.cat([torch.ones_like(trans[:, :1]), trans[:, :-1]], 1)
        return weight @ color + trans[:, -1:] * 0.1

    def densify(self, share, n_max):
        g = self.grad_acc
        k = min(int(len(self) * share), n_max - len(self))
        if k <= 0:
            return
        idx = g.topk(k).indices
        new = {key: v.detach()[idx].clone() for key, v in self.p.items()}
        new["xyz"] += torch.randn_like(new["xyz"]) * new["scale"].exp()
        new["scale"] -= math.log(1.6)
        self.set({key: torch.cat([v.detach(), new[key]]) for key, v in self.p.items()})


@torch.no_grad()
def render(g, R, t, focal, size, chunk):
    ys, xs = torch.meshgrid(torch.arange(size, device=device), torch.arange(size, device=device), indexing="ij")
    pix = torch.stack([xs, ys], -1).reshape(-1, 2).float() + 0.5
    return torch.cat([g.shade(c, R, t, focal, size) for c in pix.split(chunk)]).view(size, size, 3)


def main():
    torch.manual_seed(11)
    o = Opt
    focal = 1.2 * o.image
    views = [look_at(2 * math.pi * i / o.n_views) for i in range(o.n_views)]
    # the "photographs" are renderings of a hidden set of Gaussians
    truth = Gaussians(60 if TINY else 400)
    with torch.no_grad():
        truth.p["color"].mul_(6)
        truth.p["opacity"].add_(3)
    photos = [render(truth, R, t, focal, o.image, o.render_chunk).reshape(-1, 3) for R, t in views]
    del truth

    g = Gaussians(o.n_init)
    t0 = time.time()
    for it in range(1, o.iters + 1):
        v = int(torch.randint(o.n_views, ()))
        R, t = views[v]
        sel = torch.randint(0, o.image ** 2, (o.pixels,), device=device)
        pix = torch.stack([sel % o.image, sel // o.image], -1).float() + 0.5
        pred = g.shade(pix, R, t, focal, o.image, keep_uv=True)
        diff = pred - photos[v][sel]
        loss = diff.abs().mean() + 0.2 * diff.pow(2).mean()
        g.optim.zero_grad(set_to_none=True)
        loss.backward()
        g.grad_acc += g.uv.grad.norm(dim=-1)
        g.optim.step()
        if it % o.densify_every == 0:
            mse = (render(g, *views[0], focal, o.image, o.render_chunk).reshape(-1, 3) - photos[0]).pow(2).mean()
            print(f"iter {it:3d} gaussians {len(g):5d} loss {loss.item():.4f} psnr {-10 * mse.log10().item():.2f}")
            if it < o.iters:
                g.densify(o.split_share, o.n_max)
    print(f"{time.time() - t0:.1f} s, {len(g)} gaussians")
    print("done")


main()
