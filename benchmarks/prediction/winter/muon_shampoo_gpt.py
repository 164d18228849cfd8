"""Small GPT trained with three optimizers: Muon (Newton-Schulz) for attention, one-sided Shampoo with matrix roots for
the MLP, AdamW for the rest."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

CTX, VOCAB, DIM, LAYERS, HEADS = 512, 4096, 512, 8, 8


@torch.no_grad()
def newton_schulz(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    flip = x.shape[0] > x.shape[1]
    x = x.T if flip else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return (x.T if flip else x).to(g.dtype)


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                upd = newton_schulz(p.grad.lerp(buf, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(upd, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


class Shampoo(torch.optim.Optimizer):
    """Preconditions only the sides that are not longer than max_dim; roots are refreshed now and then."""

    def __init__(self, params, lr=1e-3, beta=0.95, every=10, max_dim=1024, eps=1e-6):
        super().__init__(params, dict(lr=lr, beta=beta, every=every, max_dim=max_dim, eps=eps))
        self.t = 0

    @staticmethod
    def root(m, power, eps):
        val, vec = torch.linalg.eigh(m + eps * m.diagonal().mean() * torch.eye(len(m), device=m.device))
        return (vec * val.clamp(min=1e-12).pow(-1 / power)) @ vec.T

    @torch.no_grad()
    def step(self):
        self.t += 1
        for group in self.param_groups:
            for p in group["params"]:
                st = self.state[p]
                if not st:
                    st["stats"] = [torch.zeros(n, n, device=p.device) if n <= group["max_dim"] else None for n in p.shape]
                    st["roots"] = [None, None]
                    st["buf"] = torch.zeros_like(p)
                sides = sum(s is not None for s in st["stats"])
                for i, s in enumerate(st["stats"]):
                    if s is not None:
                        s.lerp_(p.grad @ p.grad.T if i == 0 else p.grad.T @ p.grad, 1 - group["beta"])
                        if self.t % group["every"] == 1:
                            st["roots"][i] = self.root(s, 2 * sides, group["eps"])
                g = p.grad
                if st["roots"][0] is not None:
                    g = st["roots"][0] @ g
                if st["roots"][1] is not None:
                    g = g @ st["roots"][1]
                g = g * (p.grad.norm() / (g.norm() + 1e-12))              # graft the size of SGD
                st["buf"].mul_(0.9).add_(g)
                p.add_(st["buf"] / (st["buf"].norm() + 1e-8) * p.norm(), alpha=-group["lr"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x, rot):
        B, T, _ = x.shape
        q, k, v = (t.view(B, T, HEADS, -1).transpose(1, 2) for t in self.qkv(F.rms_norm(x, (DIM,))).chunk(3, -1))
        q, k = (self.rotary(F.rms_norm(t, (t.shape[-1],)), rot) for t in (q, k))
        y = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, DIM))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (DIM,)))).square())

    @staticmethod
    def rotary(x, rot):
        cos, sin = rot
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos + b * sin, b * cos - a * sin], -1).type_as(x)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        nn.init.zeros_(self.head.weight)
        half = DIM // HEADS // 2
        ang = torch.outer(torch.arange(CTX), 1024 ** (-torch.arange(half) / half))
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)

    def forward(self, idx, target):
        x = F.rms_norm(self.wte(idx), (DIM,))
        rot = self.cos[:idx.shape[1]], self.sin[:idx.shape[1]]
        for b in self.blocks:
            x = b(x, rot)
        logits = self.head(F.rms_norm(x, (DIM,)))
        logits = 15 * torch.tanh(logits.float() / 15)
        return F.cross_entropy(logits.view(-1, VOCAB), target.reshape(-1))


def main():
    torch.manual_seed(77)
    torch.set_float32_matmul_precision("high")
    batch = max(1, round(16 * float(os.environ.get("SCALE", "1"))))
    steps = int(os.environ.get("STEPS", "45"))
    model = GPT().to("cuda")
    attn = [p for b in model.blocks for p in (b.qkv.weight, b.proj.weight)]
    mlp = [p for b in model.blocks for p in (b.up.weight, b.down.weight)]
    opts = [Muon(attn), Shampoo(mlp, lr=5e-3), torch.optim.AdamW([model.wte.weight, model.head.weight], lr=3e-3, fused=False)]
    chain = torch.randint(0, VOCAB, (VOCAB, 4), device="cuda")                # every token has four successors
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")
    for step in range(steps):
        seq = [torch.randint(0, VOCAB, (batch,), device="cuda")]
        pick = torch.randint(0, 4, (CTX, batch), device="cuda")
        for t in range(CTX):
            seq.append(chain[seq[-1], pick[t]])
        seq = torch.stack(seq, 1)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(seq[:, :-1], seq[:, 1:])
        loss.backward()
        for o in opts:
            o.step()
            o.zero_grad(set_to_none=True)
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
