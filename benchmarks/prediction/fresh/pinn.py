"""A physics-informed network: second derivatives, Adam, then L-BFGS."""

import torch
import torch.nn as nn

device = torch.device("cuda")
torch.manual_seed(0)
torch.set_default_dtype(torch.float32)
layers = [2] + [512] * 4 + [1]
net = nn.Sequential(*[m for a, b in zip(layers[:-1], layers[1:]) for m in (nn.Linear(a, b), nn.Tanh())][:-1]).to(device)
inside = torch.rand(20000, 2, device=device, requires_grad=True)
edge = torch.rand(2000, 2, device=device)
edge[:, 0] = (edge[:, 0] > 0.5).float()


def residual():
    u = net(inside)
    first = torch.autograd.grad(u, inside, torch.ones_like(u), create_graph=True)[0]
    second = [torch.autograd.grad(first[:, i].sum(), inside, create_graph=True)[0][:, i] for i in range(2)]
    source = torch.sin(torch.pi * inside[:, 0]) * torch.sin(torch.pi * inside[:, 1])
    return (second[0] + second[1] + source).pow(2).mean()


def objective():
    return residual() + 10 * net(edge).pow(2).mean()


adam = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(3):
    adam.zero_grad()
    loss = objective()
    loss.backward()
    adam.step()
    print("adam", step, loss.item())
lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=5, history_size=10, line_search_fn="strong_wolfe")


def closure():
    lbfgs.zero_grad()
    loss = objective()
    loss.backward()
    return loss


print("lbfgs", lbfgs.step(closure).item())
