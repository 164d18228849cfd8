"""Node classification with edge-softmax attention written by hand, sparse propagation and neighbour sampling at the end."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

def make_graph(n, e, feats, classes, device):
    # skewed in-degrees: squares of uniform numbers
    dst = (torch.rand(e, device=device) ** 2 * n).long().clamp_(max=n - 1)
    src = torch.randint(0, n, (e,), device=device)
    dst, order = dst.sort()
    y = torch.randint(0, classes, (n,), device=device)
    centers = torch.randn(classes, feats, device=device)
    x = centers[y] + 2.0 * torch.randn(n, feats, device=device)
    return src[order], dst, x, y

def edge_softmax(score, dst, n):
    idx = dst[:, None].expand_as(score)
    top = torch.full((n, score.size(1)), float("-inf"), device=score.device, dtype=score.dtype)
    top = top.scatter_reduce(0, idx, score.detach(), "amax", include_self=True)
    ex = torch.exp(score - top[dst])
    den = torch.zeros(n, score.size(1), device=score.device, dtype=score.dtype).index_add(0, dst, ex)
    return ex / (den[dst] + 1e-9)

class GATv2Layer(nn.Module):
    def __init__(self, i, o, heads, edge_dim):
        super().__init__()
        self.h, self.o = heads, o // heads
        self.left, self.right = nn.Linear(i, o), nn.Linear(i, o)
        self.edge = nn.Linear(edge_dim, o, bias=False)
        self.att = nn.Parameter(torch.randn(heads, self.o) * 0.1)
        self.skip = nn.Linear(i, o)
        self.norm = nn.LayerNorm(o)

    def forward(self, x, src, dst, ea):
        l, r = self.left(x), self.right(x)
        m = l[src]
        z = F.leaky_relu(m + r[dst] + self.edge(ea), 0.2).view(-1, self.h, self.o)
        alpha = edge_softmax((z * self.att).sum(-1), dst, x.size(0))
        alpha = F.dropout(alpha, 0.1, self.training)
        msg = (m.view(-1, self.h, self.o) * alpha[..., None]).flatten(1)
        out = torch.zeros_like(l).index_add_(0, dst, msg)
        return F.elu(self.norm(out + self.skip(x)))

class Net(nn.Module):
    def __init__(self, feats, hidden, classes, heads, layers, edge_dim):
        super().__init__()
        dims = [feats] + [hidden] * layers
        self.layers = nn.ModuleList(GATv2Layer(a, b, heads, edge_dim) for a, b in zip(dims, dims[1:]))
        self.head = nn.Linear(hidden, classes)

    def forward(self, x, src, dst, ea):
        for layer in self.layers:
            x = layer(x, src, dst, ea)
        return self.head(x)

def sample_neighbours(rowptr, col, seeds, fanout):
    """At most `fanout` random in-neighbours per seed, as ragged lists flattened with repeat_interleave."""
    deg = rowptr[seeds + 1] - rowptr[seeds]
    take = deg.clamp(max=fanout)
    owner = torch.repeat_interleave(torch.arange(seeds.numel(), device=seeds.device), take)
    off = (torch.rand(owner.numel(), device=seeds.device) * deg[owner]).long()
    return col[rowptr[seeds][owner] + off], owner

def smooth(adj, logits, rounds=5, alpha=0.8):
    base = logits.softmax(-1)
    cur = base
    for _ in range(rounds):
        cur = alpha * torch.sparse.mm(adj, cur) + (1 - alpha) * base
    return cur

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--nodes", type=int, default=120_000)
    p.add_argument("--edges", type=int, default=1_300_000)
    p.add_argument("--feats", type=int, default=200)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--classes", type=int, default=40)
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    torch.manual_seed(7)
    src, dst, x, y = make_graph(a.nodes, a.edges, a.feats, a.classes, a.device)
    ea = torch.randn(a.edges, 8, device=a.device)
    perm = torch.randperm(a.nodes, device=a.device)
    train, val = perm[: a.nodes // 2], perm[a.nodes // 2:]
    rowptr = torch.zeros(a.nodes + 1, dtype=torch.long, device=a.device)
    rowptr[1:] = torch.bincount(dst, minlength=a.nodes).cumsum(0)
    inv = 1.0 / (rowptr[1:] - rowptr[:-1]).clamp(min=1).float()
    adj = torch.sparse_csr_tensor(rowptr, src, inv[dst], size=(a.nodes, a.nodes))
    net = Net(a.feats, a.hidden, a.classes, a.heads, a.layers, 8).to(a.device)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=5e-4)
    for epoch in range(a.epochs):
        net.train()
        keep = torch.rand(a.edges, device=a.device) > 0.15   # DropEdge
        logits = net(x, src[keep], dst[keep], ea[keep])
        loss = F.cross_entropy(logits[train], y[train], label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if epoch % 2 == 1:
            net.eval()
            with torch.inference_mode():
                out = smooth(adj, net(x, src, dst, ea))
                acc = (out[val].argmax(1) == y[val]).float().mean()
            print(f"epoch {epoch} loss {loss.item():.4f} val acc {acc.item():.4f}")
        else:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    seeds = val[: min(4096, val.numel())]
    nbr, owner = sample_neighbours(rowptr, src, seeds, 10)
    mean = torch.zeros(seeds.numel(), a.feats, device=a.device).index_reduce_(0, owner, x[nbr], "mean", include_self=False)
    print("sampled edges", nbr.numel(), "mean feature norm", mean.norm(dim=1).mean().item())

if __name__ == "__main__":
    main()
