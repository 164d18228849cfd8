"""3D U-Net for brain-lesion segmentation: fp32 without TF32, deep supervision, Nesterov SGD, sliding-window inference."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(
            nn.Conv3d(cin, cout, 3, stride=stride, padding=1, bias=False),
            nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(cout, cout, 3, padding=1, bias=False),
            nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01, inplace=True))


class UNet3D(nn.Module):
    def __init__(self, modalities, classes, width=20, depth=4, cap=240):
        super().__init__()
        ch = [min(cap, width * 2 ** i) for i in range(depth + 1)]
        self.enc = nn.ModuleList([ConvBlock(modalities, ch[0])] +
                                 [ConvBlock(ch[i], ch[i + 1], stride=2) for i in range(depth)])
        self.up = nn.ModuleList([nn.ConvTranspose3d(ch[i + 1], ch[i], 2, stride=2, bias=False)
                                 for i in reversed(range(depth))])
        self.dec = nn.ModuleList([ConvBlock(2 * ch[i], ch[i]) for i in reversed(range(depth))])
        self.heads = nn.ModuleList([nn.Conv3d(ch[i], classes, 1) for i in reversed(range(depth))])

    def forward(self, x):
        skips = []
        for block in self.enc:
            x = block(x)
            skips.append(x)
        skips.pop()
        outs = []
        for up, dec, head in zip(self.up, self.dec, self.heads):
            x = dec(torch.cat([up(x), skips.pop()], dim=1))
            outs.append(head(x))
        return outs[::-1][:3] if self.training else outs[-1]


def dice_ce(logits, target, classes):
    ce = F.cross_entropy(logits, target)
    prob = logits.softmax(1)
    onehot = F.one_hot(target, classes).movedim(-1, 1).float()
    dims = (0, 2, 3, 4)
    inter = (prob * onehot).sum(dims)
    dice = (2 * inter + 1e-5) / (prob.sum(dims) + onehot.sum(dims) + 1e-5)
    return ce + 1 - dice[1:].mean()


def supervised_loss(outs, target, classes):
    total, weight, norm = 0.0, 1.0, 0.0
    for logits in outs:
        if logits.shape[2:] != target.shape[1:]:
            t = F.interpolate(target[:, None].float(), size=logits.shape[2:], mode="nearest")[:, 0].long()
        else:
            t = target
        total = total + weight * dice_ce(logits, t, classes)
        norm += weight
        weight *= 0.5
    return total / norm


def synth_volume(shape, modalities, classes, g):
    """Smooth random field per class, arg-max as label, intensities by label; made on the CPU at low resolution."""
    field = torch.randn(1, classes, *(max(2, s // 12) for s in shape), generator=g)
    field[:, 0] += 0.8
    label = F.interpolate(field, size=shape, mode="trilinear", align_corners=False).argmax(1)[0]
    table = torch.randn(modalities, classes, generator=torch.Generator().manual_seed(3))
    image = table[:, label] + 0.5 * torch.randn(modalities, *shape, generator=g)
    return image, label


def sample_patches(cases, patch, batch, g):
    xs, ys = [], []
    for _ in range(batch):
        image, label = cases[int(torch.randint(0, len(cases), (1,), generator=g))]
        start = [int(torch.randint(0, s - p + 1, (1,), generator=g)) for s, p in zip(label.shape, patch)]
        sl = tuple(slice(a, a + p) for a, p in zip(start, patch))
        x, y = image[(slice(None), *sl)], label[sl]
        for axis in range(3):
            if torch.rand(1, generator=g) < 0.5:
                x, y = x.flip(axis + 1), y.flip(axis)
        xs.append(x * (0.9 + 0.2 * torch.rand(1, generator=g)))
        ys.append(y)
    return torch.stack(xs).to("cuda"), torch.stack(ys).to("cuda")


def gaussian_window(patch, device):
    axes = [torch.exp(-0.5 * ((torch.arange(p, device=device) - (p - 1) / 2) / (p / 8)) ** 2) for p in patch]
    w = axes[0][:, None, None] * axes[1][None, :, None] * axes[2][None, None, :]
    return w.clamp(min=w.max() * 1e-3)


@torch.no_grad()
def sliding_window(model, image, patch, classes, overlap=0.5):
    model.eval()
    image = image.to("cuda")[None]
    window = gaussian_window(patch, image.device)
    total = torch.zeros(classes, *image.shape[2:], device="cuda")
    weight = torch.zeros(image.shape[2:], device="cuda")
    starts = [sorted({min(a, s - p) for a in range(0, s, max(1, int(p * (1 - overlap))))})
              for s, p in zip(image.shape[2:], patch)]
    for a in starts[0]:
        for b in starts[1]:
            for c in starts[2]:
                sl = (slice(a, a + patch[0]), slice(b, b + patch[1]), slice(c, c + patch[2]))
                x = image[(slice(None), slice(None), *sl)]
                prob = model(x).softmax(1) + model(x.flip(2)).flip(2).softmax(1)
                total[(slice(None), *sl)] += prob[0] * window
                weight[sl] += 2 * window
    model.train()
    return (total / weight).argmax(0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--modalities", type=int, default=4)
    ap.add_argument("--classes", type=int, default=4)
    ap.add_argument("--width", type=int, default=20)
    ap.add_argument("--patch", type=int, nargs=3, default=[96, 96, 80])
    ap.add_argument("--volume", type=int, nargs=3, default=[132, 150, 117])
    ap.add_argument("--cases", type=int, default=5)
    ap.add_argument("--batch", type=int, default=2)
    ap.add_argument("--steps", type=int, default=36)
    ap.add_argument("--lr", type=float, default=1e-2)
    args = ap.parse_args()

    torch.manual_seed(8)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    g = torch.Generator().manual_seed(8)
    cases = [synth_volume(tuple(args.volume), args.modalities, args.classes, g) for _ in range(args.cases)]
    train, val = cases[:-1], cases[-1]
    model = UNet3D(args.modalities, args.classes, args.width).to("cuda")
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.99, nesterov=True, weight_decay=3e-5)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=args.steps, power=0.9)
    best, best_state = -1.0, None

    for step in range(1, args.steps + 1):
        x, y = sample_patches(train, args.patch, args.batch, g)
        loss = supervised_loss(model(x), y, args.classes)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 12.0)
        opt.step()
        sched.step()
        if step % 6 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")
        if step % (args.steps // 2) == 0:
            pred = sliding_window(model, val[0], args.patch, args.classes).cpu()
            dice = [2 * ((pred == c) & (val[1] == c)).sum() / ((pred == c).sum() + (val[1] == c).sum()).clamp(min=1)
                    for c in range(1, args.classes)]
            mean = float(sum(dice) / len(dice))
            print(f"step {step}: dice per class {[round(float(d), 3) for d in dice]}, mean {mean:.3f}")
            if mean > best:
                best, best_state = mean, copy.deepcopy({k: v.cpu() for k, v in model.state_dict().items()})
    print(f"best dice {best:.3f}; {len(best_state)} tensors kept")


if __name__ == "__main__":
    main()
