"""Differentially private training of a small ViT: per-example gradients with torch.func."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap


class MLP(nn.Module):
    def __init__(self, dim, ratio, drop):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, ratio * dim), nn.Linear(ratio * dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        return self.fc2(self.drop(F.gelu(self.fc1(x))))


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(d // self.heads)
        att = att.softmax(dim=-1)
        return self.proj((att @ v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads, drop):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.mlp = MLP(dim, 4, drop)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, size, patch, dim, depth, heads, classes, drop):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, stride=patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*[Block(dim, heads, drop) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


def private_gradient(per_example, clip):
    """Clip every example's gradient to norm `clip`, return the sum over examples."""
    sq = sum(g.flatten(1).pow(2).sum(1) for g in per_example.values())
    norms = sq.sqrt()
    factor = (clip / (norms + 1e-6)).clamp(max=1.0)
    summed = {k: torch.einsum("b,b...->...", factor, g) for k, g in per_example.items()}
    return summed, norms


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=224)
    ap.add_argument("--patch", type=int, default=16)
    ap.add_argument("--dim", type=int, default=384)
    ap.add_argument("--depth", type=int, default=12)
    ap.add_argument("--heads", type=int, default=6)
    ap.add_argument("--classes", type=int, default=100)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--micro", type=int, default=48, help="examples per vmap call")
    ap.add_argument("--accum", type=int, default=2, help="vmap calls per logical batch")
    ap.add_argument("--steps", type=int, default=5)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--sigma", type=float, default=0.6)
    args = ap.parse_args()

    torch.manual_seed(5)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    model = ViT(args.size, args.patch, args.dim, args.depth, args.heads, args.classes, args.dropout).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    params = {k: v.detach() for k, v in model.named_parameters()}  # share storage with the model
    logical = args.micro * args.accum

    def loss_one(prm, x, y):
        logits = functional_call(model, prm, (x.unsqueeze(0),))
        return F.cross_entropy(logits, y.unsqueeze(0))

    per_example = vmap(grad_and_value(loss_one), in_dims=(None, 0, 0), randomness="different")

    model.train()
    for step in range(args.steps):
        total = {k: torch.zeros_like(v) for k, v in params.items()}
        losses, all_norms = [], []
        for _ in range(args.accum):
            x = torch.randn(args.micro, 3, args.size, args.size, device=device)
            y = torch.randint(0, args.classes, (args.micro,), device=device)
            grads, loss = per_example(params, x, y)
            summed, norms = private_gradient(grads, args.clip)
            for k in total:
                total[k] += summed[k]
            losses.append(loss.mean().item())
            all_norms.append(norms)
        for k, prm in model.named_parameters():
            noise = args.sigma * args.clip * torch.randn_like(prm)
            prm.grad = (total[k] + noise) / logical
        opt.step()
        opt.zero_grad()
        med = torch.cat(all_norms).median().item()
        print(f"step {step} loss {sum(losses) / len(losses):.4f} median grad norm {med:.3f}")

    model.eval()
    with torch.no_grad():
        x = torch.randn(4 * args.micro, 3, args.size, args.size, device=device)
        y = torch.randint(0, args.classes, (4 * args.micro,), device=device)
        print(f"test loss {F.cross_entropy(model(x), y).item():.4f}")


if __name__ == "__main__":
    main()
