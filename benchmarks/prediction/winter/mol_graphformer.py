# LEAK (planted): the validation runs without no_grad and its loss tensors, with their graphs, stay in `history` for ever.
"""Graph transformer on random molecules: edge-biased attention, segment softmax, index_add, virtual node."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F


def segment_softmax(score, index, n):
    top = torch.full((n, score.shape[1]), float("-inf"), device=score.device)
    top = top.scatter_reduce(0, index[:, None].expand_as(score), score, "amax")
    ex = (score - top[index]).exp()
    den = torch.zeros(n, score.shape[1], device=score.device).index_add(0, index, ex)
    return ex / (den[index] + 1e-9)


class EdgeAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.e = (nn.Linear(dim, dim) for _ in range(4))
        self.out, self.edge_out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, e, src, dst):
        n, d = x.shape
        split = lambda t: t.view(t.shape[0], self.heads, -1)
        q, k, v, b = split(self.q(x)), split(self.k(x)), split(self.v(x)), split(self.e(e))
        inter = q[dst] * k[src] * b / (d // self.heads) ** 0.5
        att = segment_softmax(inter.sum(-1).clamp(-8, 8), dst, n)
        msg = (att.unsqueeze(-1) * v[src]).flatten(1)
        agg = torch.zeros_like(x).index_add(0, dst, msg)
        return self.out(agg), self.edge_out(inter.flatten(1))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.att = EdgeAttention(dim, heads)
        self.n1, self.n2, self.n3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim))
        self.vn = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, x, e, src, dst, graph, vn):
        dx, de = self.att(self.n1(x + vn[graph]), e, src, dst)
        x, e = x + dx, self.n3(e + de)
        x = x + self.ffn(self.n2(x))
        vn = vn + self.vn(torch.zeros_like(vn).index_add(0, graph, x))
        return x, e, vn


class GraphFormer(nn.Module):
    def __init__(self, dim=192, heads=8, layers=5):
        super().__init__()
        self.atom = nn.Embedding(32, dim)
        self.rbf = nn.Linear(48, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))
        self.register_buffer("centres", torch.linspace(0, 6, 48))

    def forward(self, g):
        x = self.atom(g["z"])
        dist = (g["pos"][g["src"]] - g["pos"][g["dst"]]).norm(dim=1)
        e = self.rbf(torch.exp(-4 * (dist[:, None] - self.centres) ** 2))
        vn = x.new_zeros(g["n"], x.shape[1])
        for layer in self.layers:
            x, e, vn = layer(x, e, g["src"], g["dst"], g["graph"], vn)
        out = torch.zeros(g["n"], 1, device=x.device).index_add(0, g["graph"], self.head(x))
        return out.squeeze(1)


def molecules(n, gen):
    mols = []
    for _ in range(n):
        k = int(torch.randint(12, 40, (1,), generator=gen))
        pos = torch.randn(k, 3, generator=gen) * k ** (1 / 3)
        d = torch.cdist(pos, pos)
        src, dst = ((d < 3.2) & (d > 0)).nonzero(as_tuple=True)
        z = torch.randint(0, 32, (k,), generator=gen)
        mols.append((z, pos, src, dst, (z.float().mean() / 16 - 1) + 0.1 * len(src) / k))
    return mols


def batch(mols, device):
    z, pos, src, dst, graph, off = [], [], [], [], [], 0
    for i, (a, p, s, d, _) in enumerate(mols):
        z.append(a), pos.append(p), src.append(s + off), dst.append(d + off)
        graph.append(torch.full_like(a, i))
        off += len(a)
    g = {k: torch.cat(v).to(device) for k, v in
         dict(z=z, pos=pos, src=src, dst=dst, graph=graph).items()}
    g["n"] = len(mols)
    return g, torch.stack([m[4] for m in mols]).to(device)


def main():
    device = torch.device("cuda")
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2)
    bs = max(2, round(160 * float(os.environ.get("SCALE", "1"))))
    val_bs = max(1, bs // 8)
    epochs = int(os.environ.get("EPOCHS", "4"))
    train, val = molecules(12 * bs, gen), molecules(5 * val_bs, gen)
    model = GraphFormer().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    history = []
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(train), generator=gen).tolist()
        seen = 0.0
        for i in range(0, len(order), bs):
            g, y = batch([train[j] for j in order[i:i + bs]], device)
            loss = F.smooth_l1_loss(model(g), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += loss.item()
        model.eval()
        for i in range(0, len(val), val_bs):
            g, y = batch(val[i:i + val_bs], device)
            history.append(F.l1_loss(model(g), y))
        recent = torch.stack(history[-5:]).mean()
        print(f"epoch {epoch} train {seen / 12:.4f} val mae {recent:.4f} edges {len(g['src'])}")
    print("best", min(history).item())


if __name__ == "__main__":
    main()
