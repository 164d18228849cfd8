"""DLRM-style click model: large sparse EmbeddingBag tables with SparseAdam, dense part with fused AdamW."""
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"

ROWS = [6_000_000, 4_000_000, 3_000_000, 2_000_000, 1_500_000, 1_000_000, 500_000, 200_000, 50_000, 5_000, 365, 24]
HOTS = [12, 8, 8, 4, 4, 4, 2, 2, 1, 1, 1, 1]
DIM = 64
DENSE = 13
BATCH = 32768
STEPS = 50
WARMUP = 5
VAL_STEPS = 6
POOL = 8


class Interaction(nn.Module):
    def __init__(self, fields):
        super().__init__()
        i, j = torch.triu_indices(fields, fields, offset=1)
        self.register_buffer("pairs", i * fields + j)

    def forward(self, dense, pooled):
        z = torch.stack([dense, *pooled], dim=1)
        inner = torch.bmm(z, z.transpose(1, 2)).flatten(1)
        return torch.cat([dense, inner[:, self.pairs]], dim=1)


class CrossNet(nn.Module):
    """DCN-v2 low rank cross layers on the concatenated embeddings."""

    def __init__(self, width, layers, rank):
        super().__init__()
        self.v = nn.ModuleList([nn.Linear(width, rank, bias=False) for _ in range(layers)])
        self.u = nn.ModuleList([nn.Linear(rank, width) for _ in range(layers)])

    def forward(self, x0):
        x = x0
        for u, v in zip(self.u, self.v):
            x = x0 * u(v(x)) + x
        return x


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(
            [nn.EmbeddingBag(r, DIM, mode="mean" if h > 4 else "sum", sparse=True) for r, h in zip(ROWS, HOTS)])
        for t in self.tables:
            nn.init.uniform_(t.weight, -0.01, 0.01)
        fields = len(ROWS) + 1
        self.bottom = mlp([DENSE, 512, 256, DIM])
        self.cross = CrossNet(fields * DIM, 3, 256)
        self.interact = Interaction(fields)
        width = DIM + fields * (fields - 1) // 2 + fields * DIM
        self.top = nn.Sequential(mlp([width, 2048, 1024, 512]), nn.Dropout(0.1), nn.Linear(512, 1))

    def dense_parameters(self):
        for m in (self.bottom, self.cross, self.top):
            yield from m.parameters()

    def forward(self, dense, bags):
        d = self.bottom(dense)
        pooled = [table(idx, off) for table, (idx, off) in zip(self.tables, bags)]
        crossed = self.cross(torch.cat([d, *pooled], dim=1))
        return self.top(torch.cat([self.interact(d, pooled), crossed], dim=1)).squeeze(1)


def host_batch(rng):
    """Ragged bags with power-law ids; between 1 and HOTS ids per sample."""
    dense = np.log1p(rng.exponential(3.0, (BATCH, DENSE))).astype(np.float32)
    bags = []
    for rows, hot in zip(ROWS, HOTS):
        counts = rng.integers(1, hot + 1, BATCH)
        offsets = np.concatenate([[0], np.cumsum(counts)[:-1]])
        ids = (rows * rng.random(int(counts.sum())) ** 3).astype(np.int64)
        bags.append((torch.from_numpy(ids), torch.from_numpy(offsets)))
    signal = dense[:, 0] - dense[:, 1] + 0.3 * rng.standard_normal(BATCH)
    clicks = (signal > 0.8).astype(np.float32)
    return torch.from_numpy(dense), bags, torch.from_numpy(clicks)


def to_device(batch):
    dense, bags, clicks = batch
    return dense.to(device), [(i.to(device), o.to(device)) for i, o in bags], clicks.to(device)


def auc(score, label):
    order = score.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(1, len(score) + 1, device=score.device)
    pos = label.sum()
    return ((rank[label > 0].double().sum() - pos * (pos + 1) / 2) / (pos * (len(label) - pos))).item()


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(9)
    pool = [host_batch(rng) for _ in range(POOL)]
    with torch.device(device):
        model = ClickModel()
    print(f"{sum(t.weight.numel() for t in model.tables) / 1e6:.0f}M embedding weights")
    sparse_opt = torch.optim.SparseAdam(list(model.tables.parameters()), lr=1e-3)
    dense_opt = torch.optim.AdamW(model.dense_parameters(), lr=1e-3, weight_decay=1e-5, fused=True)
    warm = torch.optim.lr_scheduler.LinearLR(dense_opt, 0.1, 1.0, total_iters=WARMUP)
    start = time.time()
    running = torch.zeros((), device=device)
    for step in range(STEPS):
        dense, bags, clicks = to_device(pool[step % POOL] if step % 3 else host_batch(rng))
        logits = model(dense, bags)
        loss = F.binary_cross_entropy_with_logits(logits, clicks)
        sparse_opt.zero_grad(set_to_none=True)
        dense_opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(list(model.dense_parameters()), 5.0)
        sparse_opt.step()
        dense_opt.step()
        warm.step()
        running += loss.detach()
        if (step + 1) % 10 == 0:
            print(f"step {step} loss {running.item() / 10:.4f} {time.time() - start:.1f}s")
            running.zero_()

    model.eval()
    scores, labels = [], []
    with torch.no_grad():
        for _ in range(VAL_STEPS):
            dense, bags, clicks = to_device(host_batch(rng))
            scores.append(model(dense, bags).sigmoid())
            labels.append(clicks)
    print(f"auc {auc(torch.cat(scores), torch.cat(labels)):.4f}")
    dense_state = {k: v.cpu() for k, v in model.state_dict().items() if not k.startswith("tables")}
    popular = [t.weight[: min(1000, r)].detach().cpu() for t, r in zip(model.tables, ROWS)]
    print(f"saved {len(dense_state)} dense tensors, {len(popular)} hot rows {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
