"""Exact Gaussian process regression (ARD Matern-3/2, double precision), fitted with L-BFGS.

python matern_gp.py --n 5500 --rounds 6
"""
import argparse
import math
import os

import torch

tiny = os.environ.get("TINY") == "1"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--n", type=int, default=200 if tiny else 5500, help="training points")
parser.add_argument("--n-test", type=int, default=50 if tiny else 4000)
parser.add_argument("--dim", type=int, default=6)
parser.add_argument("--rounds", type=int, default=6)
parser.add_argument("--seed", type=int, default=0)


def matern32(x1, x2, log_ls, log_var):
    a, b = x1 / log_ls.exp(), x2 / log_ls.exp()
    d2 = a.pow(2).sum(-1, keepdim=True) + b.pow(2).sum(-1) - 2 * a @ b.T
    r = math.sqrt(3.0) * torch.sqrt(d2.clamp(min=1e-12))
    return log_var.exp() * (1 + r) * torch.exp(-r)


class GP:
    def __init__(self, x, y):
        self.x, self.y = x, y
        mk = lambda *s: torch.zeros(*s, dtype=x.dtype, device=x.device, requires_grad=True)
        self.log_ls, self.log_var, self.log_noise, self.mean = mk(x.shape[1]), mk(()), mk(()), mk(())
        with torch.no_grad():
            self.log_noise.fill_(-2.0)

    def params(self):
        return [self.log_ls, self.log_var, self.log_noise, self.mean]

    def chol(self):
        k = matern32(self.x, self.x, self.log_ls, self.log_var)
        k = k + (self.log_noise.exp() + 1e-6) * torch.eye(len(self.x), dtype=k.dtype, device=k.device)
        return torch.linalg.cholesky(k)

    def nll(self):
        chol = self.chol()
        resid = (self.y - self.mean).unsqueeze(-1)
        white = torch.linalg.solve_triangular(chol, resid, upper=False)
        n = len(self.y)
        return (0.5 * white.pow(2).sum() + chol.diagonal().log().sum() + 0.5 * n * math.log(2 * math.pi)) / n

    @torch.no_grad()
    def predict(self, xs):
        chol = self.chol()
        ks = matern32(self.x, xs, self.log_ls, self.log_var)
        alpha = torch.cholesky_solve((self.y - self.mean).unsqueeze(-1), chol)
        v = torch.linalg.solve_triangular(chol, ks, upper=False)
        mu = self.mean + (ks.T @ alpha).squeeze(-1)
        var = self.log_var.exp() - v.pow(2).sum(0) + self.log_noise.exp()
        return mu, var


def target(x):
    return torch.sin(3 * x[:, 0]) + 0.5 * torch.cos(5 * x[:, 1]) * x[:, 2] + 0.3 * (x[:, 3] > 0)


if __name__ == "__main__":
    args = parser.parse_args()
    n = max(1, round(args.n * float(os.environ.get("SCALE", "1"))))
    torch.manual_seed(args.seed)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.rand(n, args.dim, dtype=torch.float64, device=dev) * 2 - 1
    y = target(x) + 0.1 * torch.randn(n, dtype=torch.float64, device=dev)
    xs = torch.rand(args.n_test, args.dim, dtype=torch.float64, device=dev) * 2 - 1
    ys = target(xs)

    gp = GP(x, y)
    opt = torch.optim.LBFGS(gp.params(), lr=0.8, max_iter=3, history_size=8, line_search_fn="strong_wolfe")
    evals = 0

    def closure():
        global evals
        opt.zero_grad()
        loss = gp.nll()
        loss.backward()
        evals += 1
        return loss

    for i in range(args.rounds):
        loss = opt.step(closure)
        print(f"round {i}  nll/n {loss.item():.4f}  noise {gp.log_noise.exp().item():.4f}  evaluations {evals}")
    mu, var = gp.predict(xs)
    rmse = (mu - ys).pow(2).mean().sqrt().item()
    inside = ((mu - ys).abs() < 2 * var.sqrt()).double().mean().item()
    print("lengthscales", [round(v, 2) for v in gp.log_ls.exp().tolist()])
    print(f"rmse {rmse:.4f}  within two sigma {inside:.3f}")
    print("done")
