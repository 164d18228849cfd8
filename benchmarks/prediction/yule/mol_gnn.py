"""Property regression on batches of random 3D molecules: E(n)-equivariant layers + GATv2, virtual node, EMA eval."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATv2Conv, GraphNorm, MessagePassing, global_add_pool, global_mean_pool
from torch_geometric.utils import to_dense_batch


def random_molecule(lo, hi, cutoff):
    n = int(torch.randint(lo, hi, (1,)))
    pos = torch.randn(n, 3) * n ** (1 / 3)
    dist = torch.cdist(pos, pos)
    edge = (dist < cutoff).fill_diagonal_(False).nonzero().t().contiguous()
    z = torch.randint(0, 20, (n,))
    y = (z.float().mean() / 10 - dist.mean() / n ** (1 / 3)).view(1)
    return Data(z=z, pos=pos, edge_index=edge, y=y)


class EGNNLayer(MessagePassing):
    def __init__(self, d, rbf):
        super().__init__(aggr="add")
        self.edge = nn.Sequential(nn.Linear(2 * d + rbf, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU())
        self.coord = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1, bias=False))
        self.node = nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, d))
        self.register_buffer("mu", torch.linspace(0, 6, rbf))

    def forward(self, h, pos, edge_index):
        rel = pos[edge_index[1]] - pos[edge_index[0]]
        dist = rel.norm(dim=-1, keepdim=True)
        m = self.propagate(edge_index, h=h, rbf=torch.exp(-4 * (dist - self.mu) ** 2), unit=rel / (dist + 1))
        msg, shift = m[:, :-3], m[:, -3:]
        return h + self.node(torch.cat([h, msg], -1)), pos + shift / 10

    def message(self, h_i, h_j, rbf, unit):
        m = self.edge(torch.cat([h_i, h_j, rbf], -1))
        return torch.cat([m, unit * self.coord(m).tanh()], -1)


class Net(nn.Module):
    def __init__(self, d, layers, heads=4):
        super().__init__()
        self.emb = nn.Embedding(20, d)
        self.egnn = nn.ModuleList(EGNNLayer(d, 32) for _ in range(layers))
        self.gat = nn.ModuleList(GATv2Conv(d, d // heads, heads=heads, edge_dim=1) for _ in range(layers // 2))
        self.norm = nn.ModuleList(GraphNorm(d) for _ in range(layers // 2))
        self.virtual = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d)) for _ in range(layers // 2))
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.out = nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, data):
        h, pos, ei, batch = self.emb(data.z), data.pos, data.edge_index, data.batch
        B = data.num_graphs
        for i, layer in enumerate(self.egnn):
            h, pos = layer(h, pos, ei)
            if i % 2 == 1:
                j = i // 2
                length = (pos[ei[0]] - pos[ei[1]]).norm(dim=-1, keepdim=True)
                h = h + F.silu(self.norm[j](self.gat[j](h, ei, edge_attr=length), batch, B))
                h = h + self.virtual[j](global_mean_pool(h, batch, B))[batch]
        dense, mask = to_dense_batch(h, batch, batch_size=B)
        att, _ = self.attn(dense, dense, dense, key_padding_mask=~mask, need_weights=False)
        h = h + att[mask]
        return self.out(torch.cat([global_add_pool(h, batch, B) / 50, global_mean_pool(h, batch, B)], -1)).squeeze(-1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    p.add_argument("--graphs", type=int, default=640)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--dim", type=int, default=256)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--max-nodes", type=int, default=90)
    p.add_argument("--epochs", type=int, default=3)
    a = p.parse_args()
    torch.manual_seed(17)
    mols = [random_molecule(a.max_nodes // 5, a.max_nodes, 5.0) for _ in range(a.graphs)]
    cut = int(0.8 * len(mols))
    train = DataLoader(mols[:cut], batch_size=a.batch, shuffle=True, drop_last=True)
    dev = DataLoader(mols[cut:], batch_size=a.batch)
    net = Net(a.dim, a.layers).to(a.device)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-4, amsgrad=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.epochs * len(train))
    best, patience = float("inf"), 0
    for epoch in range(a.epochs):
        net.train()
        for batch in train:
            batch = batch.to(a.device)
            loss = F.huber_loss(net(batch), batch.y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 2.0)
            opt.step()
            sched.step()
            ema.update_parameters(net)
            print(f"epoch {epoch} nodes {batch.num_nodes} edges {batch.num_edges} loss {loss.item():.4f}")
        ema.eval()
        with torch.no_grad():
            err = torch.cat([(ema(b := g.to(a.device)) - b.y).abs() for g in dev]).mean().item()
        print(f"epoch {epoch} dev MAE {err:.4f}")
        best, patience = (err, 0) if err < best else (best, patience + 1)
        if patience > 1:
            break


if __name__ == "__main__":
    main()
