"""A tiny NeRF: rays in chunks, positional encodings, a rendered view without gradients."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm


def encode(x, levels):
    parts = [x]
    for i in range(levels):
        parts += [torch.sin(2.0**i * x), torch.cos(2.0**i * x)]
    return torch.cat(parts, -1)


class NeRF(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(63, width)] + [nn.Linear(width + (63 if i == 3 else 0), width) for i in range(6)])
        self.sigma, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.color = nn.Sequential(nn.Linear(width + 27, 128), nn.ReLU(), nn.Linear(128, 3))

    def forward(self, points, directions):
        x = embedded = encode(points, 10)
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat([x, embedded], -1) if i == 4 else x))
        color = self.color(torch.cat([self.feature(x), encode(directions, 4)], -1))
        return torch.sigmoid(color), F.relu(self.sigma(x)).squeeze(-1)


def render(model, origins, directions, near=2.0, far=6.0, samples=64):
    t = torch.linspace(near, far, samples, device=origins.device).expand(len(origins), samples)
    t = t + torch.rand_like(t) * (far - near) / samples
    points = origins[:, None] + t[..., None] * directions[:, None]
    color, sigma = model(points, directions[:, None].expand_as(points))
    delta = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e10)], -1)
    alpha = 1 - torch.exp(-sigma * delta)
    transmitted = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * transmitted
    return (weights[..., None] * color).sum(1)


device = "cuda"
torch.manual_seed(0)
model = NeRF().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
for step in tqdm(range(4)):
    origins = torch.randn(2048, 3, device=device)
    directions = F.normalize(torch.randn(2048, 3, device=device), dim=-1)
    target = torch.rand(2048, 3, device=device)
    loss = F.mse_loss(render(model, origins, directions), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
model.eval()
with torch.no_grad():
    rows = torch.arange(100, device=device)
    grid = torch.stack(torch.meshgrid(rows, rows, indexing="ij"), -1).reshape(-1, 2).float()
    rays = F.normalize(torch.cat([grid / 100 - 0.5, -torch.ones(len(grid), 1, device=device)], -1), dim=-1)
    chunks = [render(model, torch.zeros_like(part), part) for part in rays.split(4096)]
    image = torch.cat(chunks).reshape(100, 100, 3).cpu().numpy()
print("psnr", -10 * torch.log10(loss).item(), image.shape)
