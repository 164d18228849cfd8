"""3-D U-Net for organ segmentation: fp16 with a GradScaler, gradient accumulation, sliding-window validation."""
import itertools
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SCALE = float(os.environ.get("SCALE", "1"))
PATCH = 96
ORGANS = 6
BATCH = max(1, round(2 * SCALE))
ACCUM = 3
EPOCHS = 2
UPDATES = 6


class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(
            nn.Conv3d(cin, cout, 3, stride, 1, bias=False), nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01, True),
            nn.Conv3d(cout, cout, 3, 1, 1, bias=False), nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01, True))


class UNet3D(nn.Module):
    def __init__(self, width=(16, 32, 64, 128, 160)):
        super().__init__()
        self.stem = ConvBlock(1, width[0])
        self.down = nn.ModuleList(ConvBlock(a, b, 2) for a, b in zip(width, width[1:]))
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(width, width[1:]))
        self.dec = nn.ModuleList(ConvBlock(2 * a, a) for a in width[:-1])
        self.heads = nn.ModuleList(nn.Conv3d(w, ORGANS, 1) for w in width[:3])   # deep supervision

    def forward(self, x):
        skips = [self.stem(x)]
        for d in self.down:
            skips.append(d(skips[-1]))
        y, outs = skips.pop(), []
        for i in reversed(range(len(self.up))):
            y = self.dec[i](torch.cat([self.up[i](y), skips.pop()], 1))
            if i < len(self.heads):
                outs.append(self.heads[i](y))
        outs.reverse()
        return outs if self.training else outs[0]


def dice_ce(logits, target):
    ce = F.cross_entropy(logits, target)
    prob = logits.float().softmax(1)
    one = F.one_hot(target, ORGANS).permute(0, 4, 1, 2, 3).to(prob.dtype)
    inter = (prob * one).sum((2, 3, 4))
    dice = (2 * inter + 1) / (prob.sum((2, 3, 4)) + one.sum((2, 3, 4)) + 1)
    return ce + 1 - dice[:, 1:].mean()


def phantom(n, size, gen):
    """Ellipsoids of different density in noise."""
    grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, s, device="cuda") for s in size], indexing="ij"))
    label = torch.zeros(n, *size, dtype=torch.long, device="cuda")
    for b in range(n):
        for organ in range(1, ORGANS):
            c = (torch.rand(3, generator=gen) - 0.5).to("cuda")
            r = (0.15 + 0.3 * torch.rand(3, generator=gen)).to("cuda")
            label[b][(((grid - c.view(3, 1, 1, 1)) / r.view(3, 1, 1, 1)) ** 2).sum(0) < 1] = organ
    image = label.float() * 0.4 + torch.randn(label.shape, device="cuda") * 0.3
    return image.unsqueeze(1), label


@torch.no_grad()
def sliding_window(model, volume, window, overlap=0.5, sw_batch=4):
    size = volume.shape[2:]
    starts = [sorted({min(i, s - window) for i in range(0, s, int(window * (1 - overlap)))}) for s in size]
    corners = list(itertools.product(*starts))
    ramp = torch.hann_window(window + 2, periodic=False, device=volume.device)[1:-1]
    weight = ramp[:, None, None] * ramp[None, :, None] * ramp[None, None] + 1e-3
    out = torch.zeros(1, ORGANS, *size, device=volume.device)
    norm = torch.zeros(1, 1, *size, device=volume.device)
    for k in range(0, len(corners), sw_batch):
        cs = corners[k:k + sw_batch]
        crop = torch.cat([volume[:, :, a:a + window, b:b + window, c:c + window] for a, b, c in cs])
        with torch.autocast("cuda", dtype=torch.float16):
            pred = model(crop)
        for p, (a, b, c) in zip(pred.float(), cs):
            out[0, :, a:a + window, b:b + window, c:c + window] += p * weight
            norm[0, :, a:a + window, b:b + window, c:c + window] += weight
    return out / norm


def main():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(8)
    model = UNet3D().to("cuda")
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True, weight_decay=3e-5)
    scaler = torch.amp.GradScaler("cuda")
    val_size = (PATCH * 2, PATCH * 2, PATCH * 3 // 2)
    for epoch in range(EPOCHS):
        model.train()
        for it in range(UPDATES):
            opt.zero_grad(set_to_none=True)
            total = 0.0
            for _ in range(ACCUM):
                x, y = phantom(BATCH, (PATCH,) * 3, gen)
                with torch.autocast("cuda", dtype=torch.float16):
                    outs = model(x)
                    loss = sum(0.5 ** i * dice_ce(o, y if i == 0 else y[:, ::2 ** i, ::2 ** i, ::2 ** i]) for i, o in enumerate(outs))
                scaler.scale(loss / ACCUM).backward()
                total += loss.item() / ACCUM
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 12)
            scaler.step(opt)
            scaler.update()
            if it % 3 == 0:
                print(f"epoch {epoch} update {it} loss {total:.3f}", flush=True)
        model.eval()
        x, y = phantom(1, val_size, gen)
        pred = sliding_window(model, x, PATCH).argmax(1)
        dice = [(2 * ((pred == c) & (y == c)).sum() / ((pred == c).sum() + (y == c).sum() + 1)).item() for c in range(1, ORGANS)]
        print(f"epoch {epoch} dice " + " ".join(f"{d:.3f}" for d in dice))


if __name__ == "__main__":
    main()
