"""WGAN with a gradient penalty: two optimizers, second derivatives, an averaged generator."""

import copy

import torch
import torch.nn as nn

torch.manual_seed(15)


def up(a, b):
    return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(True))


def down(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 4, stride=2, padding=1), nn.LeakyReLU(0.2))


generator = nn.Sequential(nn.Linear(128, 512 * 16), nn.Unflatten(1, (512, 4, 4)), up(512, 256), up(256, 128), up(128, 64), up(64, 64), nn.Conv2d(64, 3, 3, padding=1), nn.Tanh()).cuda()
critic = nn.Sequential(down(3, 64), down(64, 128), down(128, 256), down(256, 512), nn.Flatten(), nn.Linear(512 * 16, 1)).cuda()
average = copy.deepcopy(generator).requires_grad_(False)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
batch = 96
for step in range(6):
    real = torch.rand(batch, 3, 64, 64, device="cuda") * 2 - 1
    with torch.no_grad():
        fake = generator(torch.randn(batch, 128, device="cuda"))
    share = torch.rand(batch, 1, 1, 1, device="cuda")
    mixed = (share * real + (1 - share) * fake).requires_grad_(True)
    slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    penalty = (slope.flatten(1).norm(2, dim=1) - 1).square().mean()
    loss_c = critic(fake).mean() - critic(real).mean() + 10 * penalty
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()
    if step % 3 == 2:
        loss_g = -critic(generator(torch.randn(batch, 128, device="cuda"))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        with torch.no_grad():
            for a, b in zip(average.parameters(), generator.parameters()):
                a.mul_(0.999).add_(b, alpha=0.001)
        print(step, loss_c.item(), loss_g.item())
with torch.no_grad():
    print(average(torch.randn(256, 128, device="cuda")).cpu().std().item())
