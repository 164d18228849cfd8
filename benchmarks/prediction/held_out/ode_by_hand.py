"""A neural ODE by hand: Runge-Kutta through the steps, then the adjoint by autograd.grad."""

import torch
import torch.nn as nn


class Field(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(65, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 64))

    def forward(self, t, x):
        return self.net(torch.cat([x, t.expand(x.shape[0], 1)], dim=1))


def integrate(field, x, times):
    for a, b in zip(times[:-1], times[1:]):
        h = b - a
        k1 = field(a, x)
        k2 = field(a + h / 2, x + h / 2 * k1)
        k3 = field(a + h / 2, x + h / 2 * k2)
        k4 = field(b, x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return x


torch.manual_seed(14)
field = Field().cuda()
head = nn.Linear(64, 10).cuda()
optimizer = torch.optim.AdamW([*field.parameters(), *head.parameters()], lr=1e-3)
times = torch.linspace(0, 1, 17, device="cuda")
for step in range(3):
    x = torch.randn(8192, 64, device="cuda")
    y = torch.randint(0, 10, (8192,), device="cuda")
    loss = nn.functional.cross_entropy(head(integrate(field, x, times)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
x = torch.randn(2048, 64, device="cuda", requires_grad=True)
final = integrate(field, x, times)
(sensitivity,) = torch.autograd.grad(final.square().mean(), x, create_graph=False)
print(sensitivity.norm().item())
