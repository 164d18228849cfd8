#!/usr/bin/env python3
# Binary segmentation (polyps) with a plain U-Net and deep supervision.
# usage: python polyp_unet.py --steps 18 --batch 20 --val-every 6
import argparse
import os

import torch
from torch import nn
import torch.nn.functional as F


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, base=40, depth=5, cin=3):
        super().__init__()
        ch = [base * 2 ** i for i in range(depth)]
        self.down = nn.ModuleList()
        for c in ch:
            self.down.append(conv_block(cin, c))
            cin = c
        self.up, self.dec, self.aux = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for c in reversed(ch[:-1]):
            self.up.append(nn.ConvTranspose2d(2 * c, c, 2, stride=2))
            self.dec.append(conv_block(2 * c, c))
            self.aux.append(nn.Conv2d(c, 1, 1))

    def forward(self, x):
        skips = []
        for i, blk in enumerate(self.down):
            if i:
                x = F.max_pool2d(x, 2)
            x = blk(x)
            skips.append(x)
        skips.pop()
        outs = []
        for up, dec, aux in zip(self.up, self.dec, self.aux):
            x = up(x)
            x = dec(torch.cat([x, skips.pop()], 1))
            outs.append(aux(x))
        return outs[::-1]          # finest first


def dice_loss(logits, mask, eps=1.0):
    p = torch.sigmoid(logits.float())
    inter = (p * mask).sum((1, 2, 3))
    return 1 - ((2 * inter + eps) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + eps)).mean()


def deep_loss(outs, mask):
    """Every decoder level is upsampled to full size and compared with the mask."""
    total = 0.0
    for lvl, o in enumerate(outs):
        o = F.interpolate(o.float(), size=mask.shape[-2:], mode="bilinear", align_corners=False)
        total = total + 0.5 ** lvl * (F.binary_cross_entropy_with_logits(o, mask) + dice_loss(o, mask))
    return total


def make_batch(n, size, device, gen):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    c = torch.rand(n, 2, 1, 1, generator=gen) * 1.2 - 0.6
    r = torch.rand(n, 2, 1, 1, generator=gen) * 0.35 + 0.1
    th = torch.rand(n, 1, 1, generator=gen) * 3.14
    dx, dy = xx - c[:, 0], yy - c[:, 1]
    u = (dx * th.cos() + dy * th.sin()) / r[:, 0]
    v = (-dx * th.sin() + dy * th.cos()) / r[:, 1]
    mask = ((u * u + v * v) < 1).float().unsqueeze(1)
    tint = torch.rand(n, 3, 1, 1, generator=gen)
    img = 0.3 * torch.randn(n, 3, size, size, generator=gen) + tint + 0.5 * mask * (1 - tint)
    return img.to(device), mask.to(device)


def validate(model, args, device):
    model.eval()
    gen = torch.Generator().manual_seed(999)
    val_loss, inter, union = 0.0, 0.0, 0.0
    for _ in range(args.val_batches):
        img, mask = make_batch(args.val_batch, args.size, device, gen)
        with torch.autocast(device.type, dtype=args.dtype):
            outs = model(img)
        val_loss += deep_loss(outs, mask)
        pred = outs[0] > 0
        inter += (pred & (mask > 0.5)).sum().item()
        union += (pred | (mask > 0.5)).sum().item()
    model.train()
    return (val_loss / args.val_batches).item(), inter / max(union, 1)


def main():
    tiny = os.environ.get("TINY") == "1"
    scale = float(os.environ.get("SCALE", "1"))
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=6 if tiny else 18)
    ap.add_argument("--batch", type=int, default=2 if tiny else 20)
    ap.add_argument("--val-batch", type=int, default=2 if tiny else 10)
    ap.add_argument("--val-batches", type=int, default=2 if tiny else 4)
    ap.add_argument("--val-every", type=int, default=3 if tiny else 6)
    ap.add_argument("--size", type=int, default=32 if tiny else 256)
    ap.add_argument("--base", type=int, default=8 if tiny else 40)
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--seed", type=int, default=7)
    args = ap.parse_args()
    args.batch = max(1, round(args.batch * scale))
    args.val_batch = max(1, round(args.val_batch * scale))

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    model = UNet(args.base).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-2)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    gen = torch.Generator().manual_seed(args.seed)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")

    for step in range(1, args.steps + 1):
        img, mask = make_batch(args.batch, args.size, device, gen)
        with torch.autocast(device.type, dtype=args.dtype):
            outs = model(img)
        loss = deep_loss(outs, mask)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        if step % 3 == 0:
            print(f"[{step:3d}/{args.steps}] train loss {loss.item():.4f}")
        if step % args.val_every == 0:
            vl, iou = validate(model, args, device)
            print(f"[{step:3d}/{args.steps}] val loss {vl:.4f}  IoU {iou:.3f}")
    print("done")


if __name__ == "__main__":
    main()
