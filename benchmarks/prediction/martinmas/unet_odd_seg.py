"""Cell segmentation with a U-Net on images whose sides are not powers of two."""
import argparse
import os
import tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

class Cells(Dataset):
    def __init__(self, n, h, w, classes, seed):
        self.n, self.h, self.w, self.c, self.seed = n, h, w, classes, seed
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 1000 + i)
        low = torch.randn(1, 1, self.h // 16, self.w // 16, generator=g)
        field = F.interpolate(low, size=(self.h, self.w), mode="bilinear")[0, 0]
        mask = torch.bucketize(field, torch.linspace(-1, 1, self.c - 1))
        img = field[None].repeat(3, 1, 1) + 0.3 * torch.randn(3, self.h, self.w, generator=g)
        return img, mask
def double_conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
                         nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

class Up(nn.Module):
    def __init__(self, i, skip, o):
        super().__init__()
        self.up = nn.ConvTranspose2d(i, o, 2, stride=2)
        self.gate = nn.Sequential(nn.Conv2d(skip, skip // 4, 1), nn.ReLU(inplace=True), nn.Conv2d(skip // 4, 1, 1))
        self.conv = double_conv(o + skip, o)
    def forward(self, x, skip):
        x = self.up(x)
        dh, dw = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
        x = F.pad(x, [dw // 2, dw - dw // 2, dh // 2, dh - dh // 2])
        skip = skip * torch.sigmoid(self.gate(skip))
        return self.conv(torch.cat([skip, x], 1))
class UNet(nn.Module):
    def __init__(self, base, classes, depth=4):
        super().__init__()
        ch = [base * 2 ** i for i in range(depth + 1)]
        self.stem = double_conv(3, ch[0])
        self.down = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), double_conv(ch[i], ch[i + 1])) for i in range(depth))
        self.up = nn.ModuleList(Up(ch[i + 1], ch[i], ch[i]) for i in reversed(range(depth)))
        self.drop = nn.Dropout2d(0.1)
        self.head = nn.Conv2d(ch[0], classes, 1)
        self.aux = nn.Conv2d(ch[1], classes, 1)
    def forward(self, x):
        skips = [self.stem(x)]
        for d in self.down:
            skips.append(d(skips[-1]))
        y = self.drop(skips.pop())
        aux = None
        for u in self.up:
            y = u(y, skips.pop())
            if not skips:
                break
            aux = y
        return self.head(y), self.aux(aux)
def dice(logits, target):
    p = logits.float().softmax(1)
    t = F.one_hot(target, p.size(1)).permute(0, 3, 1, 2).float()
    inter = (p * t).sum((0, 2, 3))
    return 1 - (2 * inter / (p.sum((0, 2, 3)) + t.sum((0, 2, 3)) + 1e-6)).mean()
@torch.no_grad()
def evaluate(net, loader, classes, device):
    net.eval()
    conf = torch.zeros(classes, classes, dtype=torch.long, device=device)
    for img, mask in loader:
        img, mask = img.to(device), mask.to(device)
        flips = [net(img)[0], net(img.flip(-1))[0].flip(-1)]
        pred = torch.stack(flips).softmax(2).mean(0).argmax(1)
        conf += torch.bincount((mask * classes + pred).flatten(), minlength=classes ** 2).view(classes, classes)
    net.train()
    return (conf.diag() / (conf.sum(0) + conf.sum(1) - conf.diag()).clamp(min=1)).mean().item()

def main():
    p = argparse.ArgumentParser()
    for k, v in dict(height=347, width=421, base=48, batch=7, images=32, epochs=2, classes=5).items():
        p.add_argument(f"--{k}", type=int, default=v)
    a = p.parse_args()
    device = "cuda"
    torch.manual_seed(1)
    # the last training batch is smaller than the others
    train = DataLoader(Cells(a.images, a.height, a.width, a.classes, 1), a.batch, shuffle=True)
    val = DataLoader(Cells(10, a.height, a.width, a.classes, 2), a.batch + 3)
    net = UNet(a.base, a.classes).to(device, memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total_steps=a.epochs * len(train))
    scaler = torch.amp.GradScaler(device)
    best, path = -1.0, os.path.join(tempfile.mkdtemp(), "best.pt")
    for epoch in range(a.epochs):
        for img, mask in train:
            img = img.to(device, memory_format=torch.channels_last)
            mask = mask.to(device)
            with torch.autocast(device, dtype=torch.float16):
                out, aux = net(img)
                loss = F.cross_entropy(out, mask) + dice(out, mask)
                aux = F.interpolate(aux, size=mask.shape[-2:], mode="bilinear", align_corners=False)
                loss = loss + 0.4 * F.cross_entropy(aux, mask)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            scaler.step(opt)
            scaler.update()
            sched.step()
            print(f"epoch {epoch} batch {img.size(0)} loss {loss.item():.4f}")
        miou = evaluate(net, val, a.classes, device)
        print(f"epoch {epoch} mIoU {miou:.4f}")
        if miou > best:
            best = miou
            torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, path)
    state = torch.load(path, map_location=device)
    net.load_state_dict(state["net"])
    opt.load_state_dict(state["opt"])
    print(f"best {best:.4f} reloaded {evaluate(net, val, a.classes, device):.4f}")

if __name__ == "__main__":
    main()
