"""Binary segmentation: a plain U-Net, channels last, fp16 with a scaler, Dice score."""

import argparse
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset, random_split
from tqdm import tqdm


class DoubleConv(nn.Sequential):
    def __init__(self, a, b):
        super().__init__(
            nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
            nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, channels=3, classes=2, width=32):
        super().__init__()
        w = [width, width * 2, width * 4, width * 8]
        self.inc = DoubleConv(channels, w[0])
        self.down = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), DoubleConv(a, b)) for a, b in zip(w, w[1:]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(w[-2::-1], w[:0:-1]))
        self.conv = nn.ModuleList(DoubleConv(a * 2, a) for a in w[-2::-1])
        self.outc = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        kept = [self.inc(x)]
        for down in self.down:
            kept.append(down(kept[-1]))
        x = kept.pop()
        for up, conv in zip(self.up, self.conv):
            skip, x = kept.pop(), up(x)
            dy, dx = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
            x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
            x = conv(torch.cat([skip, x], dim=1))
        return self.outc(x)


class Carvana(Dataset):
    def __init__(self, count, height, width):
        self.count, self.shape = count, (height, width)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"image": torch.rand(3, *self.shape), "mask": (torch.rand(self.shape) > 0.7).long()}


def dice(a, b, epsilon=1e-6):
    inter = 2 * (a * b).sum(dim=(-1, -2))
    total = a.sum(dim=(-1, -2)) + b.sum(dim=(-1, -2))
    total = torch.where(total == 0, inter, total)
    return ((inter + epsilon) / (total + epsilon)).mean()


@torch.inference_mode()
def evaluate(net, loader, device, amp):
    net.eval()
    score = 0
    for batch in tqdm(loader, desc="Validation round", leave=False):
        image = batch["image"].to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
        mask = batch["mask"].to(device=device, dtype=torch.long)
        with torch.autocast(device.type, enabled=amp):
            predicted = F.one_hot(net(image).argmax(dim=1), 2).permute(0, 3, 1, 2).float()
        true = F.one_hot(mask, 2).permute(0, 3, 1, 2).float()
        score += dice(predicted[:, 1:], true[:, 1:])
    net.train()
    return score / max(len(loader), 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the UNet on images and target masks")
    parser.add_argument("--epochs", "-e", type=int, default=1)
    parser.add_argument("--batch-size", "-b", type=int, default=8)
    parser.add_argument("--amp", action="store_true", default=True)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet().to(memory_format=torch.channels_last).to(device=device)
    train_set, val_set = random_split(Carvana(48, 250, 310), [40, 8], torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, shuffle=True, batch_size=args.batch_size, num_workers=2, pin_memory=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, drop_last=True)
    optimizer = optim.RMSprop(model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for batch in tqdm(train_loader):
            images, masks = batch["image"], batch["mask"]
            images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
            masks = masks.to(device=device, dtype=torch.long)
            with torch.autocast(device.type, enabled=args.amp):
                predicted = model(images)
                loss = criterion(predicted, masks)
                true = F.one_hot(masks, 2).permute(0, 3, 1, 2).float()
                loss += 1 - dice(F.softmax(predicted, dim=1).float(), true)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        score = evaluate(model, val_loader, device, args.amp)
        scheduler.step(score)
        logging.info(f"Validation Dice score: {score}")
