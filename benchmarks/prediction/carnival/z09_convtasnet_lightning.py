"""Two-speaker separation with Conv-TasNet, trained by PyTorch Lightning in fp32 (TF32 allowed)."""
import argparse
import itertools
import tempfile

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset


class GlobalLayerNorm(nn.Module):
    def __init__(self, channels, eps=1e-8):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=(1, 2), keepdim=True)
        var = (x - mean).pow(2).mean(dim=(1, 2), keepdim=True)
        return self.gamma * (x - mean) / torch.sqrt(var + self.eps) + self.beta


class TemporalBlock(nn.Module):
    def __init__(self, cin, hidden, kernel, dilation):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(cin, hidden, 1), nn.PReLU(), GlobalLayerNorm(hidden),
            nn.Conv1d(hidden, hidden, kernel, dilation=dilation, padding=dilation * (kernel - 1) // 2, groups=hidden),
            nn.PReLU(), GlobalLayerNorm(hidden))
        self.residual = nn.Conv1d(hidden, cin, 1)
        self.skip = nn.Conv1d(hidden, cin, 1)

    def forward(self, x):
        y = self.net(x)
        return x + self.residual(y), self.skip(y)


class ConvTasNet(nn.Module):
    def __init__(self, filters=256, length=20, bottleneck=160, hidden=352, kernel=3, blocks=7, repeats=2, sources=2):
        super().__init__()
        self.sources, self.filters, self.length = sources, filters, length
        self.encoder = nn.Conv1d(1, filters, length, stride=length // 2, bias=False)
        self.norm = GlobalLayerNorm(filters)
        self.bottleneck = nn.Conv1d(filters, bottleneck, 1)
        self.blocks = nn.ModuleList([TemporalBlock(bottleneck, hidden, kernel, 2 ** x)
                                     for _ in range(repeats) for x in range(blocks)])
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(bottleneck, filters * sources, 1), nn.Sigmoid())
        self.decoder = nn.ConvTranspose1d(filters, 1, length, stride=length // 2, bias=False)

    def forward(self, mixture):
        batch, samples = mixture.shape
        hop = self.length // 2
        pad = (hop - (samples - self.length) % hop) % hop
        enc = F.relu(self.encoder(F.pad(mixture, (0, pad))[:, None]))
        x = self.bottleneck(self.norm(enc))
        total = 0
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        masks = self.mask(total).view(batch, self.sources, self.filters, -1)
        out = self.decoder((enc[:, None] * masks).flatten(0, 1))
        return out.view(batch, self.sources, -1)[..., :samples]


def si_snr(estimate, target, eps=1e-8):
    estimate = estimate - estimate.mean(-1, keepdim=True)
    target = target - target.mean(-1, keepdim=True)
    scale = (estimate * target).sum(-1, keepdim=True) / (target.pow(2).sum(-1, keepdim=True) + eps)
    projection = scale * target
    noise = estimate - projection
    return 10 * torch.log10(projection.pow(2).sum(-1) / (noise.pow(2).sum(-1) + eps) + eps)


def pit_si_snr(estimates, targets):
    values = [torch.stack([si_snr(estimates[:, i], targets[:, j]) for i, j in enumerate(perm)]).mean(0)
              for perm in itertools.permutations(range(targets.shape[1]))]
    return torch.stack(values).max(0).values


class Mixtures(Dataset):
    def __init__(self, n, samples, seed, rate=8000):
        self.n, self.samples, self.seed, self.rate = n, samples, seed, rate

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 65537 + i)
        t = torch.arange(self.samples) / self.rate
        voices = []
        for _ in range(2):
            pitch = 90 + 160 * torch.rand(1, generator=g) + 8 * torch.sin(2 * torch.pi * 4 * t)
            phase = 2 * torch.pi * torch.cumsum(pitch, 0) / self.rate
            wave = sum(torch.sin(k * phase) / k for k in range(1, 6))
            envelope = F.interpolate(torch.rand(1, 1, 24, generator=g), size=self.samples, mode="linear")[0, 0]
            voices.append(wave * envelope)
        voices = torch.stack(voices)
        voices = voices / voices.std(-1, keepdim=True) * torch.tensor([[1.0], [0.8]])
        return voices.sum(0), voices


class Separation(pl.LightningModule):
    def __init__(self, lr, hidden):
        super().__init__()
        self.save_hyperparameters()
        self.model = ConvTasNet(hidden=hidden)

    def training_step(self, batch, index):
        mixture, voices = batch
        loss = -pit_si_snr(self.model(mixture), voices).mean()
        self.log("train_loss", loss, prog_bar=False)
        return loss

    def validation_step(self, batch, index):
        mixture, voices = batch
        gain = pit_si_snr(self.model(mixture), voices) - si_snr(mixture[:, None].expand_as(voices), voices).mean(1)
        self.log("val_si_snri", gain.mean(), batch_size=len(mixture))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_si_snri"}}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=3.2)
    ap.add_argument("--val-seconds", type=float, default=5.0)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--n-train", type=int, default=96)
    ap.add_argument("--n-val", type=int, default=12)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--hidden", type=int, default=352)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    pl.seed_everything(12)
    torch.set_float32_matmul_precision("high")
    train = DataLoader(Mixtures(args.n_train, int(args.seconds * 8000), 1), batch_size=args.batch, shuffle=True,
                       num_workers=2, drop_last=True, persistent_workers=True)
    val = DataLoader(Mixtures(args.n_val, int(args.val_seconds * 8000), 2), batch_size=2)
    module = Separation(args.lr, args.hidden)
    with tempfile.TemporaryDirectory() as d:
        checkpoint = ModelCheckpoint(dirpath=d, monitor="val_si_snri", mode="max", save_top_k=1)
        trainer = pl.Trainer(accelerator="gpu", devices=1, max_epochs=args.epochs, precision="32-true",
                             gradient_clip_val=5.0, logger=CSVLogger(d), log_every_n_steps=4,
                             callbacks=[checkpoint, LearningRateMonitor()], enable_progress_bar=False,
                             num_sanity_val_steps=1)
        trainer.fit(module, train, val)
        result = trainer.validate(module, val, ckpt_path="best", verbose=False)
    print("validation:", {k: round(v, 3) for k, v in result[0].items()})


if __name__ == "__main__":
    main()
