# Click-through model in the DLRM style: sparse embedding bags on Adagrad, dense layers on AdamW.
import argparse
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

TABLES = [2_300_000, 1_150_000, 640_000, 205_000, 48_000, 9_100, 1_377, 77]


class Clicks(IterableDataset):
    """Whole batches of synthetic impressions; ids follow a rough power law."""

    def __init__(self, batches, batch, tables, dense, hot, seed):
        self.batches, self.batch, self.tables = batches, batch, tables
        self.dense, self.hot, self.seed = dense, hot, seed

    def __len__(self):
        return self.batches

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for number in range(first, self.batches, step):
            g = torch.Generator().manual_seed(self.seed * 100_000 + number)
            dense = torch.randn(self.batch, self.dense, generator=g)
            ids = []
            for rows in self.tables:
                u = torch.rand(self.batch, self.hot, generator=g)
                ids.append((u**3 * rows).long().clamp_(max=rows - 1))
            ids = torch.stack(ids, 1)
            score = dense[:, 0] + (ids[:, 3, 0] % 2).float() - 1.0
            label = (torch.rand(self.batch, generator=g) < score.sigmoid()).float()
            yield dense, ids, label


def mlp(sizes, last_act=True):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(a, b))
        if last_act or i + 2 < len(sizes):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    def __init__(self, tables, dim, dense, device):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, dim, mode="sum", sparse=True, device=device) for rows in tables
        )
        for t in self.tables:
            nn.init.uniform_(t.weight, -(t.num_embeddings**-0.5), t.num_embeddings**-0.5)
        self.bottom = mlp([dense, 512, 256, dim]).to(device)
        n = len(tables) + 1
        iu = torch.triu_indices(n, n, offset=1, device=device)
        self.register_buffer("iu", iu, persistent=False)
        self.top = mlp([dim + iu.size(1), 768, 384, 1], last_act=False).to(device)

    def forward(self, dense, ids):
        d = self.bottom(dense)
        feats = torch.stack([d] + [t(ids[:, i]) for i, t in enumerate(self.tables)], 1)
        inter = torch.bmm(feats, feats.transpose(1, 2))[:, self.iu[0], self.iu[1]]
        return self.top(torch.cat([d, inter], 1)).squeeze(1)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    probs, labels = [], []
    for dense, ids, label in loader:
        probs.append(model(dense.to(device), ids.to(device)).sigmoid())
        labels.append(label.to(device))
    p, y = torch.cat(probs), torch.cat(labels)
    order = p.argsort()
    ranks = torch.empty_like(p).index_copy_(0, order, torch.arange(1, len(p) + 1, device=device, dtype=p.dtype))
    n1 = y.sum()
    n0 = len(y) - n1
    auc = (ranks[y > 0.5].double().sum() - n1.double() * (n1.double() + 1) / 2) / (n1.double() * n0.double())
    return auc.item(), nn.functional.binary_cross_entropy(p, y).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dim", type=int, default=72)
    ap.add_argument("--dense", type=int, default=13)
    ap.add_argument("--hot", type=int, default=4)
    ap.add_argument("--batch", type=int, default=15_000)
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--shrink", type=int, default=1)
    args = ap.parse_args()

    torch.manual_seed(12)
    torch.set_num_threads(2)
    device = torch.device("cuda")
    tables = [max(10, t // args.shrink) for t in TABLES]
    model = DLRM(tables, args.dim, args.dense, device)
    emb = list(model.tables.parameters())
    rest = list(model.bottom.parameters()) + list(model.top.parameters())
    print(f"embeddings {sum(p.numel() for p in emb) / 1e6:.0f}M, dense {sum(p.numel() for p in rest) / 1e6:.2f}M")
    opt_sparse = torch.optim.Adagrad(emb, lr=0.02, initial_accumulator_value=0.1)
    opt_dense = torch.optim.AdamW(rest, lr=1e-3, weight_decay=1e-5)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt_dense, max_lr=2e-3, total_steps=args.steps)

    train = DataLoader(Clicks(args.steps, args.batch, tables, args.dense, args.hot, 1), batch_size=None,
                       num_workers=2, pin_memory=True)
    val = DataLoader(Clicks(6, args.batch * 2, tables, args.dense, args.hot, 99), batch_size=None)
    model.train()
    for step, (dense, ids, label) in enumerate(train):
        dense, ids, label = (t.to(device, non_blocking=True) for t in (dense, ids, label))
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, ids), label)
        opt_sparse.zero_grad()
        opt_dense.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(rest, 5.0)
        opt_sparse.step()
        opt_dense.step()
        sched.step()
        if step % 25 == 0:
            print(f"step {step} bce {loss.item():.4f}")
    auc, bce = evaluate(model, val, device)
    print(f"val auc {auc:.4f} bce {bce:.4f}")
    with tempfile.TemporaryDirectory() as tmp:
        torch.save({"bottom": model.bottom.state_dict(), "top": model.top.state_dict()}, os.path.join(tmp, "dense.pt"))


if __name__ == "__main__":
    main()
