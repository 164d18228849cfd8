"""GAT-style node classification on a citation-like graph.

Own message passing (index_add / scatter_reduce), own neighbour sampler on the GPU:
the inner hop takes at most `fanout` neighbours, the hop next to the seeds takes all.
Seeds are read shard by shard, in the order in which the crawler stored the papers.
"""
import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F


def build_graph(n, avg_degree, n_hubs, hub_degree, dev):
    """Random graph in CSR form (incoming edges); one block of ids are much cited surveys."""
    deg = torch.poisson(torch.full((n,), float(avg_degree), device=dev)).long().clamp_(min=1)
    first = n // 2
    deg[first:first + n_hubs] = torch.randint(hub_degree // 2, hub_degree, (n_hubs,), device=dev)
    ptr = torch.zeros(n + 1, dtype=torch.long, device=dev)
    ptr[1:] = deg.cumsum(0)
    col = torch.randint(0, n, (int(ptr[-1]),), device=dev)
    return ptr, col


def neighbours(ptr, col, nodes, fanout=None):
    """Edges (src id, position of dst in `nodes`)."""
    start, deg = ptr[nodes], ptr[nodes + 1] - ptr[nodes]
    take = deg if fanout is None else deg.clamp(max=fanout)
    dst = torch.repeat_interleave(torch.arange(nodes.numel(), device=nodes.device), take)
    offset = torch.arange(dst.numel(), device=nodes.device) - (take.cumsum(0) - take)[dst]
    if fanout is not None:          # random start, then consecutive
        shift = (torch.rand(nodes.numel(), device=nodes.device) * deg).long()
        offset = (offset + shift[dst]) % deg[dst]
    return col[start[dst] + offset], dst


def sample(ptr, col, seeds, fanout):
    blocks, nodes = [], seeds
    for f in (None, fanout):
        src, dst = neighbours(ptr, col, nodes, f)
        uniq, inv = torch.unique(torch.cat([nodes, src]), return_inverse=True)
        blocks.append((inv[nodes.numel():], dst, inv[:nodes.numel()]))
        nodes = uniq
    return nodes, blocks[::-1]


class GATConv(nn.Module):
    def __init__(self, i, o, heads):
        super().__init__()
        self.h, self.o = heads, o
        self.lin = nn.Linear(i, heads * o, bias=False)
        self.att_src = nn.Parameter(torch.randn(heads, o) * 0.1)
        self.att_dst = nn.Parameter(torch.randn(heads, o) * 0.1)
        self.self_lin = nn.Linear(i, heads * o)
        self.norm = nn.LayerNorm(heads * o)

    def forward(self, x, src, dst, own):
        n = own.numel()
        z = self.lin(x).view(-1, self.h, self.o)
        score = F.leaky_relu((z * self.att_src).sum(-1)[src] + (z[own] * self.att_dst).sum(-1)[dst], 0.2)
        top = torch.full((n, self.h), float("-inf"), device=x.device)
        top = top.scatter_reduce(0, dst[:, None].expand_as(score), score.detach(), "amax")
        e = (score - top[dst]).exp()
        norm = torch.zeros(n, self.h, device=x.device).index_add(0, dst, e)
        msg = z[src] * (e / (norm[dst] + 1e-9)).unsqueeze(-1)         # [E, heads, o]
        out = torch.zeros(n, self.h, self.o, device=x.device).index_add(0, dst, msg)
        return self.norm(out.flatten(1) + self.self_lin(x[own]))


class Net(nn.Module):
    def __init__(self, i, hid, heads, classes):
        super().__init__()
        self.c1, self.c2 = GATConv(i, hid, heads), GATConv(hid * heads, hid, heads)
        self.out = nn.Linear(hid * heads, classes)

    def forward(self, x, blocks):
        x = F.dropout(F.elu(self.c1(x, *blocks[0])), 0.3, self.training)
        x = F.dropout(F.elu(self.c2(x, *blocks[1])), 0.3, self.training)
        return self.out(x)


def parse():
    tiny = os.environ.get("TINY") == "1"
    p = argparse.ArgumentParser()
    p.add_argument("--nodes", type=int, default=2000 if tiny else 200_000)
    p.add_argument("--degree", type=int, default=5 if tiny else 14)
    p.add_argument("--hubs", type=int, default=20 if tiny else 60)
    p.add_argument("--hub-degree", type=int, default=60 if tiny else 1400)
    p.add_argument("--batch", type=int, default=32 if tiny else 1024)
    p.add_argument("--steps", type=int, default=9 if tiny else 25)
    p.add_argument("--fanout", type=int, default=4 if tiny else 10)
    p.add_argument("--hidden", type=int, default=8 if tiny else 64)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--feats", type=int, default=16 if tiny else 128)
    a = p.parse_args()
    a.batch = max(1, round(a.batch * float(os.environ.get("SCALE", "1"))))
    return a


def main():
    a = parse()
    torch.manual_seed(5)
    dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = 40
    ptr, col = build_graph(a.nodes, a.degree, a.hubs, a.hub_degree, dev)
    y = torch.randint(0, classes, (a.nodes,), device=dev)
    centre = torch.randn(classes, a.feats, device=dev)
    feats = torch.randn(a.nodes, a.feats, device=dev) + 0.25 * centre[y]
    print(f"{a.nodes} nodes, {col.numel()} edges")

    net = Net(a.feats, a.hidden, a.heads, classes).to(dev)
    opt = torch.optim.Adagrad(net.parameters(), lr=0.02)
    net.train()
    # training ids: evenly spaced shards, each a run of consecutive papers
    shard_starts = torch.linspace(0, a.nodes - a.batch - 1, a.steps).long()
    mid = a.steps // 2
    shard_starts[mid] = a.nodes // 2 - a.batch // 4
    for step, s in enumerate(shard_starts.tolist()):
        seeds = torch.arange(s, s + a.batch, device=dev) % a.nodes
        nodes, blocks = sample(ptr, col, seeds, a.fanout)
        logits = net(feats[nodes], blocks)
        loss = F.cross_entropy(logits, y[seeds])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0 or step == mid:
            acc = (logits.argmax(1) == y[seeds]).float().mean().item()
            edges = sum(b[0].numel() for b in blocks)
            print(f"step {step:3d} loss {loss.item():.4f} acc {acc:.3f} | {nodes.numel()} nodes {edges} edges")

    net.eval()
    hit = tot = 0
    with torch.no_grad():
        for s in range(0, 8 * a.batch, a.batch):
            seeds = torch.randint(0, a.nodes, (a.batch,), device=dev)
            nodes, blocks = sample(ptr, col, seeds, a.fanout)
            hit += (net(feats[nodes], blocks).argmax(1) == y[seeds]).sum().item()
            tot += a.batch
    print(f"test accuracy {hit / tot:.3f}")
    print("done")


if __name__ == "__main__":
    main()
