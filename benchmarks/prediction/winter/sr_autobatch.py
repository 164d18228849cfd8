"""EDSR x4 super-resolution on a shared card: we may only use 3 GiB, so the batch is halved until a step fits,
and the lost samples are made up by gradient accumulation."""
import gc
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

LR = 48
BUDGET = 3 * 2**30


def limit_memory(nbytes):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(nbytes / total)


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(ch, ch, 3, padding=1))

    def forward(self, x):
        return x + 0.1 * self.body(x)


class EDSR(nn.Module):
    def __init__(self, ch=64, blocks=16):
        super().__init__()
        self.head = nn.Conv2d(3, ch, 3, padding=1)
        self.body = nn.Sequential(*[ResBlock(ch) for _ in range(blocks)], nn.Conv2d(ch, ch, 3, padding=1))
        self.tail = nn.Sequential(nn.Conv2d(ch, 4 * ch, 3, padding=1), nn.PixelShuffle(2),
                                  nn.Conv2d(ch, 4 * ch, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(ch, 3, 3, padding=1))

    def forward(self, x):
        y = self.head(x)
        return self.tail(y + self.body(y))


def sample(n, lr=LR):
    """Smooth colour fields with sharp stripes."""
    base = F.interpolate(torch.rand(n, 3, 8, 8, device="cuda"), size=4 * lr, mode="bicubic")
    ramp = torch.arange(4 * lr, device="cuda") / 4
    freq = torch.rand(n, 1, 1, 1, device="cuda") * 3 + 0.5
    hr = (base + 0.2 * torch.sign(torch.sin(ramp * freq + ramp[:, None]))).clamp(0, 1)
    return F.avg_pool2d(hr, 4), hr


def train_step(model, opt, lr, hr, micro):
    opt.zero_grad(set_to_none=True)
    total = 0.0
    for a, b in zip(lr.split(micro), hr.split(micro)):
        loss = F.l1_loss(model(a), b) * (len(a) / len(lr))
        loss.backward()
        total += loss.item()
    opt.step()
    return total


@torch.inference_mode()
def tiled(model, image, tile, pad=8):
    _, _, h, w = image.shape
    out = image.new_zeros(1, 3, 4 * h, 4 * w)
    padded = F.pad(image, (pad,) * 4, mode="reflect")
    for y in range(0, h, tile):
        for x in range(0, w, tile):
            crop = padded[:, :, y:y + tile + 2 * pad, x:x + tile + 2 * pad]
            up = model(crop)[:, :, 4 * pad:-4 * pad, 4 * pad:-4 * pad]
            out[:, :, 4 * y:4 * (y + tile), 4 * x:4 * (x + tile)] = up
    return out


def main():
    torch.manual_seed(17)
    limit_memory(BUDGET)
    steps = int(os.environ.get("STEPS", "80"))
    batch = max(1, round(64 * float(os.environ.get("SCALE", "1"))))
    micro = batch
    model = EDSR().to("cuda")
    opt = torch.optim.Adam(model.parameters(), lr=2e-4)
    step = 0
    while step < steps:
        lr, hr = sample(batch)
        failed = False
        try:
            loss = train_step(model, opt, lr, hr, micro)
        except torch.OutOfMemoryError:
            failed = True
        if failed:                      # outside of the except block, so that the traceback holds nothing
            if micro == 1:
                raise SystemExit("not even one sample fits")
            micro = (micro + 1) // 2
            opt.zero_grad(set_to_none=True)
            gc.collect()
            torch.cuda.empty_cache()
            print(f"out of memory, micro batch is now {micro}")
            continue
        if step % 8 == 0:
            print(f"step {step} micro {micro} l1 {loss:.4f}", flush=True)
        step += 1
    lr, hr = sample(1, 4 * LR)
    model.eval()
    sr = tiled(model, lr, LR)
    print(f"psnr {-10 * torch.log10(F.mse_loss(sr, hr)).item():.2f} dB, micro batch {micro} of {batch}")


if __name__ == "__main__":
    main()
