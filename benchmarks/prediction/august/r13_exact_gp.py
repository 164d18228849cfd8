"""Exact Gaussian process regression in double precision: ARD Matern-5/2 + linear trend, Cholesky, Adam on the evidence."""
import argparse
import math
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def make_wells(n, seed):
    """Ground-water heads at (x, y, depth, day): smooth signal plus noise."""
    rng = np.random.default_rng(seed)
    x = rng.random((n, 4))
    f = (np.sin(6 * x[:, 0]) * np.cos(4 * x[:, 1]) + 0.5 * x[:, 2] ** 2
         + 0.3 * np.sin(12 * x[:, 3]) + 0.8 * x[:, 0])
    y = f + 0.1 * rng.standard_normal(n)
    return torch.from_numpy(x), torch.from_numpy(y)


class Positive(nn.Module):
    def __init__(self, value):
        super().__init__()
        value = torch.as_tensor(value)
        self.raw = nn.Parameter(torch.log(torch.expm1(value)))

    def forward(self):
        return F.softplus(self.raw)


class MaternARD(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.length = Positive(torch.full((dims,), 0.6))
        self.scale = Positive(1.0)
        self.trend = Positive(0.3)

    def forward(self, a, b):
        a_s, b_s = a / self.length(), b / self.length()
        sq = (a_s ** 2).sum(1)[:, None] + (b_s ** 2).sum(1)[None] - 2 * a_s @ b_s.T
        r = math.sqrt(5.0) * (sq.clamp(min=0) + 1e-12).sqrt()
        matern = (1 + r + r ** 2 / 3) * torch.exp(-r)
        return self.scale() * matern + self.trend() * (a @ b.T)

    def diag(self, a):
        return self.scale() + self.trend() * (a ** 2).sum(1)


class ExactGP(nn.Module):
    def __init__(self, x, y):
        super().__init__()
        self.register_buffer("x", x)
        self.register_buffer("y", y)
        self.kernel = MaternARD(x.shape[1])
        self.noise = Positive(0.05)
        self.mean = nn.Parameter(y.mean().clone())

    def factor(self):
        k = self.kernel(self.x, self.x)
        eye = torch.eye(len(self.x), device=self.x.device)
        return torch.linalg.cholesky(k + (self.noise() + 1e-6) * eye)

    def neg_evidence(self):
        chol = self.factor()
        resid = (self.y - self.mean)[:, None]
        alpha = torch.cholesky_solve(resid, chol)
        n = len(self.y)
        return (0.5 * (resid * alpha).sum() + chol.diagonal().log().sum() + 0.5 * n * math.log(math.tau)) / n

    @torch.no_grad()
    def predict(self, xs, chunk):
        chol = self.factor()
        alpha = torch.cholesky_solve((self.y - self.mean)[:, None], chol)
        means, variances = [], []
        for part in xs.split(chunk):
            ks = self.kernel(self.x, part)
            means.append(self.mean + (ks.T @ alpha).squeeze(1))
            v = torch.linalg.solve_triangular(chol, ks, upper=False)
            variances.append((self.kernel.diag(part) - (v ** 2).sum(0)).clamp(min=1e-8) + self.noise())
        return torch.cat(means), torch.cat(variances)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--n-train", type=int, default=5600)
    ap.add_argument("--n-test", type=int, default=7000)
    ap.add_argument("--chunk", type=int, default=1500)
    ap.add_argument("--iters", type=int, default=50)
    ap.add_argument("--lr", type=float, default=0.08)
    args = ap.parse_args()
    torch.manual_seed(0)

    x, y = make_wells(args.n_train + args.n_test, 0)
    x, y = x.to("cuda"), y.to("cuda")
    x_train, y_train = x[:args.n_train], y[:args.n_train]
    x_test, y_test = x[args.n_train:], y[args.n_train:]

    gp = ExactGP(x_train, y_train).to("cuda")
    opt = torch.optim.Adam(gp.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [args.iters // 2, 3 * args.iters // 4], gamma=0.4)
    start = time.time()
    for it in range(args.iters):
        opt.zero_grad()
        loss = gp.neg_evidence()
        loss.backward()
        nn.utils.clip_grad_norm_(gp.parameters(), 5.0)
        opt.step()
        sched.step()
        if it % 5 == 0 or it == args.iters - 1:
            ls = ", ".join(f"{v:.3f}" for v in gp.kernel.length().tolist())
            print(f"iter {it:3d} nll {loss.item():.4f} noise {gp.noise().item():.4f} lengths [{ls}] "
                  f"{time.time() - start:.1f}s")

    mean, var = gp.predict(x_test, args.chunk)
    rmse = (mean - y_test).pow(2).mean().sqrt().item()
    nlpd = (0.5 * (math.tau * var).log() + (y_test - mean) ** 2 / (2 * var)).mean().item()
    cover = ((mean - y_test).abs() < 1.96 * var.sqrt()).double().mean().item()
    print(f"test rmse {rmse:.4f} nlpd {nlpd:.4f} 95% coverage {cover:.3f}")


if __name__ == "__main__":
    main()
