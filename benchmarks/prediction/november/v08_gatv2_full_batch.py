# Node classification on a citation-like graph, full batch, GATv2 and SAGE layers of torch_geometric.
import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv, SAGEConv
from torch_geometric.utils import add_self_loops, dropout_edge, to_undirected


def make_graph(nodes, degree, features, classes, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (nodes,), generator=g)
    order = torch.argsort(y)
    src = torch.randint(0, nodes, (nodes * degree // 2,), generator=g)
    near = (src + torch.randint(1, 50, src.shape, generator=g)) % nodes
    far = torch.randint(0, nodes, src.shape, generator=g)
    dst = torch.where(torch.rand(src.shape, generator=g) < 0.7, near, far)
    edge_index = to_undirected(torch.stack([order[src], order[dst]]), num_nodes=nodes)
    centers = torch.randn(classes, features, generator=g)
    x = centers[y] + 2.0 * torch.randn(nodes, features, generator=g)
    split = torch.rand(nodes, generator=g)
    return Data(x=x, y=y, edge_index=edge_index, train_mask=split < 0.5,
                val_mask=(split >= 0.5) & (split < 0.7), test_mask=split >= 0.7)


class Net(nn.Module):
    def __init__(self, fin, hidden, classes, heads, dropout):
        super().__init__()
        self.lin = nn.Linear(fin, hidden)
        self.gat1 = GATv2Conv(hidden, hidden // heads, heads=heads, add_self_loops=False)
        self.sage = SAGEConv(hidden, hidden, aggr="mean")
        self.gat2 = GATv2Conv(hidden, hidden // heads, heads=heads, add_self_loops=False)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(3))
        self.out = nn.Linear(2 * hidden, classes)
        self.dropout = dropout

    def forward(self, x, edge_index):
        h0 = h = F.elu(self.lin(x))
        for conv, norm in zip((self.gat1, self.sage, self.gat2), self.norms):
            z = F.dropout(norm(h), self.dropout, self.training)
            h = h + F.elu(conv(z, edge_index))
        return self.out(torch.cat([h0, h], -1))


def train_step(model, data, opt, edge_drop):
    model.train()
    opt.zero_grad(set_to_none=True)
    edges, _ = dropout_edge(data.edge_index, p=edge_drop)
    edges, _ = add_self_loops(edges, num_nodes=data.num_nodes)
    out = model(data.x, edges)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    return loss.detach()


@torch.no_grad()
def test(model, data):
    model.eval()
    edges, _ = add_self_loops(data.edge_index, num_nodes=data.num_nodes)
    pred = model(data.x, edges).argmax(-1)
    return [(pred[m] == data.y[m]).float().mean().item() for m in (data.train_mask, data.val_mask, data.test_mask)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=71000)
    parser.add_argument("--degree", type=int, default=11)
    parser.add_argument("--features", type=int, default=150)
    parser.add_argument("--hidden", type=int, default=144)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--classes", type=int, default=31)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--edge-drop", type=float, default=0.1)
    args = parser.parse_args()

    torch.manual_seed(88)
    torch.set_num_threads(2)
    device = torch.device("cuda")
    data = make_graph(args.nodes, args.degree, args.features, args.classes, 1)
    print(data)
    data = data.to(device)
    model = Net(args.features, args.hidden, args.classes, args.heads, 0.3).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, mode="max", factor=0.5, patience=2)

    best = 0.0
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "best.pt")
        for epoch in range(1, args.epochs + 1):
            loss = train_step(model, data, opt, args.edge_drop)
            if epoch % 10 == 0 or epoch == args.epochs:
                tr, va, te = test(model, data)
                sched.step(va)
                print(f"epoch {epoch} loss {loss.item():.4f} train {tr:.3f} val {va:.3f} test {te:.3f} "
                      f"lr {opt.param_groups[0]['lr']:.1e}")
                if va >= best:
                    best = va
                    torch.save(model.state_dict(), path)
        model.load_state_dict(torch.load(path, weights_only=True))
    print("best model, test accuracy", round(test(model, data)[2], 4))


if __name__ == "__main__":
    main()
