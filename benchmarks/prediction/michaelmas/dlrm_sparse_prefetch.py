"""DLRM-style click model: sparse EmbeddingBags + SparseAdam, dense AdamW, side-stream prefetch from pinned memory."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

class Prefetcher:
    """Copies the next batch on a second stream while the current one is computed."""

    def __init__(self, loader, device):
        self.it = iter(loader)
        self.device = device
        self.stream = torch.cuda.Stream()
        self._load()

    def _load(self):
        try:
            batch = next(self.it)
        except StopIteration:
            self.next = None
            return
        with torch.cuda.stream(self.stream):
            self.next = [t.to(self.device, non_blocking=True) for t in batch]

    def __iter__(self):
        while self.next is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            for t in batch:
                t.record_stream(torch.cuda.current_stream())
            self._load()
            yield batch

class Clicks(torch.utils.data.IterableDataset):
    def __init__(self, steps, batch, rows, dense, hots, seed):
        self.steps, self.batch, self.rows, self.dense, self.hots, self.seed = steps, batch, rows, dense, hots, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.steps):
            x = torch.randn(self.batch, self.dense, generator=g)
            u = torch.rand(len(self.rows), self.batch, self.hots, generator=g) ** 3  # popularity skew
            ids = (u * torch.tensor(self.rows).view(-1, 1, 1)).long()
            y = (x[:, 0] + 0.3 * torch.randn(self.batch, generator=g) > 0).float()
            yield x, ids, y

def mlp(*dims):
    layers = []
    for a, b in zip(dims[:-1], dims[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])

class DLRM(nn.Module):
    def __init__(self, rows, dense, dim):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(r, dim, mode="sum", sparse=True) for r in rows)
        for bag in self.bags:
            nn.init.uniform_(bag.weight, -bag.num_embeddings ** -0.5, bag.num_embeddings ** -0.5)
        self.bottom = mlp(dense, 512, 256, dim)
        n = len(rows) + 1
        self.top = mlp(n * (n - 1) // 2 + dim, 1024, 1024, 512, 1)
        self.register_buffer("tril", torch.tril_indices(n, n, -1), persistent=False)

    def forward(self, x, ids):
        d = self.bottom(x)
        feats = torch.stack([d] + [bag(i) for bag, i in zip(self.bags, ids)], 1)
        inter = torch.bmm(feats, feats.transpose(1, 2))[:, self.tril[0], self.tril[1]]
        return self.top(torch.cat([d, inter], 1)).squeeze(1)

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=32768)
    ap.add_argument("--steps", type=int, default=10)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--hots", type=int, default=3)
    ap.add_argument("--scale", type=int, default=1)
    args = ap.parse_args()
    torch.manual_seed(7)
    device = torch.device("cuda")
    rows = [r // args.scale for r in (2_000_000, 1_500_000, 800_000, 400_000, 200_000, 100_000, 50_000, 20_000,
                                      10_000, 7_000, 3_000, 2_000, 1_000, 500, 200, 100)]
    rows = [max(r, 4) for r in rows]
    model = DLRM(rows, 13, args.dim).to(device)
    sparse_opt = torch.optim.SparseAdam(list(model.bags.parameters()), lr=1e-3)
    dense_opt = torch.optim.AdamW(list(model.bottom.parameters()) + list(model.top.parameters()), lr=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(dense_opt, 3e-3, total_steps=args.steps)

    train = torch.utils.data.DataLoader(Clicks(args.steps, args.batch, rows, 13, args.hots, 0), batch_size=None,
                                        pin_memory=True)
    for step, (x, ids, y) in enumerate(Prefetcher(train, device)):
        loss = F.binary_cross_entropy_with_logits(model(x, ids), y)
        sparse_opt.zero_grad(set_to_none=True)
        dense_opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.top.parameters(), 1.0)
        sparse_opt.step()
        dense_opt.step()
        sched.step()
        print(f"step {step} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.5f}")

    model.eval()
    scores, labels = [], []
    test = torch.utils.data.DataLoader(Clicks(3, args.batch * 2, rows, 13, args.hots, 99), batch_size=None,
                                       pin_memory=True)
    with torch.inference_mode():
        for x, ids, y in Prefetcher(test, device):
            scores.append(model(x, ids).sigmoid())
            labels.append(y)
    s, y = torch.cat(scores), torch.cat(labels)
    rank = s.argsort().argsort().double() + 1
    pos, neg = y.sum().double(), (1 - y).sum().double()
    auc = ((rank * y).sum() - pos * (pos + 1) / 2) / (pos * neg)
    print(f"eval auc {auc.item():.4f}")

if __name__ == "__main__":
    main()
