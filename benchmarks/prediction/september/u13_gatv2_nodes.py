"""Full-batch node classification with GATv2 on a stochastic block graph, with edge dropout."""
import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv
from torch_geometric.utils import add_self_loops, dropout_edge, to_undirected


def block_graph(nodes, avg_degree, classes, features, homophily, seed):
    """Each edge joins two nodes of one class with probability `homophily`, else any two nodes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (nodes,), generator=g)
    order = y.argsort()
    start = torch.zeros(classes + 1, dtype=torch.long)
    start[1:] = torch.bincount(y, minlength=classes).cumsum(0)
    m = nodes * avg_degree // 2
    src = torch.randint(nodes, (m,), generator=g)
    size = (start[1:] - start[:-1])[y[src]]
    same = order[start[y[src]] + (torch.rand(m, generator=g) * size).long()]
    other = torch.randint(nodes, (m,), generator=g)
    dst = torch.where(torch.rand(m, generator=g) < homophily, same, other)
    edge_index = to_undirected(torch.stack([src, dst]), num_nodes=nodes)
    centers = torch.randn(classes, features, generator=g)
    x = 0.3 * centers[y] + torch.randn(nodes, features, generator=g)
    split = torch.rand(nodes, generator=g)
    return Data(x=x, y=y, edge_index=edge_index, train_mask=split < 0.5, val_mask=(split >= 0.5) & (split < 0.7),
                test_mask=split >= 0.7)


class Net(nn.Module):
    def __init__(self, cin, hidden, heads, classes, layers, dropout):
        super().__init__()
        width = hidden * heads
        self.lin_in = nn.Linear(cin, width)
        self.convs = nn.ModuleList(
            GATv2Conv(width, hidden, heads=heads, dropout=dropout, add_self_loops=False) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.lin_out = nn.Linear(width, classes)
        self.dropout = dropout

    def forward(self, x, edge_index):
        x = self.lin_in(x)
        for conv, norm in zip(self.convs, self.norms):
            h = F.elu(conv(norm(x), edge_index))
            x = x + F.dropout(h, self.dropout, self.training)
        return self.lin_out(x)


def train_step(model, data, optimizer, p_edge):
    model.train()
    edges, _ = dropout_edge(data.edge_index, p=p_edge)
    edges, _ = add_self_loops(edges, num_nodes=data.num_nodes)
    optimizer.zero_grad()
    out = model(data.x, edges)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test(model, data):
    model.eval()
    edges, _ = add_self_loops(data.edge_index, num_nodes=data.num_nodes)
    pred = model(data.x, edges).argmax(-1)
    return [(pred[m] == data.y[m]).float().mean().item() for m in (data.train_mask, data.val_mask, data.test_mask)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--nodes", type=int, default=52000)
    p.add_argument("--degree", type=int, default=11)
    p.add_argument("--features", type=int, default=165)
    p.add_argument("--classes", type=int, default=23)
    p.add_argument("--hidden", type=int, default=44)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--epochs", type=int, default=120)
    p.add_argument("--edge-drop", type=float, default=0.1)
    p.add_argument("--lr", type=float, default=3e-3)
    args = p.parse_args()
    torch.manual_seed(61)

    data = block_graph(args.nodes, args.degree, args.classes, args.features, 0.7, 61).to("cuda")
    print(data)
    model = Net(args.features, args.hidden, args.heads, args.classes, args.layers, 0.3).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    with tempfile.TemporaryDirectory() as d:
        path, best = os.path.join(d, "best.pt"), 0.0
        for epoch in range(1, args.epochs + 1):
            loss = train_step(model, data, optimizer, args.edge_drop)
            scheduler.step()
            if epoch % 20 == 0 or epoch == args.epochs:
                tr, va, te = test(model, data)
                print(f"epoch {epoch:3d} loss {loss:.4f} train {tr:.4f} val {va:.4f} test {te:.4f}", flush=True)
                if va >= best:
                    best = va
                    torch.save(model.state_dict(), path)
        model.load_state_dict(torch.load(path, weights_only=True))
        print("best model: test accuracy %.4f" % test(model, data)[2])


if __name__ == "__main__":
    main()
