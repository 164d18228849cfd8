"""Exact Gaussian-process regression with gpytorch in double precision: Cholesky training, batched prediction."""
import argparse
import math
import os
import tempfile
import time

import gpytorch
import torch


class SumKernelGP(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood, dims):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.LinearMean(dims)
        self.covar_module = (
            gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=dims))
            + gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(active_dims=(0, 1))))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def make_data(n, dims, noise, g):
    x = torch.rand(n, dims, generator=g, dtype=torch.float64)
    f = (torch.sin(6 * x[:, 0]) * torch.cos(4 * x[:, 1]) + 2 * (x[:, 2] - 0.5) ** 2
         + torch.exp(-8 * (x[:, 3:5] - 0.4).pow(2).sum(-1)))
    y = f + noise * torch.randn(n, generator=g, dtype=torch.float64)
    return x, (y - y.mean()) / y.std()


def fit(model, likelihood, x, y, iterations, lr):
    model.train()
    likelihood.train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[int(iterations * 0.6), int(iterations * 0.85)],
                                                    gamma=0.3)
    start = time.time()
    for i in range(iterations):
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        if i % 5 == 0 or i == iterations - 1:
            print(f"iteration {i:3d} nll {loss.item():.4f} noise {likelihood.noise.item():.4f} "
                  f"({(time.time() - start) / (i + 1):.2f} s each)")


@torch.no_grad()
def predict(model, likelihood, x, batch):
    model.eval()
    likelihood.eval()
    means, variances = [], []
    with gpytorch.settings.fast_pred_var():
        for part in x.split(batch):
            p = likelihood(model(part))
            means.append(p.mean)
            variances.append(p.variance)
    return torch.cat(means), torch.cat(variances)


def report(name, mean, var, y):
    rmse = (mean - y).pow(2).mean().sqrt().item()
    nlpd = (0.5 * (math.log(2 * math.pi) + var.log() + (y - mean) ** 2 / var)).mean().item()
    inside = ((y - mean).abs() < 1.96 * var.sqrt()).double().mean().item()
    print(f"{name}: RMSE {rmse:.4f}, NLPD {nlpd:.4f}, 95 % coverage {inside:.3f}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--n", type=int, default=5600)
    ap.add_argument("--n-test", type=int, default=2500)
    ap.add_argument("--dims", type=int, default=6)
    ap.add_argument("--noise", type=float, default=0.15)
    ap.add_argument("--iterations", type=int, default=40)
    ap.add_argument("--lr", type=float, default=0.08)
    ap.add_argument("--pred-batch", type=int, default=900)
    args = ap.parse_args()

    torch.manual_seed(17)
    g = torch.Generator().manual_seed(17)
    x, y = make_data(args.n + args.n_test, args.dims, args.noise, g)
    x, y = x.to("cuda"), y.to("cuda")
    train_x, train_y, test_x, test_y = x[:args.n], y[:args.n], x[args.n:], y[args.n:]
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-4))
    model = SumKernelGP(train_x, train_y, likelihood, args.dims).double().to("cuda")
    likelihood = model.likelihood

    with gpytorch.settings.max_cholesky_size(args.n + 1), gpytorch.settings.fast_computations(
            covar_root_decomposition=False, log_prob=False, solves=False):
        fit(model, likelihood, train_x, train_y, args.iterations, args.lr)
        mean, var = predict(model, likelihood, train_x[:1000], args.pred_batch)
        report("train subset", mean, var, train_y[:1000])
        mean, var = predict(model, likelihood, test_x, args.pred_batch)
        report("test", mean, var, test_y)
    with tempfile.TemporaryDirectory() as d:
        torch.save(model.state_dict(), os.path.join(d, "gp.pt"))
    lengthscale = model.covar_module.kernels[0].base_kernel.lengthscale.detach().cpu().flatten()
    print("Matern length scales:", [round(v, 3) for v in lengthscale.tolist()])


if __name__ == "__main__":
    main()
