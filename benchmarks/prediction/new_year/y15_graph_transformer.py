"""Graph transformer (PyTorch Geometric TransformerConv with edge features) for graph-level regression; fp32."""
import argparse
import os
import tempfile

import torch
import torch.nn as nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import TransformerConv, global_add_pool, global_mean_pool


def random_graph(g, low, high, degree):
    """Points in the unit square joined to their nearest neighbours; the target is a smooth function of them."""
    n = int(torch.randint(low, high + 1, (1,), generator=g))
    pos = torch.rand(n, 2, generator=g)
    kind = torch.randint(0, 28, (n,), generator=g)
    dist = torch.cdist(pos, pos)
    dist.fill_diagonal_(9.0)
    near = dist.topk(degree, largest=False)
    src = torch.arange(n).repeat_interleave(degree)
    dst = near.indices.reshape(-1)
    length = near.values.reshape(-1)
    edge = torch.stack([length, (pos[dst] - pos[src])[:, 0], (pos[dst] - pos[src])[:, 1], torch.exp(-8 * length)], 1)
    y = (torch.sin(3 * pos.sum(1)) * (kind.float() / 28)).mean() * 10 + length.mean() * 5
    return Data(x=kind, pos=pos, edge_index=torch.stack([src, dst]), edge_attr=edge, y=y.reshape(1))


class Layer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.attn = TransformerConv(dim, dim // heads, heads=heads, edge_dim=dim, dropout=dropout, beta=True)
        self.norm1, self.norm2 = nn.BatchNorm1d(dim), nn.BatchNorm1d(dim)
        self.edge_norm = nn.LayerNorm(dim)
        self.edge_mlp = nn.Sequential(nn.Linear(3 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))

    def forward(self, x, edge_index, e):
        x = self.norm1(x + self.attn(x, edge_index, e))
        x = self.norm2(x + self.ffn(x))
        src, dst = edge_index
        e = self.edge_norm(e + self.edge_mlp(torch.cat([x[src], x[dst], e], 1)))
        return x, e


class GraphTransformer(nn.Module):
    def __init__(self, dim, heads, layers, dropout=0.1):
        super().__init__()
        self.kind = nn.Embedding(28, dim)
        self.place = nn.Linear(2, dim)
        self.edge_in = nn.Linear(4, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, dropout) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, data):
        x = self.kind(data.x) + self.place(data.pos)
        e = self.edge_in(data.edge_attr)
        for layer in self.layers:
            x, e = layer(x, data.edge_index, e)
        pooled = torch.cat([global_mean_pool(x, data.batch), global_add_pool(x, data.batch) / 50], 1)
        return self.head(pooled)[:, 0]


@torch.no_grad()
def mae(model, loader):
    model.eval()
    error, n = 0.0, 0
    for data in loader:
        data = data.to("cuda")
        error += (model(data) - data.y).abs().sum().item()
        n += data.num_graphs
    model.train()
    return error / n


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--graphs", type=int, default=1000)
    p.add_argument("--nodes", type=int, nargs=2, default=[40, 130])
    p.add_argument("--degree", type=int, default=10)
    p.add_argument("--dim", type=int, default=192)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--batch", type=int, default=56)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--lr", type=float, default=8e-4)
    args = p.parse_args()
    torch.manual_seed(4)
    torch.backends.cuda.matmul.allow_tf32 = False
    g = torch.Generator().manual_seed(4)
    graphs = [random_graph(g, *args.nodes, args.degree) for _ in range(args.graphs)]
    cut = args.graphs * 5 // 6
    train = DataLoader(graphs[:cut], batch_size=args.batch, shuffle=True)
    valid = DataLoader(graphs[cut:], batch_size=args.batch + 16)

    model = GraphTransformer(args.dim, args.heads, args.layers).to("cuda")
    print(f"{sum(t.numel() for t in model.parameters()) / 1e6:.2f}M parameters")
    opt = torch.optim.RAdam(model.parameters(), lr=args.lr, weight_decay=1e-4, decoupled_weight_decay=True)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1)
    best = float("inf")
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(args.epochs):
            total = 0.0
            for step, data in enumerate(train):
                data = data.to("cuda")
                loss = nn.functional.smooth_l1_loss(model(data), data.y)
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                opt.step()
                total += loss.item()
                if step % 5 == 0:
                    print(f"epoch {epoch} step {step} nodes {data.num_nodes} edges {data.num_edges} loss {loss.item():.4f}")
            score = mae(model, valid)
            sched.step(score)
            print(f"epoch {epoch} train {total / len(train):.4f} valid mae {score:.4f}")
            if score < best:
                best = score
                torch.save(model.state_dict(), os.path.join(folder, "best.pt"))
        model.load_state_dict(torch.load(os.path.join(folder, "best.pt"), weights_only=True))
        print(f"best mae {mae(model, valid):.4f}")


if __name__ == "__main__":
    main()
