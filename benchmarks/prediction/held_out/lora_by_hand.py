"""LoRA by hand on a frozen decoder in bf16: low-rank pairs in fp32, merged at the end."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRA(nn.Module):
    def __init__(self, base, rank=16, alpha=32):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.01)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + (F.dropout(x.float(), 0.05, self.training) @ self.a.T @ self.b.T * self.scale).to(x.dtype)

    @torch.no_grad()
    def merged(self):
        self.base.weight += (self.b @ self.a * self.scale).to(self.base.weight.dtype)
        return self.base


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (p(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


torch.manual_seed(6)
width, vocabulary = 1024, 32000
model = nn.Sequential(nn.Embedding(vocabulary, width), *(Layer(width, 16) for _ in range(12)), nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False))
model = model.to(torch.bfloat16).requires_grad_(False)
for layer in model[1:13]:
    for name in ("q", "k", "v", "o", "gate", "up", "down"):
        setattr(layer, name, LoRA(getattr(layer, name)))
model.cuda()
trained = [p for p in model.parameters() if p.requires_grad]
print(sum(p.numel() for p in trained), "trained")
optimizer = torch.optim.Adam(trained, lr=1e-3)
for step in range(3):
    ids = torch.randint(0, vocabulary, (4, 769), device="cuda")
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.float().reshape(-1, vocabulary), ids[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
for layer in model[1:13]:
    for name in ("q", "k", "v", "o", "gate", "up", "down"):
        setattr(layer, name, getattr(layer, name).merged())
with torch.no_grad():
    print(model(torch.randint(0, vocabulary, (2, 256), device="cuda")).argmax(-1).shape)
