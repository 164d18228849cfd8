"""Two-tower retrieval for a shop: big sparse embedding tables, in-batch softmax, recall@k over the full catalogue."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def log(msg, t0=time.time()):
    print(f"[{time.time() - t0:6.1f}s] {msg}", flush=True)


class Interactions:
    """Synthetic click log. Item popularity follows a power law; batches come straight from numpy."""

    def __init__(self, users, items, history, seed):
        self.users, self.items, self.history = users, items, history
        self.rng = np.random.default_rng(seed)

    def _items(self, *shape):
        u = self.rng.random(shape)
        return np.minimum((u ** 2.5 * self.items).astype(np.int64), self.items - 1)

    def batch(self, size):
        return (torch.from_numpy(self.rng.integers(0, self.users, size)),
                torch.from_numpy(self._items(size, self.history)),
                torch.from_numpy(self.rng.random((size, 12), dtype=np.float32)),
                torch.from_numpy(self._items(size)))


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes[:-2], sizes[1:-1]):
        layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


class TwoTower(nn.Module):
    def __init__(self, users, items, dim, out, device):
        super().__init__()
        self.user_table = nn.Embedding(users, dim, sparse=True, device=device)
        self.item_table = nn.Embedding(items, dim, sparse=True, device=device)
        for table in (self.user_table, self.item_table):
            nn.init.uniform_(table.weight, -0.05, 0.05)
        self.user_net = mlp(2 * dim + 12, 512, 256, out).to(device)
        self.item_net = mlp(dim, 512, 256, out).to(device)
        self.temperature = nn.Parameter(torch.tensor(0.07, device=device))

    def encode_user(self, user, history, context):
        pooled = self.item_table(history).mean(dim=1)
        return F.normalize(self.user_net(torch.cat([self.user_table(user), pooled, context], dim=1)), dim=1)

    def encode_item(self, item):
        return F.normalize(self.item_net(self.item_table(item)), dim=1)

    def forward(self, user, history, context, item):
        u, v = self.encode_user(user, history, context), self.encode_item(item)
        logits = u @ v.T / self.temperature.clamp(min=0.01)
        same = item[None, :] == item[:, None]
        same.fill_diagonal_(False)
        return F.cross_entropy(logits.masked_fill(same, -1e4), torch.arange(len(item), device=item.device))


@torch.no_grad()
def recall(model, data, n_batches, batch, ks, chunk, device):
    model.eval()
    catalogue = torch.cat([model.encode_item(torch.arange(s, min(s + chunk, data.items), device=device))
                           for s in range(0, data.items, chunk)])
    hits = dict.fromkeys(ks, 0)
    for _ in range(n_batches):
        user, history, context, item = (t.to(device) for t in data.batch(batch))
        scores = model.encode_user(user, history, context) @ catalogue.T
        scores.scatter_(1, history, float("-inf"))
        top = scores.topk(max(ks), dim=1).indices
        for k in ks:
            hits[k] += (top[:, :k] == item[:, None]).any(dim=1).sum().item()
    model.train()
    return {f"recall@{k}": v / (n_batches * batch) for k, v in hits.items()}


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--users", type=int, default=1_500_000)
    ap.add_argument("--items", type=int, default=2_400_000)
    ap.add_argument("--dim", type=int, default=80)
    ap.add_argument("--out", type=int, default=64)
    ap.add_argument("--history", type=int, default=30)
    ap.add_argument("--batch", type=int, default=3000)
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--eval-batch", type=int, default=96)
    ap.add_argument("--eval-batches", type=int, default=6)
    ap.add_argument("--chunk", type=int, default=200_000)
    args = ap.parse_args()

    torch.manual_seed(99)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    train = Interactions(args.users, args.items, args.history, seed=1)
    test = Interactions(args.users, args.items, args.history, seed=2)
    model = TwoTower(args.users, args.items, args.dim, args.out, device)
    tables = [model.user_table.weight, model.item_table.weight]
    dense = [p for n, p in model.named_parameters() if "table" not in n]
    sparse_opt = torch.optim.SparseAdam(tables, lr=2e-3)
    dense_opt = torch.optim.Adam(dense, lr=1e-3)
    decay = [torch.optim.lr_scheduler.StepLR(o, step_size=60, gamma=0.5) for o in (sparse_opt, dense_opt)]
    log(f"tables hold {sum(t.numel() for t in tables) / 1e6:.0f}M numbers, towers {sum(p.numel() for p in dense) / 1e3:.0f}k")

    average = None
    for step in range(1, args.steps + 1):
        batch = [t.to(device, non_blocking=True) for t in train.batch(args.batch)]
        loss = model(*batch)
        sparse_opt.zero_grad()
        dense_opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(dense, 5.0)
        sparse_opt.step()
        dense_opt.step()
        for d in decay:
            d.step()
        if step % 20 == 0:
            average = loss.item() if average is None else 0.8 * average + 0.2 * loss.item()
            log(f"step {step} loss {average:.4f} temperature {model.temperature.item():.4f}")
        if step % 80 == 0:
            log(recall(model, test, args.eval_batches, args.eval_batch, (10, 100), args.chunk, device))


if __name__ == "__main__":
    main()
