"""Sparse variational multitask GP (GPyTorch): six tasks, independent latent processes with ARD Matern kernels."""
import argparse
import math
import os
import tempfile

import gpytorch
import torch
from torch.utils.data import DataLoader, TensorDataset


class MultitaskSVGP(gpytorch.models.ApproximateGP):
    def __init__(self, inducing, tasks):
        n = inducing.size(-2)
        dist = gpytorch.variational.CholeskyVariationalDistribution(n, batch_shape=torch.Size([tasks]))
        base = gpytorch.variational.VariationalStrategy(self, inducing, dist, learn_inducing_locations=True)
        super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(base, num_tasks=tasks))
        shape = torch.Size([tasks])
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=inducing.size(-1), batch_shape=shape), batch_shape=shape)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def make_data(n, dim, tasks, seed):
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(dim, 3 * tasks, generator=torch.Generator().manual_seed(0)) / math.sqrt(dim)
    x = torch.rand(n, dim, generator=g) * 2 - 1
    h = torch.sin(3 * x @ mix).reshape(n, tasks, 3)
    y = h[..., 0] + h[..., 1] * h[..., 2] + 0.1 * torch.randn(n, tasks, generator=g)
    return x, y


@torch.no_grad()
def test(model, likelihood, loader):
    model.eval()
    likelihood.eval()
    se = nlpd = 0.0
    count = 0
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        pred = likelihood(model(x))
        var = pred.variance.clamp_min(1e-6)
        se += (pred.mean - y).square().sum().item()
        nlpd += (0.5 * (y - pred.mean).square() / var + 0.5 * torch.log(2 * math.pi * var)).sum().item()
        count += y.numel()
    model.train()
    likelihood.train()
    return math.sqrt(se / count), nlpd / count


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--train-size", type=int, default=42_000)
    p.add_argument("--dim", type=int, default=9)
    p.add_argument("--tasks", type=int, default=6)
    p.add_argument("--inducing", type=int, default=1400)
    p.add_argument("--batch", type=int, default=4500)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.02)
    args = p.parse_args()
    torch.manual_seed(8)

    x, y = make_data(args.train_size, args.dim, args.tasks, 1)
    tx, ty = make_data(args.train_size // 6, args.dim, args.tasks, 2)
    train = DataLoader(TensorDataset(x, y), args.batch, shuffle=True)
    held = DataLoader(TensorDataset(tx, ty), args.batch + 500)

    start = x[torch.randperm(len(x))[:args.inducing]].repeat(args.tasks, 1, 1)
    model = MultitaskSVGP(start, args.tasks).to("cuda").train()
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=args.tasks, rank=0).to("cuda").train()
    elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
    opt = torch.optim.Adam([{"params": model.parameters()}, {"params": likelihood.parameters(), "lr": args.lr / 2}], lr=args.lr)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.6)

    for epoch in range(args.epochs):
        for step, (bx, by) in enumerate(train):
            opt.zero_grad()
            with gpytorch.settings.cholesky_jitter(1e-4):
                loss = -elbo(model(bx.cuda()), by.cuda())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 20.0)
            opt.step()
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} -elbo {loss.item():.4f}")
        sched.step()
        rmse, nlpd = test(model, likelihood, held)
        print(f"epoch {epoch} rmse {rmse:.4f} nlpd {nlpd:.4f}")
    with tempfile.TemporaryDirectory() as d:
        torch.save({"gp": model.state_dict(), "lik": likelihood.state_dict()}, os.path.join(d, "svgp.pt"))


if __name__ == "__main__":
    main()
