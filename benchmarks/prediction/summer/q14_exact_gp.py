"""Exact Gaussian-process regression in double precision: marginal likelihood by Cholesky, L-BFGS."""
import argparse
import math

import torch
import torch.nn as nn


class Kernel(nn.Module):
    """ARD Matern-5/2 plus an ARD linear term."""

    def __init__(self, dim):
        super().__init__()
        self.log_ls = nn.Parameter(torch.zeros(dim))
        self.log_amp = nn.Parameter(torch.zeros(()))
        self.log_lin = nn.Parameter(torch.full((dim,), -3.0))

    def forward(self, a, b):
        ls = self.log_ls.exp()
        x, y = a / ls, b / ls
        d2 = x.pow(2).sum(1, keepdim=True) + y.pow(2).sum(1) - 2 * x @ y.T
        r = (d2.clamp(min=1e-12) * 5).sqrt()
        matern = (1 + r + r ** 2 / 3) * torch.exp(-r)
        lin = (a * self.log_lin.exp()) @ b.T
        return self.log_amp.exp() * matern + lin

    def diag(self, a):
        return self.log_amp.exp() + (a * self.log_lin.exp() * a).sum(1)


class ExactGP(nn.Module):
    def __init__(self, x, y):
        super().__init__()
        self.register_buffer("x", x)
        self.register_buffer("y", y)
        self.kernel = Kernel(x.shape[1])
        self.log_noise = nn.Parameter(torch.tensor(-2.0))
        self.mean = nn.Parameter(torch.zeros(()))

    def gram(self):
        k = self.kernel(self.x, self.x)
        return k + (self.log_noise.exp() + 1e-4) * torch.eye(k.shape[0], device=k.device)

    def neg_log_marginal(self):
        chol = torch.linalg.cholesky(self.gram())
        res = (self.y - self.mean).unsqueeze(1)
        alpha = torch.linalg.solve_triangular(chol, res, upper=False)
        logdet = 2 * chol.diagonal().log().sum()
        return 0.5 * (alpha.pow(2).sum() + logdet + len(self.y) * math.log(2 * math.pi)) / len(self.y)

    @torch.no_grad()
    def fit_cache(self):
        self.chol = torch.linalg.cholesky(self.gram())
        self.weights = torch.cholesky_solve((self.y - self.mean).unsqueeze(1), self.chol)

    @torch.no_grad()
    def predict(self, xs):
        ks = self.kernel(xs, self.x)
        mean = self.mean + (ks @ self.weights).squeeze(1)
        v = torch.linalg.solve_triangular(self.chol, ks.T, upper=False)
        var = self.kernel.diag(xs) - v.pow(2).sum(0)
        return mean, var.clamp(min=1e-9)

    @torch.no_grad()
    def posterior_samples(self, xs, n):
        ks = self.kernel(xs, self.x)
        v = torch.linalg.solve_triangular(self.chol, ks.T, upper=False)
        cov = self.kernel(xs, xs) - v.T @ v
        evals, evecs = torch.linalg.eigh(cov)
        root = evecs * evals.clamp(min=0).sqrt()
        mean = self.mean + (ks @ self.weights).squeeze(1)
        return mean + (root @ torch.randn(xs.shape[0], n, device=xs.device)).T


def synthetic(n, dim, device):
    x = torch.randn(n, dim, device=device)
    w = torch.randn(dim, device=device) / math.sqrt(dim)
    y = torch.sin(3 * x @ w) + 0.3 * x[:, 0] * x[:, 1] + 0.1 * torch.randn(n, device=device)
    return x, y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--train", type=int, default=12000)
    p.add_argument("--test", type=int, default=4000)
    p.add_argument("--dim", type=int, default=12)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--inner", type=int, default=3, help="L-BFGS iterations per step")
    p.add_argument("--sample-points", type=int, default=1000)
    p.add_argument("--samples", type=int, default=256)
    args = p.parse_args()

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = synthetic(args.train + args.test, args.dim, device)
    x = (x - x.mean(0)) / x.std(0)
    gp = ExactGP(x[:args.train], y[:args.train]).to(device)
    xt, yt = x[args.train:], y[args.train:]
    opt = torch.optim.LBFGS(gp.parameters(), lr=0.5, max_iter=args.inner, history_size=10,
                            line_search_fn="strong_wolfe")

    def closure():
        opt.zero_grad()
        nll = gp.neg_log_marginal()
        nll.backward()
        return nll

    for step in range(args.steps):
        nll = opt.step(closure)
        print(f"step {step} nll/n {nll.item():.5f} noise {gp.log_noise.exp().item():.4f} "
              f"amp {gp.kernel.log_amp.exp().item():.3f}")

    gp.fit_cache()
    mean, var = gp.predict(xt)
    rmse = (mean - yt).pow(2).mean().sqrt()
    total = var + gp.log_noise.exp().detach()
    nlpd = 0.5 * ((yt - mean) ** 2 / total + total.log() + math.log(2 * math.pi)).mean()
    print(f"test rmse {rmse.item():.4f} nlpd {nlpd.item():.4f}")
    draws = gp.posterior_samples(xt[:args.sample_points], args.samples)
    print("draws", tuple(draws.shape), f"spread {draws.std(0).mean().item():.4f}")


if __name__ == "__main__":
    main()
