"""A GAN with spectral normalization, two optimizers, a history of fakes and logged images."""

import random

import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import spectral_norm

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
generator = nn.Sequential(
    nn.ConvTranspose2d(64, 64, 4), nn.BatchNorm2d(64), nn.ReLU(True),
    nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(True),
    nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(True),
    nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh(),
).to(device)
critic = nn.Sequential(
    spectral_norm(nn.Conv2d(3, 16, 4, 2, 1)), nn.LeakyReLU(0.2, True),
    spectral_norm(nn.Conv2d(16, 32, 4, 2, 1)), nn.LeakyReLU(0.2, True),
    spectral_norm(nn.Conv2d(32, 1, 8)), nn.Flatten(),
).to(device)
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.5, 0.999))
history, logged = [], []
fixed = torch.randn(16, 64, 1, 1, device=device)
for step in range(4):
    real = torch.rand(32, 3, 32, 32, device=device) * 2 - 1
    fake = generator(torch.randn(32, 64, 1, 1, device=device))
    history = (history + [fake.detach()])[-3:]
    loss_c = torch.relu(1 - critic(real)).mean() + torch.relu(1 + critic(random.choice(history))).mean()
    of_critic.zero_grad(set_to_none=True)
    loss_c.backward()
    of_critic.step()
    for weight in critic.parameters():
        weight.requires_grad_(False)
    loss_g = -critic(fake).mean()
    of_generator.zero_grad(set_to_none=True)
    loss_g.backward()
    of_generator.step()
    for weight in critic.parameters():
        weight.requires_grad_(True)
    with torch.no_grad():
        logged.append(generator(fixed).cpu())
    print(f"{step}: critic {loss_c.item():.2f}, generator {loss_g:.2f}")
print(torch.stack(logged).shape)
