"""Shifted-window transformer trained with Lightning: mixup, drop path, bf16, checkpointed last validation score."""
import argparse
import tempfile

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy


class Blobs(Dataset):
    def __init__(self, n, size, classes, seed):
        g = torch.Generator().manual_seed(seed)
        self.y, self.size = torch.randint(0, classes, (n,), generator=g), size
        self.base = torch.randn(classes, 3, 7, 7, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = F.interpolate(self.base[self.y[i]][None], size=self.size)[0]
        return x + 0.3 * torch.randn_like(x), self.y[i]


class WindowAttention(nn.Module):
    def __init__(self, dim, heads, win):
        super().__init__()
        self.heads, self.win = heads, win
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.bias = nn.Parameter(torch.zeros((2 * win - 1) ** 2, heads))
        c = torch.stack(torch.meshgrid(torch.arange(win), torch.arange(win), indexing="ij")).flatten(1)
        rel = (c[:, :, None] - c[:, None]) + win - 1
        self.register_buffer("index", rel[0] * (2 * win - 1) + rel[1], persistent=False)

    def forward(self, x, mask):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        bias = self.bias[self.index].permute(2, 0, 1)[None]
        if mask is not None:  # windows of one image follow each other
            bias = (bias + mask[:, None]).repeat(B // mask.size(0), 1, 1, 1)
        attn = (q * (C // self.heads) ** -0.5) @ k.transpose(-2, -1) + bias
        return self.out((attn.softmax(-1).to(v.dtype) @ v).transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, dim, heads, win, res, shift, drop):
        super().__init__()
        self.win, self.drop = win, drop
        self.shift = shift if res > win else 0
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, heads, win)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        mask = None
        if self.shift:
            img = torch.zeros(1, res, res, 1)
            cuts = (slice(0, -win), slice(-win, -self.shift), slice(-self.shift, None))
            for i, h in enumerate(cuts):
                for j, w in enumerate(cuts):
                    img[:, h, w] = 3 * i + j
            ids = self.split(img).squeeze(-1)
            mask = (ids[:, None] != ids[:, :, None]).float() * -100.0
        self.register_buffer("mask", mask, persistent=False)

    def split(self, x):
        B, H, W, C = x.shape
        return x.view(B, H // self.win, self.win, W // self.win, self.win, C).transpose(2, 3).reshape(-1, self.win ** 2, C)

    def merge(self, w, shape):
        B, H, W, C = shape
        return w.view(B, H // self.win, W // self.win, self.win, self.win, C).transpose(2, 3).reshape(shape)

    def path(self, x):
        if not self.training or self.drop == 0:
            return x
        keep = torch.rand(x.size(0), 1, 1, 1, device=x.device) >= self.drop
        return x * keep / (1 - self.drop)

    def forward(self, x):
        y = torch.roll(self.n1(x), (-self.shift, -self.shift), (1, 2)) if self.shift else self.n1(x)
        y = self.merge(self.attn(self.split(y), self.mask), x.shape)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + self.path(y)
        return x + self.path(self.mlp(self.n2(x)))


class Swin(nn.Module):
    def __init__(self, size, dim, depths, win, classes, drop_path):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, 4)
        res, stages, rates = size // 4, [], torch.linspace(0, drop_path, sum(depths)).tolist()
        for s, n in enumerate(depths):
            for i in range(n):
                stages.append(Block(dim, dim // 32, win, res, win // 2 if i % 2 else 0, rates.pop(0)))
            if s < len(depths) - 1:
                stages += [nn.PixelUnshuffle(2)]
                stages += [nn.Sequential(nn.LayerNorm(4 * dim), nn.Linear(4 * dim, 2 * dim, bias=False))]
                dim, res = 2 * dim, res // 2
        self.stages, self.norm, self.head = nn.ModuleList(stages), nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).permute(0, 2, 3, 1)
        for m in self.stages:
            x = m(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) if isinstance(m, nn.PixelUnshuffle) else m(x)
        return self.head(self.norm(x).mean((1, 2)))


class Classifier(L.LightningModule):
    def __init__(self, size=224, dim=96, depths=(2, 2, 6, 2), win=7, classes=100, lr=1e-3, alpha=0.8):
        super().__init__()
        self.save_hyperparameters()
        self.net = Swin(size, dim, depths, win, classes, 0.2)
        self.acc = MulticlassAccuracy(classes, average="micro")

    def training_step(self, batch, i):
        x, y = batch
        lam = torch.distributions.Beta(self.hparams.alpha, self.hparams.alpha).sample().item()
        perm = torch.randperm(len(y), device=y.device)
        logits = self.net(lam * x + (1 - lam) * x[perm])
        loss = lam * F.cross_entropy(logits, y, label_smoothing=0.1) + (1 - lam) * F.cross_entropy(logits, y[perm], label_smoothing=0.1)
        print(f"step {self.global_step} loss {loss.item():.4f}")
        return loss

    def validation_step(self, batch, i):
        x, y = batch
        logits = self.net(x)
        self.acc(logits, y)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", self.acc)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.05)
        return [opt], [{"scheduler": torch.optim.lr_scheduler.OneCycleLR(opt, self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches), "interval": "step"}]


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(size=224, dim=96, batch=96, items=480, epochs=3).items():
        p.add_argument(f"--{name}", type=int, default=default)
    args = p.parse_args()
    torch.manual_seed(2)
    model = Classifier(size=args.size, dim=args.dim)
    train = DataLoader(Blobs(args.items, args.size, 100, 1), args.batch, shuffle=True, num_workers=4, pin_memory=True)
    valid = DataLoader(Blobs(2 * args.batch, args.size, 100, 2), 2 * args.batch, num_workers=2)
    out = tempfile.mkdtemp()
    ckpt = ModelCheckpoint(out, monitor="val_loss", save_top_k=1)
    trainer = L.Trainer(accelerator="cuda", devices=1, max_epochs=args.epochs, precision="bf16-mixed", gradient_clip_val=5.0, logger=False,
                        callbacks=[ckpt, EarlyStopping("val_loss", patience=2)], enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, train, valid)
    best = Classifier.load_from_checkpoint(ckpt.best_model_path)
    print(trainer.validate(best, valid, verbose=False))


if __name__ == "__main__":
    main()
