"""Two-tower retrieval: sparse embedding tables, in-batch softmax, then item clustering (PCA + k-means)."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, d_in, hidden, d_out):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
                                 nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
                                 nn.Linear(hidden, d_out))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, users, items, dim, hidden, out):
        super().__init__()
        self.user = nn.Embedding(users, dim, sparse=True)
        self.item = nn.EmbeddingBag(items, dim, mode="mean", sparse=True)
        for w in (self.user.weight, self.item.weight):
            nn.init.normal_(w, std=dim ** -0.5)
        self.user_tower = Tower(2 * dim, hidden, out)
        self.item_tower = Tower(dim, hidden, out)
        self.log_temp = nn.Parameter(torch.tensor(2.7))

    def encode_user(self, user, hist, offsets):
        return self.user_tower(torch.cat([self.user(user), self.item(hist, offsets)], dim=-1))

    def encode_item(self, item):
        return self.item_tower(self.item(item.unsqueeze(1)))

    def forward(self, user, hist, offsets, item):
        u, v = self.encode_user(user, hist, offsets), self.encode_item(item)
        return u @ v.T * self.log_temp.exp()


def zipf(n, size, device):
    """Skewed ids: most interactions go to few items."""
    return (n * torch.rand(size, device=device) ** 3).long().clamp_(max=n - 1)


def sample_batch(args, device):
    user = torch.randint(args.users, (args.batch,), device=device)
    lens = torch.randint(5, 2 * args.history - 5, (args.batch,), device=device)
    offsets = torch.cumsum(lens, 0) - lens
    hist = zipf(args.items, int(lens.sum()), device)
    item = zipf(args.items, args.batch, device)
    return user, hist, offsets, item


@torch.no_grad()
def kmeans(x, k, iters, chunk):
    cent = x[torch.randperm(x.shape[0], device=x.device)[:k]].clone()
    for _ in range(iters):
        assign = torch.cat([torch.cdist(c, cent).argmin(1) for c in x.split(chunk)])
        sums = torch.zeros_like(cent).index_add_(0, assign, x)
        counts = torch.bincount(assign, minlength=k).clamp(min=1)
        cent = sums / counts.unsqueeze(1)
    return cent, assign


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--users", type=int, default=2_000_000)
    p.add_argument("--items", type=int, default=3_000_000)
    p.add_argument("--dim", type=int, default=96)
    p.add_argument("--hidden", type=int, default=512)
    p.add_argument("--out", type=int, default=64)
    p.add_argument("--batch", type=int, default=16384)
    p.add_argument("--history", type=int, default=30)
    p.add_argument("--clusters", type=int, default=1024)
    p.add_argument("--chunk", type=int, default=262144)
    p.add_argument("--steps", type=int, default=6)
    args = p.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device:
        model = TwoTower(args.users, args.items, args.dim, args.hidden, args.out)
    tables = [model.user.weight, model.item.weight]
    ids = {id(t) for t in tables}
    dense = [q for q in model.parameters() if id(q) not in ids]
    opt_sparse = torch.optim.SparseAdam(tables, lr=1e-3)
    opt_dense = torch.optim.Adagrad(dense, lr=1e-2)

    popularity = torch.zeros(args.items, device=device)
    for step in range(args.steps):
        user, hist, offsets, item = sample_batch(args, device)
        popularity.index_add_(0, item, torch.ones_like(item, dtype=torch.float))
        logits = model(user, hist, offsets, item)
        # log-Q correction, and mask accidental hits of the same item in the batch
        logits = logits - torch.log((popularity[item] + 1) / (popularity.sum() + 1))
        same = item[:, None] == item[None, :]
        same.fill_diagonal_(False)
        logits = logits.masked_fill(same, -1e4)
        loss = F.cross_entropy(logits, torch.arange(args.batch, device=device))
        opt_sparse.zero_grad()
        opt_dense.zero_grad()
        loss.backward()
        opt_sparse.step()
        opt_dense.step()
        print(f"step {step} loss {loss.item():.4f} history ids {hist.numel()}")

    del logits, loss, same
    model.eval()
    with torch.no_grad():
        vecs = torch.cat([model.encode_item(i) for i in torch.arange(args.items, device=device).split(args.chunk)])
        _, s, v = torch.pca_lowrank(vecs, q=min(32, args.out), niter=2)
        low = vecs @ v
        low = low / low.std(0, keepdim=True)
        cent, assign = kmeans(low, args.clusters, 5, args.chunk)
        inertia = (low - cent[assign]).pow(2).sum(1).mean()
    print(f"leading singular value {s[0].item():.2f}, k-means inertia {inertia.item():.4f}")


if __name__ == "__main__":
    main()
