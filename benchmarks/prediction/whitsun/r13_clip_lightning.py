"""Contrastive image-text pre-training of two small transformers with PyTorch Lightning, followed by retrieval scoring."""
import argparse
import math

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.retrieval import RetrievalMRR


class Captions(Dataset):
    """Each image is a coarse colour mosaic; its caption lists the quantised colours in reading order."""

    def __init__(self, n, size, vocab, longest, seed, cells=5):
        self.n, self.size, self.vocab, self.longest, self.seed, self.cells = n, size, vocab, longest, seed, cells

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 1_000_003 + i)
        cells = torch.randint(0, 256, (3, self.cells, self.cells), generator=g, dtype=torch.uint8)
        image = F.interpolate(cells[None].float(), size=(self.size, self.size), mode="nearest")[0].to(torch.uint8)
        words = (cells.long() // 32 * torch.tensor([64, 8, 1])[:, None, None]).sum(0).flatten() % (self.vocab - 2) + 2
        n = int(torch.randint(8, self.longest, (1,), generator=g))
        text = torch.zeros(self.longest, dtype=torch.long)
        words = words.repeat(math.ceil(n / len(words)))[:n]
        text[:n], text[n - 1] = words, 1
        return image, text, n


class Synthetic(L.LightningDataModule):
    def __init__(self, args):
        super().__init__()
        self.a = args

    def _loader(self, n, seed, shuffle):
        ds = Captions(n, self.a.image, self.a.vocab, self.a.text_len, seed)
        return DataLoader(ds, self.a.batch, shuffle=shuffle, drop_last=True, num_workers=self.a.workers,
                          persistent_workers=self.a.workers > 0, pin_memory=self.a.device.startswith("cuda"))

    def train_dataloader(self):
        return self._loader(self.a.train_pairs, 1, True)

    def val_dataloader(self):
        return self._loader(self.a.val_pairs, 2, False)


class ImageTower(nn.Module):
    def __init__(self, size, patch, dim, depth, heads):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.blocks(x)[:, 0]


class TextTower(nn.Module):
    def __init__(self, vocab, length, dim, depth, heads):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(1, length, dim) * 0.01)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.register_buffer("causal", torch.full((length, length), float("-inf")).triu(1), persistent=False)

    def forward(self, ids, n):
        x = self.blocks(self.tok(ids) + self.pos, mask=self.causal)
        return x[torch.arange(len(x), device=x.device), n - 1]


class DualEncoder(L.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.save_hyperparameters(vars(args))
        a = args
        self.image = ImageTower(a.image, a.patch, a.dim, a.depth, a.dim // 64)
        self.text = TextTower(a.vocab, a.text_len, a.text_dim, a.text_depth, a.text_dim // 64)
        self.image_proj = nn.Linear(a.dim, a.embed, bias=False)
        self.text_proj = nn.Linear(a.text_dim, a.embed, bias=False)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.metrics = MetricCollection({"mrr": RetrievalMRR()})
        self.val_loss = MeanMetric()

    def embed(self, images, ids, n):
        x = (images.float() - 127.5) / 64.0
        i = F.normalize(self.image_proj(self.image(x)).float(), dim=-1)
        t = F.normalize(self.text_proj(self.text(ids, n)).float(), dim=-1)
        return i, t

    def contrast(self, i, t):
        logits = self.scale.clamp(max=4.6).exp() * i @ t.T
        target = torch.arange(len(i), device=i.device)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2, logits

    def training_step(self, batch, _):
        loss, _ = self.contrast(*self.embed(*batch))
        self.log("train/loss", loss, prog_bar=False)
        return loss

    def validation_step(self, batch, batch_idx):
        i, t = self.embed(*batch)
        loss, logits = self.contrast(i, t)
        n = len(logits)
        self.val_loss.update(loss)
        rows = torch.arange(n, device=self.device) + batch_idx * n
        self.metrics.update(logits.flatten(), torch.eye(n, device=self.device).bool().flatten(), indexes=rows.repeat_interleave(n))

    def on_validation_epoch_end(self):
        self.log_dict({"val/mrr": self.metrics.compute()["mrr"], "val/loss": self.val_loss.compute()})
        self.metrics.reset()
        self.val_loss.reset()

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.ndim >= 2]
        other = [p for p in self.parameters() if p.ndim < 2]
        opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.2}, {"params": other, "weight_decay": 0.0}],
                                lr=5e-4, betas=(0.9, 0.98))
        total = self.trainer.estimated_stepping_batches
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, 5e-4, total_steps=int(total))
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


class WeightAverage(Callback):
    """Keeps an exponential average of the weights and validates with it."""

    def __init__(self, decay):
        self.decay, self.avg, self.live = decay, None, None

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        with torch.no_grad():
            if self.avg is None:
                self.avg = [p.detach().clone() for p in module.parameters()]
            for a, p in zip(self.avg, module.parameters()):
                a.lerp_(p, 1 - self.decay)

    def _swap(self, module):
        with torch.no_grad():
            for a, p in zip(self.avg, module.parameters()):
                tmp = p.detach().clone()
                p.copy_(a)
                a.copy_(tmp)

    def on_validation_start(self, trainer, module):
        if self.avg is not None:
            self._swap(module)

    def on_validation_end(self, trainer, module):
        if self.avg is not None:
            self._swap(module)


class Report(Callback):
    def on_validation_end(self, trainer, module):
        m = {k: round(float(v), 4) for k, v in trainer.callback_metrics.items()}
        print(f"step {trainer.global_step}: {m}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    for name, value in dict(image=182, patch=13, dim=384, depth=12, vocab=514, text_len=56, text_dim=320, text_depth=6, embed=256,
                            batch=144, train_pairs=28160, val_pairs=1408, epochs=2, accumulate=2, workers=8).items():
        ap.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    args = ap.parse_args()
    L.seed_everything(1234, verbose=False)
    torch.set_float32_matmul_precision("high")
    trainer = L.Trainer(accelerator="gpu" if args.device.startswith("cuda") else args.device, devices=1, precision="bf16-mixed",
                        max_epochs=args.epochs, accumulate_grad_batches=args.accumulate, gradient_clip_val=1.0,
                        num_sanity_val_steps=0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        callbacks=[WeightAverage(0.99), Report()])
    trainer.fit(DualEncoder(args), datamodule=Synthetic(args))


if __name__ == "__main__":
    main()
