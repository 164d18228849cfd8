"""Byte-level language model with chunked gated linear attention, trained by Lightning in bf16-mixed."""
import argparse
import math
import tempfile

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset


def chunked_gated_attention(q, k, v, log_decay, chunk):
    """q, k: (B,H,T,K); v: (B,H,T,V); log_decay: (B,H,T), all below zero. Returns (B,H,T,V)."""
    b, h, t, dk = q.shape
    n = t // chunk
    q, k, v = (x.view(b, h, n, chunk, -1) for x in (q, k, v))
    cum = log_decay.float().view(b, h, n, chunk).cumsum(-1)
    total = cum[..., -1:]
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    gap = (cum[..., :, None] - cum[..., None, :]).masked_fill(~causal, float("-inf"))
    inside = ((q @ k.transpose(-1, -2)).float() * gap.exp()).to(v.dtype) @ v
    update = (k * (total - cum).exp()[..., None].to(k.dtype)).transpose(-1, -2) @ v          # (B,H,N,K,V)
    decay = total.exp()[..., None]
    state, states = torch.zeros(b, h, dk, v.shape[-1], device=q.device, dtype=torch.float32), []
    for i in range(n):
        states.append(state)
        state = state * decay[:, :, i] + update[:, :, i].float()
    states = torch.stack(states, 2).to(q.dtype)
    across = (q * cum.exp()[..., None].to(q.dtype)) @ states
    return (inside + across).view(b, h, t, -1)


class Mixer(nn.Module):
    def __init__(self, dim, heads, dk, dv, chunk):
        super().__init__()
        self.heads, self.dk, self.dv, self.chunk = heads, dk, dv, chunk
        self.conv = nn.Conv1d(dim, dim, 4, groups=dim, padding=3)
        self.qk = nn.Linear(dim, 2 * heads * dk, bias=False)
        self.vg = nn.Linear(dim, 2 * heads * dv, bias=False)
        self.decay = nn.Linear(dim, heads)
        nn.init.constant_(self.decay.bias, 4.0)
        self.norm = nn.GroupNorm(heads, heads * dv)
        self.out = nn.Linear(heads * dv, dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        u = F.silu(self.conv(x.transpose(1, 2))[..., :t]).transpose(1, 2)
        q, k = self.qk(u).view(b, t, 2, self.heads, self.dk).permute(2, 0, 3, 1, 4)
        v, g = self.vg(u).chunk(2, -1)
        v = v.view(b, t, self.heads, self.dv).transpose(1, 2)
        log_decay = F.logsigmoid(self.decay(u).float()).transpose(1, 2)
        y = chunked_gated_attention(q * self.dk ** -0.5, k, v, log_decay, self.chunk)
        y = y.transpose(1, 2).reshape(b * t, -1)
        return self.out(self.norm(y).view(b, t, -1) * F.silu(g))


class Block(nn.Module):
    def __init__(self, dim, heads, dk, dv, chunk, dropout):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.mixer = Mixer(dim, heads, dk, dv, chunk)
        self.up, self.down = nn.Linear(dim, 2 * 5 * dim // 2, bias=False), nn.Linear(5 * dim // 2, dim, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.drop(self.mixer(self.n1(x)))
        a, b = self.up(self.n2(x)).chunk(2, -1)
        return x + self.drop(self.down(F.silu(a) * b))


class ByteLM(pl.LightningModule):
    def __init__(self, dim=512, layers=8, heads=4, dk=64, dv=128, chunk=64, dropout=0.1, lr=1e-3, total_steps=100):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(259, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, dk, dv, chunk, dropout) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, 259)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, ids):
        logits = self(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train/bits", loss / math.log(2), prog_bar=False)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/bits", self.loss(batch) / math.log(2))

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.ndim >= 2]
        plain = [p for p in self.parameters() if p.ndim < 2]
        opt = torch.optim.RAdam([{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
                                lr=self.hparams.lr, betas=(0.9, 0.98), decoupled_weight_decay=True)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, self.hparams.lr, total_steps=self.hparams.total_steps, pct_start=0.2,
                                                    cycle_momentum=False)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


class Bytes(Dataset):
    """Words of a small made-up language, joined by spaces."""

    def __init__(self, n, length, seed):
        g = torch.Generator().manual_seed(seed)
        words = torch.randint(97, 123, (500, 6), generator=g)
        words[:, 5] = 32
        pick = torch.randint(0, 500, (n, length // 6 + 1), generator=g)
        self.data = words[pick].flatten(1)[:, : length + 1]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=512)
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--length", type=int, default=2304)
    p.add_argument("--batch", type=int, default=6)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--accelerator", default="cuda")
    args = p.parse_args()
    pl.seed_everything(17, verbose=False)
    torch.set_float32_matmul_precision("high")

    per_epoch = args.steps * args.accumulate // 2
    train = DataLoader(Bytes(per_epoch * args.batch, args.length, 1), args.batch, shuffle=True, drop_last=True)
    val = DataLoader(Bytes(30, 2 * args.length, 2), 4)
    model = ByteLM(dim=args.dim, layers=args.layers, total_steps=args.steps + 2)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator=args.accelerator, devices=1, precision="bf16-mixed", max_epochs=2, max_steps=args.steps,
            accumulate_grad_batches=args.accumulate, gradient_clip_val=1.0, log_every_n_steps=5,
            enable_progress_bar=False, enable_model_summary=True, num_sanity_val_steps=1,
            logger=CSVLogger(folder), default_root_dir=folder,
            callbacks=[ModelCheckpoint(dirpath=folder, monitor="val/bits", save_top_k=1), LearningRateMonitor("step")])
        trainer.fit(model, train, val)
        result = trainer.validate(model, val, verbose=False)
        print({k: round(float(v), 4) for k, v in result[0].items()})


if __name__ == "__main__":
    main()
