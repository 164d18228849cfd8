"""Unsupervised analysis of single-cell expression profiles on the GPU, no autograd.

normalise -> PCA (covariance + eigh) -> k-means++ / Lloyd -> exact kNN graph in row blocks ->
label smoothing over the graph -> silhouette on a subsample.
"""
import os
import time

import torch

TINY = os.environ.get("TINY") == "1"
torch.set_grad_enabled(False)


def simulate(n, genes, types, device):
    centre = torch.randn(types, genes, device=device) * 0.8
    label = torch.randint(0, types, (n,), device=device)
    rate = torch.exp(0.4 * centre)[label]
    depth = torch.empty(n, 1, device=device).uniform_(0.5, 2.0)
    return torch.poisson(rate * depth), label


def normalise(counts, target=1e4):
    x = counts / counts.sum(1, keepdim=True) * target
    x = torch.log1p(x)
    return (x - x.mean(0)) / (x.std(0) + 1e-6)


def pca(x, k):
    cov = x.T @ x / (x.shape[0] - 1)
    val, vec = torch.linalg.eigh(cov.double())
    return x @ vec[:, -k:].flip(1).to(x.dtype), (val[-k:].sum() / val.sum()).item()


def kmeans(x, k, iters):
    # k-means++ seeding
    n = x.shape[0]
    centre = x[torch.randint(n, (1,), device=x.device)]
    best = torch.cdist(x, centre).squeeze(1) ** 2
    while len(centre) < k:
        new = x[torch.multinomial(best, 1)]
        centre = torch.cat([centre, new])
        best = torch.minimum(best, torch.cdist(x, new).squeeze(1) ** 2)
    for i in range(iters):
        dist = torch.cdist(x, centre)                       # [n, k]
        val, lab = dist.min(1)
        size = torch.bincount(lab, minlength=k).clamp(min=1)
        centre = torch.zeros_like(centre).index_add_(0, lab, x) / size[:, None]
        if i % 4 == 0:
            print(f"  lloyd {i:2d} inertia {val.pow(2).mean().item():.4f}")
    return lab, centre


def knn(x, k, block):
    sq = x.pow(2).sum(1)
    index = []
    for i in range(0, x.shape[0], block):
        q = x[i:i + block]
        d = sq[i:i + block, None] - 2 * (q @ x.T) + sq[None]
        d[torch.arange(len(q), device=x.device), torch.arange(i, i + len(q), device=x.device)] = float("inf")
        index.append(d.topk(k, largest=False).indices)
    return torch.cat(index)


def smooth(lab, nb, k, rounds=3):
    """Majority vote among the neighbours."""
    for _ in range(rounds):
        votes = torch.zeros(len(lab), k, device=lab.device)
        votes.scatter_add_(1, lab[nb], torch.ones_like(nb, dtype=votes.dtype))
        lab = votes.argmax(1)
    return lab


def silhouette(x, lab, k, m):
    pick = torch.randperm(x.shape[0], device=x.device)[:m]
    x, lab = x[pick], lab[pick]
    one = torch.nn.functional.one_hot(lab, k).to(x.dtype)
    size = one.sum(0)
    mean = torch.cdist(x, x) @ one / size.clamp(min=1)
    own = mean.gather(1, lab[:, None]).squeeze(1)
    mean.scatter_(1, lab[:, None], float("inf"))
    mean[:, size == 0] = float("inf")
    other = mean.min(1).values
    return ((other - own) / torch.maximum(own, other)).mean().item()


def purity(lab, truth, k, types):
    table = torch.zeros(k * types, device=lab.device).index_add_(0, lab * types + truth, torch.ones(len(lab), device=lab.device))
    return (table.view(k, types).max(1).values.sum() / len(lab)).item()


def main():
    torch.manual_seed(99)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    n = max(1, round((600 if TINY else 150_000) * float(os.environ.get("SCALE", "1"))))
    genes, types, k, neighbours = (40, 5, 8, 5) if TINY else (1024, 25, 128, 20)
    block = 128 if TINY else 2048
    t0 = time.time()
    counts, truth = simulate(n, genes, types, device)
    x = normalise(counts)
    z, explained = pca(x, 10 if TINY else 50)
    print(f"{n} cells, {explained:.2%} of the variance kept, {time.time() - t0:.1f} s")
    lab, centre = kmeans(z, k, 12)
    print(f"purity after k-means {purity(lab, truth, k, types):.3f}")
    nb = knn(z, neighbours, block)
    lab = smooth(lab, nb, k)
    print(f"purity after smoothing {purity(lab, truth, k, types):.3f}, {len(nb) * neighbours} graph edges")
    print(f"silhouette {silhouette(z, lab, k, 200 if TINY else 12_000):.3f}")
    print(f"total {time.time() - t0:.1f} s, library size {counts.sum(1).mean().item():.0f}")
    print("done")


if __name__ == "__main__":
    main()
