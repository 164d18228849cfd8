"""Full-graph attention network for paper-topic classification with label propagation afterwards (PyTorch Geometric)."""
import argparse
import logging
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GATConv, MessagePassing, SAGEConv
from torch_geometric.utils import add_self_loops, coalesce, degree, dropout_edge, to_undirected

log = logging.getLogger(__name__)


def synthetic_citations(nodes, mean_degree, topics, feats, seed):
    rng = np.random.default_rng(seed)
    topic = rng.integers(topics, size=nodes)
    weight = rng.pareto(2.2, size=nodes) + 1
    order = np.argsort(topic, kind="stable")
    bounds = np.searchsorted(topic[order], np.arange(topics + 1))
    m = nodes * mean_degree // 2
    src = rng.integers(nodes, size=m)
    dst = rng.choice(nodes, size=m, p=weight / weight.sum())
    same = rng.random(m) < 0.6
    lo, hi = bounds[topic[src]], bounds[topic[src] + 1]
    dst = np.where(same, order[lo + (rng.random(m) * (hi - lo)).astype(np.int64)], dst)
    x = rng.standard_normal((nodes, feats), dtype=np.float32)
    centres = rng.standard_normal((topics, feats), dtype=np.float32)
    x += 0.25 * centres[topic]
    edge = to_undirected(coalesce(torch.from_numpy(np.stack([src, dst]))))
    split = torch.from_numpy(rng.permutation(nodes))
    data = Data(x=torch.from_numpy(x), edge_index=edge, y=torch.from_numpy(topic))
    for name, ids in zip(("train", "val", "test"), split.split([nodes // 2, nodes // 5, nodes - nodes // 2 - nodes // 5])):
        mask = torch.zeros(nodes, dtype=torch.bool)
        mask[ids] = True
        data[f"{name}_mask"] = mask
    return data


class Smoother(MessagePassing):
    """Symmetric-normalised label propagation."""

    def __init__(self, steps, alpha):
        super().__init__(aggr="add")
        self.steps, self.alpha = steps, alpha

    def forward(self, prob, edge_index):
        deg = degree(edge_index[1], prob.shape[0]).clamp(min=1).rsqrt()
        w = deg[edge_index[0]] * deg[edge_index[1]]
        out = prob
        for _ in range(self.steps):
            out = self.alpha * self.propagate(edge_index, x=out, w=w) + (1 - self.alpha) * prob
        return out

    def message(self, x_j, w):
        return x_j * w[:, None]


class TopicNet(nn.Module):
    def __init__(self, feats, hidden, heads, topics, layers, drop):
        super().__init__()
        width = hidden * heads
        self.inp = SAGEConv(feats, width)
        self.convs = nn.ModuleList(GATConv(width, hidden, heads=heads, add_self_loops=False, dropout=0.1) for _ in range(layers))
        self.skips = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(BatchNorm(width) for _ in range(layers + 1))
        self.out = nn.Linear(width, topics)
        self.drop = drop

    def forward(self, x, edge_index):
        h = F.elu(self.norms[0](self.inp(x, edge_index)))
        for conv, skip, norm in zip(self.convs, self.skips, self.norms[1:]):
            h = F.dropout(h, self.drop, self.training)
            h = F.elu(norm(conv(h, edge_index) + skip(h)))
        return self.out(h)


def accuracy(pred, data):
    ok = pred.argmax(-1) == data.y
    return {k: ok[data[f"{k}_mask"]].float().mean().item() for k in ("train", "val", "test")}


def train_epoch(model, data, loops, opt, drop_edge):
    model.train()
    edges, _ = dropout_edge(data.edge_index, p=drop_edge)
    edges = torch.cat([edges, loops], 1)
    opt.zero_grad()
    logits = model(data.x, edges)
    loss = F.cross_entropy(logits[data.train_mask], data.y[data.train_mask], label_smoothing=0.1)
    loss.backward()
    opt.step()
    return loss


@torch.no_grad()
def predict(model, data):
    model.eval()
    full, _ = add_self_loops(data.edge_index, num_nodes=data.num_nodes)
    return model(data.x, full)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--nodes", type=int, default=92000)
    ap.add_argument("--degree", type=int, default=11)
    ap.add_argument("--features", type=int, default=200)
    ap.add_argument("--hidden", type=int, default=52)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--layers", type=int, default=3)
    ap.add_argument("--topics", type=int, default=47)
    ap.add_argument("--epochs", type=int, default=700)
    ap.add_argument("--drop-edge", type=float, default=0.15)
    ap.add_argument("--eval-every", type=int, default=70)
    ap.add_argument("--seed", type=int, default=2)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    data = synthetic_citations(args.nodes, args.degree, args.topics, args.features, args.seed).to(device)
    log.info("%d nodes, %d directed edges", data.num_nodes, data.num_edges)
    loops = torch.arange(data.num_nodes, device=device).repeat(2, 1)
    model = TopicNet(args.features, args.hidden, args.heads, args.topics, args.layers, 0.4).to(device)
    opt = torch.optim.NAdam(model.parameters(), lr=3e-3, weight_decay=1e-5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, mode="max", patience=2, factor=0.5)
    best, best_state, t = 0.0, None, time.time()
    for epoch in range(1, args.epochs + 1):
        loss = train_epoch(model, data, loops, opt, args.drop_edge)
        if epoch % args.eval_every == 0 or epoch == args.epochs:
            acc = accuracy(predict(model, data), data)
            plateau.step(acc["val"])
            if acc["val"] > best:
                best = acc["val"]
                best_state = {k: v.detach().clone() for k, v in model.state_dict().items()}
            log.info("epoch %d loss %.4f train %.3f val %.3f test %.3f (%.1fs)", epoch, loss.item(), *acc.values(), time.time() - t)
    if best_state is not None:
        model.load_state_dict(best_state)
    prob = predict(model, data).softmax(-1)
    prob[data.train_mask] = F.one_hot(data.y[data.train_mask], args.topics).float()
    smooth = Smoother(12, 0.8)(prob, data.edge_index)
    log.info("after label propagation: %s", accuracy(smooth, data))


if __name__ == "__main__":
    main()
