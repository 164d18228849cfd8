"""Click-through-rate model with large sparse embedding tables, sparse Adam for the tables, Adagrad for the dense part."""
import argparse
import contextlib
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

TABLES = [2_100_000, 1_350_000, 820_000, 460_000, 210_000, 95_000, 40_000, 12_500, 4_100, 1_900, 640, 210, 77, 31, 12]
MULTI_HOT = {0: 9, 1: 5, 2: 14, 4: 3}


class Bags(nn.Module):
    def __init__(self, sizes, dim, device):
        super().__init__()
        self.tables = nn.ModuleList()
        for n in sizes:
            bag = nn.EmbeddingBag(n, dim, mode="mean", sparse=True, device=device)
            nn.init.uniform_(bag.weight, -n ** -0.5, n ** -0.5)
            self.tables.append(bag)

    def forward(self, ids):
        return torch.stack([t(i) for t, i in zip(self.tables, ids)], 1)


def mlp(dims, last_act=True):
    layers = []
    for i, (a, b) in enumerate(zip(dims, dims[1:])):
        layers.append(nn.Linear(a, b))
        if last_act or i < len(dims) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class CrossNet(nn.Module):
    """Low-rank DCN-v2 crossing layers."""

    def __init__(self, d, rank, layers):
        super().__init__()
        self.v = nn.ModuleList(nn.Linear(d, rank, bias=False) for _ in range(layers))
        self.u = nn.ModuleList(nn.Linear(rank, d) for _ in range(layers))

    def forward(self, x0):
        x = x0
        for v, u in zip(self.v, self.u):
            x = x0 * u(v(x)) + x
        return x


class Ranker(nn.Module):
    def __init__(self, sizes, dim, dense, device):
        super().__init__()
        self.bags = Bags(sizes, dim, device)
        self.bottom = mlp([dense, 512, 256, dim]).to(device)
        n = len(sizes) + 1
        self.cross = CrossNet(n * dim, 384, 3).to(device)
        self.register_buffer("tri", torch.tril_indices(n, n, -1, device=device))
        self.top = mlp([n * dim + n * (n - 1) // 2, 1024, 768, 256, 1], last_act=False).to(device)

    def forward(self, dense, ids):
        feats = torch.cat([self.bottom(dense)[:, None], self.bags(ids)], 1)
        inter = torch.bmm(feats, feats.transpose(1, 2))[:, self.tri[0], self.tri[1]]
        crossed = self.cross(feats.flatten(1))
        return self.top(torch.cat([crossed, inter], 1)).squeeze(1)


class ClickStream:
    def __init__(self, sizes, dense, batch, device, seed):
        self.sizes, self.dense, self.batch, self.device = sizes, dense, batch, device
        self.gen = torch.Generator(device).manual_seed(seed)

    def _ids(self, n, width):
        u = torch.rand(self.batch, width, device=self.device, generator=self.gen)
        return (n * u.pow(3.0)).long().clamp_(max=n - 1)

    def __next__(self):
        dense = torch.randn(self.batch, self.dense, device=self.device, generator=self.gen).abs().log1p()
        ids = [self._ids(n, MULTI_HOT.get(i, 1)) for i, n in enumerate(self.sizes)]
        logit = dense[:, 0] - dense[:, 1] + ((ids[0][:, 0] % 7).float() - 3) * 0.4 - 1.5
        click = torch.rand(self.batch, device=self.device, generator=self.gen) < logit.sigmoid()
        return dense, ids, click.float()


def auc(score, label):
    order = score.argsort()
    ranks = torch.empty_like(score)
    ranks[order] = torch.arange(1, len(score) + 1, device=score.device, dtype=score.dtype)
    pos = label.sum()
    return ((ranks[label > 0].sum() - pos * (pos + 1) / 2) / (pos * (len(label) - pos))).item()


class Timer(contextlib.AbstractContextManager):
    def __enter__(self):
        self.t = time.perf_counter()
        return self

    def __exit__(self, *exc):
        self.s = time.perf_counter() - self.t


def validate(model, stream, batches):
    model.eval()
    scores, labels = [], []
    with torch.no_grad():
        for _ in range(batches):
            dense, ids, y = next(stream)
            scores.append(model(dense, ids).double())
            labels.append(y)
    model.train()
    return auc(torch.cat(scores), torch.cat(labels))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--dim", type=int, default=72)
    ap.add_argument("--dense", type=int, default=13)
    ap.add_argument("--batch", type=int, default=24576)
    ap.add_argument("--steps", type=int, default=520)
    ap.add_argument("--eval-every", type=int, default=130)
    ap.add_argument("--eval-batches", type=int, default=20)
    ap.add_argument("--shrink", type=int, default=1, help="divide every table size by this")
    args = ap.parse_args()
    torch.manual_seed(8)
    device = torch.device(args.device)
    sizes = [max(4, n // args.shrink) for n in TABLES]
    model = Ranker(sizes, args.dim, args.dense, device)
    table_params = list(model.bags.parameters())
    dense_params = [p for n, p in model.named_parameters() if not n.startswith("bags.")]
    print(f"{sum(p.numel() for p in table_params) / 1e6:.1f}M sparse, {sum(p.numel() for p in dense_params) / 1e6:.2f}M dense")
    optimizers = [torch.optim.SparseAdam(table_params, lr=2e-3), torch.optim.Adagrad(dense_params, lr=1e-2)]
    train, held = (ClickStream(sizes, args.dense, args.batch, device, s) for s in (1, 2))
    done = 0
    while done < args.steps:
        n = min(args.eval_every, args.steps - done)
        with Timer() as tm:
            total = torch.zeros((), device=device)
            for _ in range(n):
                dense, ids, y = next(train)
                loss = F.binary_cross_entropy_with_logits(model(dense, ids), y)
                for o in optimizers:
                    o.zero_grad()
                loss.backward()
                for o in optimizers:
                    o.step()
                total += loss.detach()
            mean = (total / n).item()
        done += n
        print(f"step {done} logloss {mean:.4f} auc {validate(model, held, args.eval_batches):.4f} samples/s {n * args.batch / tm.s:.0f}", flush=True)


if __name__ == "__main__":
    main()
