"""Generative sequential recommender: gated pointwise attention over long click histories, sparse item table, Lightning."""
import argparse
import math

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanMetric


class Sessions(Dataset):
    """Users drift between item clusters; ids are 1..n_items, 0 is padding on the left."""

    def __init__(self, users, n_items, max_len, seed):
        self.users, self.n_items, self.max_len, self.seed = users, n_items, max_len, seed

    def __len__(self):
        return self.users

    def __getitem__(self, u):
        g = torch.Generator().manual_seed(self.seed * 1_000_003 + u)
        n = int(torch.randint(self.max_len // 4, self.max_len + 2, (1,), generator=g))
        centre = torch.randint(0, self.n_items, (1,), generator=g)
        walk = torch.randint(-40, 41, (n,), generator=g).cumsum(0)
        items = (centre + walk) % self.n_items + 1
        gaps = torch.randint(1, 5000, (n,), generator=g).cumsum(0)
        pad = self.max_len + 1 - n
        return F.pad(items, (pad, 0)), F.pad(gaps, (pad, 0))


class RelativeBias(nn.Module):
    def __init__(self, max_len, buckets=96):
        super().__init__()
        self.pos = nn.Parameter(torch.zeros(2 * max_len - 1))
        self.time = nn.Embedding(buckets, 1)
        self.buckets = buckets

    def forward(self, ts):
        n = ts.shape[1]
        i = torch.arange(n, device=ts.device)
        rel = self.pos[(i[:, None] - i[None]) + n - 1]
        dt = (ts[:, :, None] - ts[:, None]).abs().clamp(min=1).float()
        b = (dt.log() / 0.301).long().clamp(max=self.buckets - 1)
        return rel + self.time(b).squeeze(-1)


class HSTULayer(nn.Module):
    def __init__(self, dim, heads, dk, max_len, drop):
        super().__init__()
        self.h, self.dk = heads, dk
        self.norm, self.norm_o = nn.LayerNorm(dim), nn.LayerNorm(heads * dk)
        self.uvqk = nn.Linear(dim, 4 * heads * dk, bias=False)
        self.out, self.drop = nn.Linear(heads * dk, dim), nn.Dropout(drop)
        self.bias = RelativeBias(max_len)

    def forward(self, x, ts, mask):
        B, N, _ = x.shape
        u, v, q, k = F.silu(self.uvqk(self.norm(x))).chunk(4, -1)
        q, k, v = (t.view(B, N, self.h, self.dk) for t in (q, k, v))
        a = torch.einsum("bnhd,bmhd->bhnm", q, k) + self.bias(ts)[:, None]
        a = F.silu(a) / N * mask
        y = torch.einsum("bhnm,bmhd->bnhd", a.to(v.dtype), v).flatten(2)
        return x + self.out(self.drop(self.norm_o(y) * u))


class Recommender(L.LightningModule):
    def __init__(self, n_items, dim=128, heads=4, layers=6, max_len=200, negatives=6144, tau=0.05, lr=1e-3, drop=0.2, topk=100):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.items = nn.Embedding(n_items + 1, dim, padding_idx=0, sparse=True)
        nn.init.normal_(self.items.weight, std=0.02)
        self.pos = nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList(HSTULayer(dim, heads, dim // heads, max_len, drop) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.register_buffer("tri", torch.ones(max_len, max_len).tril(), persistent=False)
        self.hits = nn.ModuleDict({f"hr{k}": MeanMetric() for k in (10, 100)})

    def encode(self, ids, ts):
        x = self.items(ids) * math.sqrt(self.hparams.dim) + self.pos.weight[: ids.shape[1]]
        mask = self.tri * (ids > 0)[:, None, None, :]
        for b in self.blocks:
            x = b(x, ts, mask)
        return F.normalize(self.norm(x).float(), dim=-1)

    def training_step(self, batch, _):
        seq, ts = batch
        ctx, target = seq[:, :-1], seq[:, 1:]
        h = self.encode(ctx, ts[:, :-1])
        keep = ctx > 0
        h, target = h[keep], target[keep]
        neg = torch.randint(1, self.hparams.n_items + 1, (self.hparams.negatives,), device=self.device)
        pe, ne = F.normalize(self.items(target), dim=-1), F.normalize(self.items(neg), dim=-1)
        pos = (h * pe).sum(-1, keepdim=True)
        sim = (h @ ne.t()).masked_fill(target[:, None] == neg, -5e4)
        logits = torch.cat([pos, sim.to(pos.dtype)], 1) / self.hparams.tau
        loss = F.cross_entropy(logits.float(), torch.zeros_like(target))
        dense, sparse = self.optimizers()
        dense.zero_grad()
        sparse.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(dense, 1.0, "norm")
        dense.step()
        sparse.step()
        self.lr_schedulers().step()
        self.log("loss", loss, prog_bar=False, on_step=True)

    def validation_step(self, batch, _):
        seq, ts = batch
        h = self.encode(seq[:, :-1], ts[:, :-1])[:, -1]
        scores = h @ F.normalize(self.items.weight, dim=-1).t()
        scores.scatter_(1, seq[:, :-1], float("-inf"))
        top = scores.topk(self.hparams.topk, dim=1).indices
        hit = top == seq[:, -1:]
        for k in (10, 100):
            self.hits[f"hr{k}"].update(hit[:, :k].any(1).float())

    def on_validation_epoch_end(self):
        for n, m in self.hits.items():
            self.log(n, m.compute())
            m.reset()

    def configure_optimizers(self):
        dense = torch.optim.AdamW([p for n, p in self.named_parameters() if not n.startswith("items")], lr=self.hparams.lr, betas=(0.9, 0.98))
        sparse = torch.optim.SparseAdam(list(self.items.parameters()), lr=self.hparams.lr)
        sched = torch.optim.lr_scheduler.LambdaLR(dense, lambda s: min(1.0, (s + 1) / 50))
        return [dense, sparse], [{"scheduler": sched, "interval": "step"}]


class Report(Callback):
    def on_validation_end(self, trainer, pl):
        m = {k: round(float(v), 4) for k, v in trainer.callback_metrics.items()}
        print(f"epoch {trainer.current_epoch} step {trainer.global_step}: {m}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    p.add_argument("--items", type=int, default=600_000)
    p.add_argument("--users", type=int, default=9000)
    p.add_argument("--val-users", type=int, default=1200)
    p.add_argument("--batch", type=int, default=96)
    p.add_argument("--val-batch", type=int, default=400)
    p.add_argument("--max-len", type=int, default=200)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--negatives", type=int, default=6144)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--workers", type=int, default=6)
    p.add_argument("--out", default="/tmp/hstu_logs")
    a = p.parse_args()
    L.seed_everything(9, workers=True)
    dm = dict(num_workers=a.workers, pin_memory=a.device == "cuda")
    train = DataLoader(Sessions(a.users, a.items, a.max_len, 1), a.batch, shuffle=True, drop_last=True, **dm)
    val = DataLoader(Sessions(a.val_users, a.items, a.max_len, 2), a.val_batch, **dm)
    model = Recommender(a.items, a.dim, layers=a.layers, max_len=a.max_len, negatives=a.negatives, topk=100)
    trainer = L.Trainer(accelerator="gpu" if a.device == "cuda" else "cpu", devices=1, precision="bf16-mixed", max_epochs=a.epochs,
                        logger=CSVLogger(a.out), callbacks=[Report(), LearningRateMonitor("step")], enable_checkpointing=False,
                        enable_progress_bar=False, log_every_n_steps=20, num_sanity_val_steps=1)
    trainer.fit(model, train, val)


if __name__ == "__main__":
    main()
