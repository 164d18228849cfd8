"""An exact Gaussian process by hand: marginal likelihood by Cholesky, then predictions."""

import math

import torch

torch.manual_seed(13)
n = 4000
x = torch.rand(n, 6, device="cuda")
y = torch.sin(x.sum(-1) * 3) + 0.1 * torch.randn(n, device="cuda")
scales = torch.zeros(6, device="cuda", requires_grad=True)
signal = torch.zeros((), device="cuda", requires_grad=True)
noise = torch.tensor(-2.0, device="cuda", requires_grad=True)
optimizer = torch.optim.LBFGS([scales, signal, noise], lr=0.1, max_iter=4)


def kernel(a, b):
    distance = torch.cdist(a / scales.exp(), b / scales.exp()).square()
    return signal.exp() * torch.exp(-0.5 * distance)


def closure():
    optimizer.zero_grad()
    k = kernel(x, x) + (noise.exp() + 1e-4) * torch.eye(n, device="cuda")
    factor = torch.linalg.cholesky(k)
    alpha = torch.cholesky_solve(y[:, None], factor)
    loss = 0.5 * (y[:, None] * alpha).sum() + factor.diagonal().log().sum() + 0.5 * n * math.log(2 * math.pi)
    loss.backward()
    return loss


for _ in range(3):
    print(optimizer.step(closure).item())
with torch.no_grad():
    test = torch.rand(1000, 6, device="cuda")
    k = kernel(x, x) + (noise.exp() + 1e-4) * torch.eye(n, device="cuda")
    factor = torch.linalg.cholesky(k)
    across = kernel(test, x)
    mean = across @ torch.cholesky_solve(y[:, None], factor)
    solved = torch.linalg.solve_triangular(factor, across.T, upper=False)
    variance = signal.exp() - solved.square().sum(0)
print(mean.shape, variance.min().item())
