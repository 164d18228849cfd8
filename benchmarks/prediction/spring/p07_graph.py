"""Full-graph node classification with edge features: attention message passing via index_add / scatter."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"


def make_graph(n, e, feat, edge_feat, classes, seed):
    """Homophilous random graph with a heavy tail of in-degrees."""
    g = torch.Generator(device=device).manual_seed(seed)
    labels = torch.randint(classes, (n,), device=device, generator=g)
    order = labels.argsort()
    dst = (torch.rand(e, device=device, generator=g) ** 1.5 * n).long().clamp_(max=n - 1)
    local = torch.rand(e, device=device, generator=g) < 0.6
    rank = torch.empty_like(order)
    rank[order] = torch.arange(n, device=device)
    jitter = torch.randint(-50, 51, (e,), device=device, generator=g)
    near = order[(rank[dst] + jitter).clamp_(0, n - 1)]
    far = torch.randint(n, (e,), device=device, generator=g)
    src = torch.where(local, near, far)
    keep = src != dst
    src, dst = src[keep], dst[keep]
    centers = torch.randn(classes, feat, device=device, generator=g)
    x = centers[labels] * 0.3 + torch.randn(n, feat, device=device, generator=g)
    edge_attr = torch.randn(src.numel(), edge_feat, device=device, generator=g)
    return x, src, dst, edge_attr, labels


def scatter_softmax(score, index, n):
    """Softmax of per-edge scores over the edges that share a destination."""
    top = torch.full((n, score.shape[1]), float("-inf"), device=score.device)
    top = top.scatter_reduce(0, index[:, None].expand_as(score), score.detach(), "amax")
    ex = torch.exp(score - top[index])
    den = torch.zeros(n, score.shape[1], device=score.device).index_add(0, index, ex)
    return ex / (den[index] + 1e-9)


class EdgeAttention(nn.Module):
    def __init__(self, dim, edge_feat, heads, dropout):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.value = nn.Linear(dim, dim, bias=False)
        self.query = nn.Linear(dim, dim, bias=False)
        self.edge = nn.Sequential(nn.Linear(edge_feat, dim), nn.SiLU())
        self.score = nn.Parameter(torch.randn(heads, self.hd) * 0.1)
        self.out = nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, src, dst, edge_attr):
        n = x.shape[0]
        v = self.value(x).index_select(0, src)
        q = self.query(x).index_select(0, dst)
        e = self.edge(edge_attr)
        mixed = F.leaky_relu(v + q, 0.2) * e
        score = (mixed.view(-1, self.heads, self.hd) * self.score).sum(-1)
        alpha = self.dropout(scatter_softmax(score, dst, n))
        message = (v.view(-1, self.heads, self.hd) * alpha.unsqueeze(-1)).flatten(1)
        agg = torch.zeros_like(x).index_add(0, dst, message)
        return x + F.relu(self.norm(self.out(agg)))


class GraphNet(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.encode = nn.Linear(a.feat, a.dim)
        self.layers = nn.ModuleList([EdgeAttention(a.dim, a.edge_feat, a.heads, 0.1) for _ in range(a.layers)])
        self.head = nn.Sequential(nn.Linear(a.dim, a.dim), nn.ReLU(), nn.Dropout(0.3), nn.Linear(a.dim, a.classes))

    def forward(self, x, src, dst, edge_attr):
        h = F.relu(self.encode(x))
        for layer in self.layers:
            h = layer(h, src, dst, edge_attr)
        return self.head(h)


def drop_edges(src, dst, edge_attr, p):
    keep = torch.rand(src.numel(), device=src.device) >= p
    return src[keep], dst[keep], edge_attr[keep]


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(nodes=300_000, edges=1_600_000, feat=100, edge_feat=16, dim=128, heads=4,
                              layers=3, classes=47, epochs=60, eval_every=15).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    a = p.parse_args()

    torch.manual_seed(0)
    x, src, dst, edge_attr, labels = make_graph(a.nodes, a.edges, a.feat, a.edge_feat, a.classes, 17)
    split = torch.rand(a.nodes, device=device)
    train_mask, val_mask = split < 0.5, (split >= 0.5) & (split < 0.75)
    degree = torch.zeros(a.nodes, device=device).index_add_(0, dst, torch.ones(dst.numel(), device=device))
    print(f"{src.numel()} edges, max in-degree {int(degree.max())}")

    model = GraphNet(a).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, momentum=0.5)
    start, best, kept = time.time(), 0.0, []
    for epoch in range(a.epochs):
        model.train()
        optimizer.zero_grad()
        es, ed, ea = drop_edges(src, dst, edge_attr, 0.15)
        out = model(x, es, ed, ea)
        loss = F.cross_entropy(out[train_mask], labels[train_mask])
        loss.backward()
        optimizer.step()
        if (epoch + 1) % a.eval_every == 0:
            model.eval()
            # no no_grad here: the graph of the evaluation pass lives until `out` is overwritten
            out = model(x, src, dst, edge_attr)
            acc = (out[val_mask].argmax(1) == labels[val_mask]).float().mean().item()
            kept.append(out.detach().softmax(-1))
            best = max(best, acc)
            print(f"epoch {epoch} loss {loss.item():.4f} val {acc:.4f} {time.time() - start:.1f}s")
    ensemble = torch.stack(kept).mean(0).argmax(1)
    test = ~(train_mask | val_mask)
    print(f"best val {best:.4f} ensemble test {(ensemble[test] == labels[test]).float().mean().item():.4f} "
          f"{time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
