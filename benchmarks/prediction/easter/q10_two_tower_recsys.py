"""Two-tower retrieval with large tables: sparse gradients (SparseAdam) for items and users, dense for context (Adagrad).

In-batch softmax with a correction for popularity; evaluation scores whole slices of the catalogue.
"""
import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


class UserTower(nn.Module):
    def __init__(self, items, users, dim, contexts):
        super().__init__()
        self.items = items                                             # shared table, sparse
        self.users = nn.Embedding(users, dim, sparse=True)
        self.context = nn.ModuleList(nn.Embedding(n, 24) for n in contexts)
        self.mlp = nn.Sequential(nn.Linear(2 * dim + 24 * len(contexts), 768), nn.BatchNorm1d(768), nn.ReLU(),
                                 nn.Dropout(0.1), nn.Linear(768, 384), nn.ReLU(), nn.Linear(384, dim))
        nn.init.normal_(self.users.weight, std=0.05)

    def forward(self, user, history, offsets, context):
        bag = F.embedding_bag(history, self.items.weight, offsets, mode="mean", sparse=True)
        parts = [bag, self.users(user)] + [e(context[:, i]) for i, e in enumerate(self.context)]
        return F.normalize(self.mlp(torch.cat(parts, 1)), dim=1)


class ItemTower(nn.Module):
    def __init__(self, items, categories, dim):
        super().__init__()
        self.items = items
        self.categories = nn.Embedding(categories, 32)
        self.mlp = nn.Sequential(nn.Linear(dim + 32, 384), nn.ReLU(), nn.Linear(384, dim))

    def forward(self, item):
        category = item % self.categories.num_embeddings
        return F.normalize(self.mlp(torch.cat([self.items(item), self.categories(category)], 1)), dim=1)


def interactions(args, seed, contexts):
    """Zipf-like items, ragged histories."""
    g = torch.Generator().manual_seed(seed)
    while True:
        user = torch.randint(0, args.users, (args.batch,), generator=g)
        lengths = torch.randint(1, args.history, (args.batch,), generator=g)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
        draw = torch.rand(int(lengths.sum()) + args.batch, generator=g, dtype=torch.float64)
        item = (args.items ** draw).long().sub_(1).clamp_(0, args.items - 1)
        context = torch.stack([torch.randint(0, n, (args.batch,), generator=g) for n in contexts], 1)
        yield user, item[args.batch:], offsets, context, item[: args.batch]


def to_gpu(batch):
    return [t.to("cuda", non_blocking=True) for t in batch]


@torch.no_grad()
def recall_at(user_tower, item_tower, stream, args, k=100):
    user_tower.eval()
    item_tower.eval()
    vectors = torch.cat([item_tower(ids) for ids in torch.arange(args.items, device="cuda").split(65536)])
    hits = total = 0
    user, history, offsets, context, item = to_gpu(next(stream))
    query = user_tower(user, history, offsets, context)
    for q, y in zip(query.split(args.eval_users)[: args.eval_slices], item.split(args.eval_users)):
        top = (q @ vectors.T).topk(k, dim=1).indices
        hits += (top == y[:, None]).any(1).sum().item()
        total += len(y)
    user_tower.train()
    item_tower.train()
    return hits / total


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--items", type=int, default=1_300_000)
    p.add_argument("--users", type=int, default=800_000)
    p.add_argument("--dim", type=int, default=72)
    p.add_argument("--batch", type=int, default=7000)
    p.add_argument("--history", type=int, default=40)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--temperature", type=float, default=0.07)
    p.add_argument("--eval-users", type=int, default=180)
    p.add_argument("--eval-slices", type=int, default=6)
    args = p.parse_args()
    torch.manual_seed(4)
    contexts = [150_000, 31, 24, 900]

    table = nn.Embedding(args.items, args.dim, sparse=True)
    nn.init.normal_(table.weight, std=0.05)
    user_tower = UserTower(table, args.users, args.dim, contexts).to("cuda")
    item_tower = ItemTower(user_tower.items, 2500, args.dim).to("cuda")
    sparse = [user_tower.items.weight, user_tower.users.weight]
    skip = {id(q) for q in sparse}
    dense = [q for tower in (user_tower, item_tower) for q in tower.parameters() if id(q) not in skip]
    opt_sparse = torch.optim.SparseAdam(sparse, lr=2e-3)
    opt_dense = torch.optim.Adagrad(dense, lr=0.02, initial_accumulator_value=0.1)
    print(f"sparse {sum(q.numel() for q in sparse) / 1e6:.0f}M dense {sum(q.numel() for q in dense) / 1e6:.1f}M")

    counts = torch.ones(args.items, device="cuda")
    stream, held = interactions(args, 10, contexts), interactions(args, 11, contexts)
    running = 0.0
    for step in range(1, args.steps + 1):
        user, history, offsets, context, item = to_gpu(next(stream))
        counts.index_add_(0, item, torch.ones_like(item, dtype=torch.float32))
        u, v = user_tower(user, history, offsets, context), item_tower(item)
        logits = u @ v.T / args.temperature
        logits = logits - (counts[item] / counts.sum()).log()[None]
        same = item[:, None] == item[None]
        same.fill_diagonal_(False)
        logits = logits.masked_fill(same, -1e4)
        loss = F.cross_entropy(logits, torch.arange(len(item), device="cuda"))
        opt_sparse.zero_grad()
        opt_dense.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(dense, 5.0)
        opt_sparse.step()
        opt_dense.step()
        running += loss.item()
        if step % 15 == 0:
            print(f"step {step} loss {running / 15:.4f}")
            running = 0.0
        if step % (args.steps // 2) == 0:
            print(f"recall@100 {recall_at(user_tower, item_tower, held, args):.4f}")

    with tempfile.TemporaryDirectory() as folder:
        torch.save({"user": user_tower.mlp.state_dict(), "item": item_tower.mlp.state_dict(), "dense": opt_dense.state_dict()},
                   os.path.join(folder, "towers.pt"))


if __name__ == "__main__":
    main()
