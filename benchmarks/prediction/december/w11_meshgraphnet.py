"""Learned mesh simulator in the style of MeshGraphNets (PyTorch Geometric), batches of meshes of different sizes, fp32.

Encode, process, decode; noise on the input state; normalisers fitted on the first batches; roll-outs as evaluation.
"""
import argparse
import os
import tempfile
import time

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MessagePassing


def grid_mesh(rows, cols, seed):
    """A jittered triangulated sheet with a diffusing and drifting field on it."""
    g = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    pos = torch.stack([x, y], -1).float().view(-1, 2) + 0.25 * torch.rand(rows * cols, 2, generator=g)
    ids = torch.arange(rows * cols).view(rows, cols)
    pairs = [(ids[:, :-1], ids[:, 1:]), (ids[:-1], ids[1:]), (ids[:-1, :-1], ids[1:, 1:])]
    src = torch.cat([a.flatten() for a, _ in pairs])
    dst = torch.cat([b.flatten() for _, b in pairs])
    edge = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    rel = pos[edge[0]] - pos[edge[1]]
    kind = ((x == 0) | (x == cols - 1) | (y == 0) | (y == rows - 1)).flatten().long()
    field = torch.exp(-((pos - pos[int(torch.randint(0, len(pos), (1,), generator=g))]) ** 2).sum(-1) / 60)
    state = torch.stack([field, torch.sin(pos[:, 0] / 9), torch.cos(pos[:, 1] / 7)], -1)
    target = 0.1 * torch.stack([-field, state[:, 2], -state[:, 1]], -1)
    return Data(x=state, y=target, kind=kind, edge_index=edge, edge_attr=torch.cat([rel, rel.norm(dim=-1, keepdim=True)], -1))


def mlp(cin, hidden, cout, norm=True):
    layers = [nn.Linear(cin, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, cout)]
    return nn.Sequential(*layers, nn.LayerNorm(cout)) if norm else nn.Sequential(*layers)


class Normaliser(nn.Module):
    def __init__(self, dim, max_updates):
        super().__init__()
        self.max_updates = max_updates
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("total", torch.zeros(dim))
        self.register_buffer("square", torch.zeros(dim))
        self.updates = 0

    def forward(self, v):
        if self.training and self.updates < self.max_updates:
            self.updates += 1
            self.count += len(v)
            self.total += v.detach().sum(0)
            self.square += v.detach().square().sum(0)
        mean = self.total / self.count.clamp(min=1)
        return (v - mean) / (self.square / self.count.clamp(min=1) - mean ** 2).clamp(min=1e-6).sqrt()


class Processor(MessagePassing):
    def __init__(self, width):
        super().__init__(aggr="sum")
        self.edge_net, self.node_net = mlp(3 * width, width, width), mlp(2 * width, width, width)

    def forward(self, h, edge_index, e):
        e = e + self.edge_updater(edge_index, h=h, e=e)
        agg = self.propagate(edge_index, h=h, e=e)
        return h + self.node_net(torch.cat([h, agg], -1)), e

    def edge_update(self, h_i, h_j, e):
        return self.edge_net(torch.cat([h_i, h_j, e], -1))

    def message(self, e):
        return e


class Simulator(nn.Module):
    def __init__(self, state, width, blocks):
        super().__init__()
        self.node_norm, self.edge_norm = Normaliser(state, 20), Normaliser(3, 20)
        self.kinds = nn.Embedding(2, 8)
        self.enc_node, self.enc_edge = mlp(state + 8, width, width), mlp(3, width, width)
        self.blocks = nn.ModuleList(Processor(width) for _ in range(blocks))
        self.dec = mlp(width, width, state, norm=False)

    def forward(self, x, kind, edge_index, edge_attr):
        h = self.enc_node(torch.cat([self.node_norm(x), self.kinds(kind)], -1))
        e = self.enc_edge(self.edge_norm(edge_attr))
        for block in self.blocks:
            h, e = block(h, edge_index, e)
        return self.dec(h)


@torch.no_grad()
def rollout(model, loader, steps, device):
    model.eval()
    drift = []
    for d in loader:
        d = d.to(device)
        x = d.x
        for _ in range(steps):
            x = torch.where(d.kind[:, None] == 1, d.x, x + model(x, d.kind, d.edge_index, d.edge_attr).clamp(-1, 1))
        drift.append((x - d.x - steps * d.y).square().mean().item())
    model.train()
    return sum(drift) / len(drift)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--meshes", type=int, default=60)
    ap.add_argument("--side-low", type=int, default=36)
    ap.add_argument("--side-high", type=int, default=78)
    ap.add_argument("--batch", type=int, default=5)
    ap.add_argument("--width", type=int, default=112)
    ap.add_argument("--blocks", type=int, default=11)
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--noise", type=float, default=0.02)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.manual_seed(64)
    device = torch.device("cuda")
    sides = torch.randint(args.side_low, args.side_high + 1, (args.meshes + 8, 2)).tolist()
    data = [grid_mesh(r, c, k) for k, (r, c) in enumerate(sides)]
    train = DataLoader(data[:-8], batch_size=args.batch, shuffle=True)
    valid = DataLoader(data[-8:], batch_size=3)
    model = Simulator(3, args.width, args.blocks).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.8)
    begin = time.time()
    for epoch in range(args.epochs):
        total = 0.0
        for d in train:
            d = d.to(device)
            noise = args.noise * torch.randn_like(d.x) * (d.kind[:, None] == 0)
            pred = model(d.x + noise, d.kind, d.edge_index, d.edge_attr)
            free = d.kind == 0
            loss = (pred[free] - (d.y - noise)[free]).square().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()
            total += loss.item()
        sched.step()
        print(f"epoch {epoch}: {d.num_nodes} nodes and {d.num_edges} edges in the last batch, loss {total / len(train):.5f}, "
              f"roll-out error {rollout(model, valid, 8, device):.5f}, {time.time() - begin:.1f} s", flush=True)
    with tempfile.TemporaryDirectory() as tmp:
        torch.save(model.state_dict(), os.path.join(tmp, "sim.pt"))


if __name__ == "__main__":
    main()
