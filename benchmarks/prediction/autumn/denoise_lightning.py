"""Speech enhancement: a waveform U-Net with an LSTM bottleneck, multi-resolution STFT loss.
Lightning version.  Clips have their natural length; a batch is padded to its longest clip."""
import math
import os
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L

warnings.filterwarnings("ignore", ".*does not have many workers.*")
TINY = os.environ.get("TINY") == "1"
SCALE = float(os.environ.get("SCALE", "1"))
SR = 16000


class Clips(Dataset):
    """Harmonic 'voices' with gliding pitch, 1 to 6 seconds, plus coloured noise."""

    def __init__(self, n, seed, max_s=6.0):
        g = torch.Generator().manual_seed(seed)
        self.length = ((torch.rand(n, generator=g) ** 2 * (max_s - 1) + 1) * SR).long().tolist()
        self.seed = seed

    def __len__(self):
        return len(self.length)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        n = self.length[i]
        t = torch.arange(n) / SR
        f0 = 90 + 150 * torch.rand((), generator=g)
        phase = 2 * math.pi * torch.cumsum(f0 * (1 + 0.2 * torch.sin(2 * math.pi * 1.5 * t)), 0) / SR
        clean = sum(torch.sin(phase * k) / k for k in range(1, 5)) * (0.5 + 0.5 * torch.sin(2 * math.pi * 3 * t))
        noise = torch.randn(n, generator=g)
        noise = noise + 0.9 * F.pad(noise, (1, 0))[:-1]
        return 0.2 * clean, 0.2 * clean + 0.1 * noise


def collate(items):
    n = max(c.numel() for c, _ in items)
    pad = lambda k: torch.stack([F.pad(it[k], (0, n - it[k].numel())) for it in items])
    length = torch.tensor([c.numel() for c, _ in items])
    return pad(0), pad(1), length


class WaveUNet(nn.Module):
    def __init__(self, ch=32, depth=5, k=8, stride=4):
        super().__init__()
        self.depth, self.k, self.s = depth, k, stride
        self.enc, self.dec = nn.ModuleList(), nn.ModuleList()
        i, c = 1, ch
        for d in range(depth):
            self.enc.append(nn.Sequential(nn.Conv1d(i, c, k, stride), nn.ReLU(), nn.Conv1d(c, 2 * c, 1), nn.GLU(1)))
            self.dec.insert(0, nn.Sequential(nn.Conv1d(c, 2 * c, 1), nn.GLU(1), nn.ConvTranspose1d(c, i, k, stride),
                                             nn.ReLU() if d else nn.Identity()))
            i, c = c, min(2 * c, 512)
        self.lstm = nn.LSTM(i, i, 2, batch_first=True, bidirectional=True)
        self.lin = nn.Linear(2 * i, i)

    def valid(self, n):
        for _ in range(self.depth):
            n = max(math.ceil((n - self.k) / self.s) + 1, 1)
        for _ in range(self.depth):
            n = (n - 1) * self.s + self.k
        return n

    def forward(self, wav):
        n = wav.shape[-1]
        x = F.pad(wav, (0, self.valid(n) - n)).unsqueeze(1)
        skips = []
        for e in self.enc:
            x = e(x)
            skips.append(x)
        y, _ = self.lstm(x.transpose(1, 2))
        x = self.lin(y).transpose(1, 2)
        for d in self.dec:
            s = skips.pop()
            x = d(x + s[..., :x.shape[-1]])
        return x[:, 0, :n]


class MRSTFT(nn.Module):
    def __init__(self, sizes=((512, 50, 240), (1024, 120, 600), (2048, 240, 1200))):
        super().__init__()
        self.sizes = sizes
        for n, _, w in sizes:
            self.register_buffer(f"win{n}", torch.hann_window(w), persistent=False)

    def mag(self, x, n, hop, w):
        s = torch.stft(x, n, hop, w, getattr(self, f"win{n}"), return_complex=True)
        return (s.real ** 2 + s.imag ** 2).clamp(min=1e-7).sqrt()

    def forward(self, x, y):
        loss = 0.0
        for cfg in self.sizes:
            a, b = self.mag(x, *cfg), self.mag(y, *cfg)
            loss = loss + (b - a).norm() / b.norm() + F.l1_loss(a.log(), b.log())
        return loss / len(self.sizes)


class Denoiser(L.LightningModule):
    def __init__(self, ch, lr=3e-4):
        super().__init__()
        self.net, self.stft, self.lr = WaveUNet(ch), MRSTFT(), lr

    def masked(self, x, length):
        return x * (torch.arange(x.shape[-1], device=x.device) < length[:, None])

    def training_step(self, batch, idx):
        clean, noisy, length = batch
        out = self.masked(self.net(noisy).float(), length)
        wave, spec = F.l1_loss(out, clean), self.stft(out, clean)
        loss = 10 * wave + spec
        if idx % 5 == 0:
            print(f"batch {idx:3d}  {clean.shape[-1] / SR:.1f} s  wave {wave.item():.4f}  stft {spec.item():.4f}")
        return loss

    def validation_step(self, batch, idx):
        clean, noisy, length = batch
        out = self.masked(self.net(noisy).float(), length)
        snr = 10 * torch.log10(clean.pow(2).sum(-1) / ((out - clean).pow(2).sum(-1) + 1e-8))
        self.log("val_snr", snr.mean(), batch_size=len(clean))

    def on_validation_epoch_end(self):
        print(f"validation SNR {self.trainer.callback_metrics['val_snr'].item():.2f} dB")

    def configure_optimizers(self):
        opt = torch.optim.RAdam(self.parameters(), lr=self.lr, weight_decay=1e-4, decoupled_weight_decay=True)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.98), "interval": "step"}}


def main():
    L.seed_everything(17, verbose=False)
    batch = max(1, round((2 if TINY else 32) * SCALE))
    steps = 6 if TINY else 24
    longest = 1.5 if TINY else 6.0
    train = DataLoader(Clips(batch * steps, 1, longest), batch, collate_fn=collate, shuffle=True, num_workers=0)
    val = DataLoader(Clips(batch * 2, 2, longest), batch, collate_fn=collate)
    gpu = torch.cuda.is_available()
    trainer = L.Trainer(
        max_epochs=1, accelerator="gpu" if gpu else "cpu", devices=1,
        precision="16-mixed" if gpu else "32-true", accumulate_grad_batches=2, gradient_clip_val=5.0,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Denoiser(4 if TINY else 48), train, val)
    print("done")


if __name__ == "__main__":
    main()
