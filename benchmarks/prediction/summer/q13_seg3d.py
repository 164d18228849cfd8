"""3-D U-Net for multi-organ segmentation: instance norm, Dice + CE, deep supervision, sliding window."""
import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv_block(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, stride=stride, padding=1, bias=False),
        nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(cout, cout, 3, padding=1, bias=False),
        nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01, inplace=True))


class UNet3D(nn.Module):
    def __init__(self, cin, classes, base, levels, max_ch=320):
        super().__init__()
        ch = [min(base * 2 ** i, max_ch) for i in range(levels)]
        self.enc = nn.ModuleList([conv_block(cin if i == 0 else ch[i - 1], ch[i], 1 if i == 0 else 2)
                                  for i in range(levels)])
        self.up = nn.ModuleList([nn.ConvTranspose3d(ch[i + 1], ch[i], 2, 2) for i in range(levels - 1)])
        self.dec = nn.ModuleList([conv_block(2 * ch[i], ch[i]) for i in range(levels - 1)])
        self.heads = nn.ModuleList([nn.Conv3d(ch[i], classes, 1) for i in range(levels - 1)])

    def forward(self, x):
        feats = []
        for e in self.enc:
            x = e(x)
            feats.append(x)
        outs = []
        for i in reversed(range(len(self.dec))):
            x = self.dec[i](torch.cat([self.up[i](x), feats[i]], dim=1))
            if self.training or i == 0:
                outs.append(self.heads[i](x))
        return outs[::-1]  # finest first


def dice_ce(logits, target):
    ce = F.cross_entropy(logits, target)
    prob = logits.softmax(1)
    onehot = F.one_hot(target, logits.shape[1]).permute(0, 4, 1, 2, 3).float()
    dims = (0, 2, 3, 4)
    inter = (prob * onehot).sum(dims)
    dice = (2 * inter + 1e-5) / (prob.sum(dims) + onehot.sum(dims) + 1e-5)
    return ce + 1 - dice[1:].mean()


def supervised_loss(outs, target):
    total, norm = 0.0, 0.0
    for i, out in enumerate(outs[:3]):
        t = target if i == 0 else F.interpolate(target[:, None].float(), size=out.shape[2:], mode="nearest")[:, 0].long()
        total = total + 0.5 ** i * dice_ce(out, t)
        norm += 0.5 ** i
    return total / norm


def fake_scan(n, channels, shape, classes, device):
    """Blobs as labels, intensities correlated with the label."""
    coarse = torch.randn(n, classes, *[max(2, s // 16) for s in shape], device=device)
    label = F.interpolate(coarse, size=shape, mode="trilinear").argmax(1)
    image = label[:, None].float() / classes + 0.5 * torch.randn(n, channels, *shape, device=device)
    return image, label


def gaussian_window(size, device):
    g = torch.exp(-0.5 * ((torch.arange(size, device=device) - (size - 1) / 2) / (size / 8)) ** 2)
    return g[:, None, None] * g[None, :, None] * g[None, None, :]


@torch.no_grad()
def sliding_window(model, volume, patch, classes, overlap=0.5):
    device = volume.device
    shape = volume.shape[2:]
    step = max(1, int(patch * (1 - overlap)))
    starts = [sorted({min(s, n - patch) for s in range(0, n - patch + step, step)}) for n in shape]
    acc = torch.zeros(1, classes, *shape, device=device)
    weight = torch.zeros(1, 1, *shape, device=device)
    win = gaussian_window(patch, device)
    for a, b, c in itertools.product(*starts):
        sl = (slice(None), slice(None), slice(a, a + patch), slice(b, b + patch), slice(c, c + patch))
        out = model(volume[sl])[0]
        out = (out + model(volume[sl].flip(-1))[0].flip(-1)) / 2  # mirror test-time augmentation
        acc[sl] += out.softmax(1) * win
        weight[sl] += win
    return acc / weight


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--patch", type=int, default=128)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--channels", type=int, default=1)
    p.add_argument("--classes", type=int, default=14)
    p.add_argument("--base", type=int, default=32)
    p.add_argument("--levels", type=int, default=5)
    p.add_argument("--volume", type=int, nargs=3, default=[160, 224, 224])
    p.add_argument("--steps", type=int, default=5)
    args = p.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    model = UNet3D(args.channels, args.classes, args.base, args.levels).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=args.steps, power=0.9)

    model.train()
    for step in range(args.steps):
        image, label = fake_scan(args.batch, args.channels, (args.patch,) * 3, args.classes, device)
        outs = model(image)
        loss = supervised_loss(outs, label)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 12.0)
        opt.step()
        sched.step()
        print(f"step {step} loss {loss.item():.4f}")

    model.eval()
    volume, truth = fake_scan(1, args.channels, tuple(args.volume), args.classes, device)
    prob = sliding_window(model, volume, args.patch, args.classes)
    pred = prob.argmax(1)
    scores = [(2 * ((pred == c) & (truth == c)).sum() / ((pred == c).sum() + (truth == c).sum()).clamp(min=1)).item()
              for c in range(1, args.classes)]
    print(f"mean Dice {sum(scores) / len(scores):.4f}")


if __name__ == "__main__":
    main()
