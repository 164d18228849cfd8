"""Exact Gaussian-process regression in double precision (Cholesky), ARD Matern plus a periodic-in-time term."""
import argparse
import math

import gpytorch
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, ScaleKernel


def sensor_data(n, dims, seed):
    """Readings of a sensor over time with a daily cycle and a few covariates."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, dims, generator=g, dtype=torch.float64)
    x[:, 0] = x[:, 0].sort().values * 5
    y = (torch.sin(2 * math.pi * x[:, 0]) + 0.5 * (x[:, 1] - 0.5) ** 2 * 8 + x[:, 2] * x[:, 3]
         + 0.15 * torch.randn(n, generator=g, dtype=torch.float64))
    return x, (y - y.mean()) / y.std()


class SensorGP(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.LinearMean(x.size(-1))
        self.smooth = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=x.size(-1)))
        self.cycle = ScaleKernel(PeriodicKernel(active_dims=(0,)))
        self.covar_module = self.smooth + self.cycle

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def fit(model, likelihood, x, y, iters, lr):
    model.train()
    likelihood.train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=max(1, iters // 2), gamma=0.3)
    for i in range(iters):
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        scheduler.step()
        if i % 5 == 0 or i == iters - 1:
            scales = model.smooth.base_kernel.lengthscale.detach().flatten().tolist()
            print(f"iter {i:3d} nll {loss.item():.4f} noise {likelihood.noise.item():.4f} "
                  f"lengthscales {[round(s, 2) for s in scales]}", flush=True)


@torch.no_grad()
def predict(model, likelihood, x, chunk):
    model.eval()
    likelihood.eval()
    means, variances = [], []
    for part in x.split(chunk):
        post = likelihood(model(part))
        means.append(post.mean)
        variances.append(post.variance)
    return torch.cat(means), torch.cat(variances)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--n-train", type=int, default=6300)
    ap.add_argument("--n-test", type=int, default=2500)
    ap.add_argument("--dims", type=int, default=6)
    ap.add_argument("--iters", type=int, default=35)
    ap.add_argument("--chunk", type=int, default=900)
    ap.add_argument("--lr", type=float, default=0.08)
    ap.add_argument("--seed", type=int, default=12)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda")

    x, y = sensor_data(args.n_train + args.n_test, args.dims, args.seed)
    pick = torch.randperm(len(x), generator=torch.Generator().manual_seed(args.seed))
    train, test = pick[:args.n_train], pick[args.n_train:]
    x_train, y_train = x[train].to(device), y[train].to(device)
    x_test, y_test = x[test].to(device), y[test].to(device)

    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-3))
    model = SensorGP(x_train, y_train, likelihood).to(device=device, dtype=torch.float64)
    likelihood = model.likelihood
    model.smooth.base_kernel.lengthscale = 0.6
    model.cycle.base_kernel.period_length = 0.9
    likelihood.noise = 0.05

    with gpytorch.settings.max_cholesky_size(20000), gpytorch.settings.cholesky_jitter(double_value=1e-6):
        fit(model, likelihood, x_train, y_train, args.iters, args.lr)
        mean, var = predict(model, likelihood, x_test, args.chunk)
    rmse = (mean - y_test).square().mean().sqrt().item()
    nlpd = (0.5 * (2 * math.pi * var).log() + 0.5 * (mean - y_test) ** 2 / var).mean().item()
    inside = ((mean - y_test).abs() < 1.96 * var.sqrt()).double().mean().item()
    print(f"test rmse {rmse:.4f} nlpd {nlpd:.4f} 95% coverage {inside:.3f}")
    print(f"peak allocated {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
