"""A convolutional VAE with group norm and an averaged model, checkpoints written on the way."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(18)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.GroupNorm(16, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(16, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x):
        return x + self.net(x)


class VAE(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), Residual(width), nn.Conv2d(width, 2 * width, 3, 2, 1), Residual(2 * width), nn.Conv2d(2 * width, 2 * width, 3, 2, 1), Residual(2 * width), nn.Conv2d(2 * width, 16, 1))
        self.decode = nn.Sequential(nn.Conv2d(8, 2 * width, 1), Residual(2 * width), nn.Upsample(scale_factor=2), nn.Conv2d(2 * width, 2 * width, 3, padding=1), Residual(2 * width), nn.Upsample(scale_factor=2), nn.Conv2d(2 * width, width, 3, padding=1), Residual(width), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x):
        mean, spread = self.encode(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return self.decode(z), mean, spread


model = VAE().cuda()
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
path = os.path.join(tempfile.gettempdir(), "vae_held_out.pt")
for step in range(4):
    x = torch.rand(16, 3, 128, 128, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y, mean, spread = model(x)
    kl = -0.5 * (1 + spread.float() - mean.float().square() - spread.float().exp()).mean()
    loss = F.l1_loss(y.float(), x) + 1e-4 * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    if step == 2:
        torch.save({"model": model.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict()}, path)
    print(step, loss.item(), kl.item())
saved = torch.load(path, map_location="cuda")
model.load_state_dict(saved["model"])
model.eval()
with torch.no_grad():
    print(model.decode(torch.randn(32, 8, 32, 32, device="cuda")).mean().item())
