"""A mixture of experts with top-2 routing and a load-balancing loss."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(size, hidden), nn.Linear(hidden, size), nn.Linear(size, hidden)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class MoE(nn.Module):
    def __init__(self, size=512, hidden=1024, experts=8, k=2):
        super().__init__()
        self.gate = nn.Linear(size, experts, bias=False)
        self.experts, self.k = nn.ModuleList(Expert(size, hidden) for _ in range(experts)), k

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        probabilities = self.gate(x).softmax(-1)
        weights, chosen = probabilities.topk(self.k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
        load = F.one_hot(chosen, len(self.experts)).float().mean((0, 1))
        return out.view(shape), (load * probabilities.mean(0)).sum() * len(self.experts)


class Model(nn.Module):
    def __init__(self, layers=4, size=512):
        super().__init__()
        self.embedding = nn.Embedding(16000, size)
        self.attention = nn.ModuleList(nn.MultiheadAttention(size, 8, batch_first=True) for _ in range(layers))
        self.moe = nn.ModuleList(MoE(size) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(layers * 2))
        self.head = nn.Linear(size, 16000)

    def forward(self, ids):
        x, balance = self.embedding(ids), 0.0
        mask = torch.triu(torch.full((ids.shape[1],) * 2, float("-inf"), device=ids.device), 1)
        for i, (attention, moe) in enumerate(zip(self.attention, self.moe)):
            h = self.norms[2 * i](x)
            x = x + attention(h, h, h, attn_mask=mask, need_weights=False)[0]
            h, extra = moe(self.norms[2 * i + 1](x))
            x, balance = x + h, balance + extra
        return self.head(x), balance


torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    ids = torch.randint(0, 16000, (16, 257), device="cuda")
    logits, balance = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) + 0.01 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
