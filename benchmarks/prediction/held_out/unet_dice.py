"""A U-Net for medical slices: transposed convolutions, instance norm, dice and BCE loss."""

import torch
import torch.nn as nn


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.InstanceNorm2d(outputs, affine=True), nn.LeakyReLU(0.01, inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.InstanceNorm2d(outputs, affine=True), nn.LeakyReLU(0.01, inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList(block(a, b) for a, b in zip((1, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.join = nn.ModuleList(block(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(widths[0], 3, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        kept = []
        for place, layer in enumerate(self.down):
            x = layer(x if place == 0 else self.pool(x))
            kept.append(x)
        for place in reversed(range(len(self.up))):
            x = self.join[place](torch.cat([self.up[place](x), kept[place]], dim=1))
        return self.head(x)


def dice(logits, target):
    p = logits.sigmoid()
    return 1 - (2 * (p * target).sum((2, 3)) + 1) / (p.sum((2, 3)) + target.sum((2, 3)) + 1)


torch.manual_seed(10)
model = UNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
bce = nn.BCEWithLogitsLoss()
for step in range(4):
    x = torch.randn(6, 1, 256, 256, device="cuda")
    y = (torch.rand(6, 3, 256, 256, device="cuda") > 0.8).float()
    logits = model(x)
    loss = dice(logits, y).mean() + bce(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
model.eval()
with torch.inference_mode():
    volume = torch.randn(40, 1, 256, 256)
    masks = [model(part.cuda()).sigmoid().gt(0.5).cpu() for part in volume.split(10)]
print(torch.cat(masks).float().mean())
