"""MeshGraphNet: learned one-step simulator of a diffusing field on triangle meshes of different sizes (PyG)."""
import argparse

import torch
import torch.nn as nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MessagePassing


def mlp(cin, cout, hidden, norm=True):
    layers = [nn.Linear(cin, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, cout)]
    if norm:
        layers.append(nn.LayerNorm(cout))
    return nn.Sequential(*layers)


class Processor(MessagePassing):
    def __init__(self, latent):
        super().__init__(aggr="add")
        self.edge_mlp = mlp(3 * latent, latent, latent)
        self.node_mlp = mlp(2 * latent, latent, latent)

    def forward(self, x, edge_index, e):
        src, dst = edge_index
        e = e + self.edge_mlp(torch.cat([x[src], x[dst], e], dim=-1))
        agg = self.propagate(edge_index, x=x, e=e)
        return x + self.node_mlp(torch.cat([x, agg], dim=-1)), e

    def message(self, e):
        return e


class MeshGraphNet(nn.Module):
    def __init__(self, node_in, edge_in, out, latent, steps):
        super().__init__()
        self.node_enc = mlp(node_in, latent, latent)
        self.edge_enc = mlp(edge_in, latent, latent)
        self.steps = nn.ModuleList([Processor(latent) for _ in range(steps)])
        self.dec = mlp(latent, out, latent, norm=False)

    def forward(self, data):
        kind = nn.functional.one_hot(data.kind, 3).float()
        x = self.node_enc(torch.cat([data.field, kind], dim=-1))
        e = self.edge_enc(data.edge_attr)
        for step in self.steps:
            x, e = step(x, data.edge_index, e)
        return self.dec(x)


def make_mesh(rows, cols, g):
    """A jittered grid cut in triangles; edges both ways."""
    idx = torch.arange(rows * cols).view(rows, cols)
    pairs = torch.cat([torch.stack([idx[:, :-1].flatten(), idx[:, 1:].flatten()]),
                       torch.stack([idx[:-1].flatten(), idx[1:].flatten()]),
                       torch.stack([idx[:-1, :-1].flatten(), idx[1:, 1:].flatten()])], dim=1)
    edge_index = torch.cat([pairs, pairs.flip(0)], dim=1)
    yy, xx = torch.meshgrid(torch.arange(rows).float(), torch.arange(cols).float(), indexing="ij")
    pos = torch.stack([xx, yy], dim=-1).view(-1, 2) + 0.25 * (torch.rand(rows * cols, 2, generator=g) - 0.5)
    kind = torch.zeros(rows, cols, dtype=torch.long)
    kind[0], kind[-1], kind[:, 0], kind[:, -1] = 1, 1, 2, 2
    delta = pos[edge_index[0]] - pos[edge_index[1]]
    edge_attr = torch.cat([delta, delta.norm(dim=-1, keepdim=True)], dim=-1)
    return pos, edge_index, edge_attr, kind.flatten()


def true_step(field, edge_index, edge_attr, kind, rate=0.12):
    w = 1.0 / edge_attr[:, 2:].clamp(min=0.3)
    flow = torch.zeros_like(field).index_add_(0, edge_index[1], w * (field[edge_index[0]] - field[edge_index[1]]))
    return torch.where((kind == 0)[:, None], rate * flow, torch.zeros_like(field))


def make_set(n, sizes, channels, seed):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        rows, cols = (int(torch.randint(sizes[0], sizes[1], (1,), generator=g)) for _ in range(2))
        pos, edge_index, edge_attr, kind = make_mesh(rows, cols, g)
        waves = torch.randn(2, channels, generator=g) * 0.2
        field = torch.sin(pos @ waves + torch.rand(1, channels, generator=g) * 6.28)
        out.append(Data(pos=pos, edge_index=edge_index, edge_attr=edge_attr, kind=kind, field=field,
                        y=true_step(field, edge_index, edge_attr, kind)))
    return out


@torch.no_grad()
def one_step_error(model, loader, device):
    model.eval()
    total, count = 0.0, 0
    for data in loader:
        data = data.to(device)
        total += (model(data) - data.y).pow(2).sum().item()
        count += data.y.numel()
    model.train()
    return (total / count) ** 0.5


@torch.no_grad()
def rollout(model, data, steps, device):
    model.eval()
    data = data.clone().to(device)
    truth = data.field.clone()
    for _ in range(steps):
        truth = truth + true_step(truth, data.edge_index, data.edge_attr, data.kind)
        change = model(data)
        data.field = data.field + torch.where((data.kind == 0)[:, None], change, torch.zeros_like(change))
    model.train()
    return (data.field - truth).pow(2).mean().sqrt().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--latent", type=int, default=128)
    ap.add_argument("--processor-steps", type=int, default=12)
    ap.add_argument("--channels", type=int, default=3)
    ap.add_argument("--sizes", type=int, nargs=2, default=[44, 78])
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--n-train", type=int, default=80)
    ap.add_argument("--n-val", type=int, default=12)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--noise", type=float, default=0.02)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--rollout", type=int, default=20)
    args = ap.parse_args()

    torch.manual_seed(90)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = "cuda"
    train = DataLoader(make_set(args.n_train, args.sizes, args.channels, 1), batch_size=args.batch, shuffle=True)
    val_set = make_set(args.n_val, args.sizes, args.channels, 2)
    val = DataLoader(val_set, batch_size=args.batch + 2)
    model = MeshGraphNet(args.channels + 3, 3, args.channels, args.latent, args.processor_steps).to(device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.1 ** (1 / (len(train) * args.epochs)))

    for epoch in range(args.epochs):
        running = 0.0
        for data in train:
            data = data.to(device)
            free = (data.kind == 0)[:, None]
            noise = torch.randn_like(data.field) * args.noise * free
            data.field = data.field + noise
            loss = ((model(data) - (data.y - noise)).pow(2) * free).sum() / free.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            running += loss.item()
        print(f"epoch {epoch}: loss {running / len(train):.5f}, one-step error {one_step_error(model, val, device):.5f}, "
              f"last batch {data.num_nodes} nodes {data.num_edges} edges")
    print(f"rollout of {args.rollout} steps: RMSE {rollout(model, val_set[0], args.rollout, device):.4f}")


if __name__ == "__main__":
    main()
