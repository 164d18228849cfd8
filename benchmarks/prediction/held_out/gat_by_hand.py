"""A graph attention network by hand: edges as indices, softmax over neighbours with scatter."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class GAT(nn.Module):
    def __init__(self, inputs, outputs, heads):
        super().__init__()
        self.heads, self.outputs = heads, outputs
        self.lift = nn.Linear(inputs, heads * outputs, bias=False)
        self.source, self.target = nn.Parameter(torch.randn(heads, outputs) * 0.1), nn.Parameter(torch.randn(heads, outputs) * 0.1)

    def forward(self, x, edges):
        src, dst = edges
        h = self.lift(x).view(-1, self.heads, self.outputs)
        score = F.leaky_relu((h * self.source).sum(-1)[src] + (h * self.target).sum(-1)[dst], 0.2)
        top = torch.full((x.shape[0], self.heads), -1e9, device=x.device).scatter_reduce(0, dst[:, None].expand_as(score), score, "amax")
        weight = (score - top[dst]).exp()
        total = torch.zeros(x.shape[0], self.heads, device=x.device).index_add(0, dst, weight)
        weight = F.dropout(weight / total[dst].clamp_min(1e-9), 0.3, self.training)
        out = torch.zeros_like(h).index_add(0, dst, h[src] * weight[..., None])
        return out.flatten(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([GAT(128, 32, 4), GAT(128, 32, 4), GAT(128, 40, 1)])

    def forward(self, x, edges):
        for layer in self.layers[:-1]:
            x = F.elu(layer(x, edges))
        return self.layers[-1](x, edges)


torch.manual_seed(12)
nodes, edges = 60_000, 600_000
x = torch.randn(nodes, 128).cuda()
y = torch.randint(0, 40, (nodes,)).cuda()
graph = torch.randint(0, nodes, (2, edges)).cuda()
train = torch.randperm(nodes)[:20000].cuda()
model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
for epoch in range(4):
    model.train()
    loss = F.cross_entropy(model(x, graph)[train], y[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(x, graph).argmax(-1)[train] == y[train]).float().mean()
    print(epoch, loss.item(), right.item())
