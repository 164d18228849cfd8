"""A diffusion U-Net with an EMA of its weights, then sampling with it."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Residual(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(64, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.down1, self.down2, self.middle = Residual(32, 32), Residual(32, 64), Residual(64, 64)
        self.up2, self.up1, self.last = Residual(128, 32), Residual(64, 32), nn.Conv2d(32, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))

    def forward(self, x, step):
        rates = torch.exp(-torch.arange(32, device=x.device) / 4)
        angles = step[:, None].float() * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x0 = self.first(x)
        x1 = self.down1(x0, time)
        x2 = self.down2(F.avg_pool2d(x1, 2), time)
        middle = self.middle(F.avg_pool2d(x2, 2), time)
        y = self.up2(torch.cat([F.interpolate(middle, scale_factor=2), x2], 1), time)
        return self.last(self.up1(torch.cat([F.interpolate(y, scale_factor=2), x1], 1), time))


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = UNet().to(device)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100, device=device), 0)
for _ in range(3):
    images = torch.rand(8, 3, 32, 32, device=device) * 2 - 1
    step, noise = torch.randint(0, 100, (8,), device=device), torch.randn_like(images)
    share = alphas[step][:, None, None, None]
    loss = F.mse_loss(model(share.sqrt() * images + (1 - share).sqrt() * noise, step), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    print(loss.item())
with torch.no_grad():
    x = torch.randn(4, 3, 32, 32, device=device)
    for number in reversed(range(0, 100, 20)):
        noise = average(x, torch.full((4,), number, device=device))
        x = (x - (1 - alphas[number]).sqrt() * noise) / alphas[number].sqrt()
print(x.clamp(-1, 1).shape)
