"""Exact Gaussian process regression in float64: ARD Matern-5/2, Cholesky, LBFGS on the marginal likelihood."""
import math
import time

import torch
import torch.nn as nn

device = "cuda"
torch.set_default_dtype(torch.float64)

N_TRAIN = 11000
N_TEST = 8000
TEST_CHUNK = 4000
DIMS = 8
OUTER = 4
MAX_ITER = 4
JITTER = 1e-6


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, DIMS, generator=g) * 2 - 1
    y = torch.sin(4 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * torch.cos(6 * x[:, 3] + x[:, 0])
    return x, y + 0.1 * torch.randn(n, generator=g)


def scaled_distance(a, b):
    """Euclidean distances from the expanded square, kept away from zero for the gradient."""
    sq = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
    return torch.sqrt(sq.clamp_min(1e-12))


class Matern52(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.log_length = nn.Parameter(torch.zeros(dims))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, a, b):
        r = scaled_distance(a / self.log_length.exp(), b / self.log_length.exp()) * math.sqrt(5)
        return self.log_scale.exp() * (1 + r + r * r / 3) * torch.exp(-r)


class ExactGP(nn.Module):
    def __init__(self, x, y):
        super().__init__()
        self.register_buffer("x", x)
        self.register_buffer("y", y)
        self.kernel = Matern52(x.shape[1])
        self.log_noise = nn.Parameter(torch.tensor(-2.0))
        self.mean = nn.Parameter(y.mean())

    def factor(self):
        k = self.kernel(self.x, self.x)
        k = k + (self.log_noise.exp() + JITTER) * torch.eye(len(self.x), device=k.device)
        return torch.linalg.cholesky(k)

    def nll(self):
        chol = self.factor()
        resid = (self.y - self.mean)[:, None]
        alpha = torch.cholesky_solve(resid, chol)
        fit = 0.5 * (resid * alpha).sum()
        logdet = chol.diagonal().log().sum()
        return (fit + logdet + 0.5 * len(self.y) * math.log(2 * math.pi)) / len(self.y)

    @torch.no_grad()
    def predict(self, x_new, chunk):
        chol = self.factor()
        alpha = torch.cholesky_solve((self.y - self.mean)[:, None], chol)
        means, variances = [], []
        for part in x_new.split(chunk):
            cross = self.kernel(self.x, part)
            means.append(self.mean + (cross.T @ alpha).squeeze(1))
            v = torch.linalg.solve_triangular(chol, cross, upper=False)
            variances.append(self.kernel.log_scale.exp() - v.square().sum(0) + self.log_noise.exp())
        return torch.cat(means), torch.cat(variances)


def main():
    torch.manual_seed(0)
    x, y = make_data(N_TRAIN, 1)
    xt, yt = make_data(N_TEST, 2)
    gp = ExactGP(x, y).to(device)
    optimizer = torch.optim.LBFGS(gp.parameters(), lr=0.5, max_iter=MAX_ITER, history_size=8,
                                  line_search_fn="strong_wolfe", max_eval=6)
    evaluations = 0
    start = time.time()

    def closure():
        nonlocal evaluations
        optimizer.zero_grad()
        loss = gp.nll()
        loss.backward()
        evaluations += 1
        return loss

    for outer in range(OUTER):
        loss = optimizer.step(closure)
        print(f"outer {outer} nll {loss.item():.4f} evaluations {evaluations} {time.time() - start:.1f}s")

    mean, var = gp.predict(xt.to(device), TEST_CHUNK)
    target = yt.to(device)
    rmse = (mean - target).square().mean().sqrt().item()
    logp = -0.5 * ((mean - target).square() / var + var.log() + math.log(2 * math.pi)).mean().item()

    # ablation: kernel principal components of a subset with a symmetric eigensolver
    with torch.no_grad():
        sub = gp.kernel(gp.x[: N_TRAIN // 4], gp.x[: N_TRAIN // 4])
        values = torch.linalg.eigvalsh(sub).flip(0)
        explained = (values[:50].sum() / values.sum()).item()
    lengths = [round(v, 3) for v in gp.kernel.log_length.exp().tolist()]
    print(f"rmse {rmse:.4f} log density {logp:.4f} explained {explained:.3f}")
    print(f"lengths {lengths} noise {gp.log_noise.exp().item():.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
