"""Switch/GShard-style mixture-of-experts language model (single GPU, dense dispatch)."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

TINY = os.environ.get("TINY") == "1"


class TopKRouter(nn.Module):
    def __init__(self, dim, n_experts, k=2, capacity_factor=1.25):
        super().__init__()
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.n_experts, self.k, self.capacity_factor = n_experts, k, capacity_factor

    def forward(self, x):
        # x: (tokens, dim)
        T = x.size(0)
        E = self.n_experts
        capacity = max(4, int(self.k * T * self.capacity_factor / E))
        logits = self.gate(x).float()
        if self.training:
            logits = logits + torch.randn_like(logits) * 0.01
        probs = logits.softmax(-1)
        top_p, top_i = probs.topk(self.k, dim=-1)
        top_p = top_p / top_p.sum(-1, keepdim=True)

        combine = torch.zeros(T, E, capacity, device=x.device)
        used = torch.zeros(E, device=x.device, dtype=torch.long)
        for slot in range(self.k):
            onehot = F.one_hot(top_i[:, slot], E)                     # T, E
            pos = onehot.cumsum(0) - 1 + used                         # T, E
            used = used + onehot.sum(0)
            pos = (pos * onehot).sum(-1)                              # T
            keep = (pos < capacity).float()
            pos_oh = F.one_hot(pos.clamp(max=capacity - 1), capacity).float()
            w = top_p[:, slot] * keep
            combine = combine + w[:, None, None] * onehot.float()[:, :, None] * pos_oh[:, None, :]
        dispatch = (combine > 0).to(x.dtype)

        frac = F.one_hot(top_i[:, 0], E).float().mean(0)
        aux = E * (frac * probs.mean(0)).sum()
        z = torch.logsumexp(logits, -1).pow(2).mean()
        return combine, dispatch, aux, z


class MoE(nn.Module):
    def __init__(self, dim, hidden, n_experts):
        super().__init__()
        self.router = TopKRouter(dim, n_experts)
        self.w1 = nn.Parameter(torch.randn(n_experts, dim, hidden) * dim ** -0.5)
        self.w2 = nn.Parameter(torch.randn(n_experts, hidden, dim) * hidden ** -0.5)

    def forward(self, x):
        B, S, D = x.shape
        flat = x.reshape(-1, D)
        combine, dispatch, aux, z = self.router(flat)
        xin = torch.einsum("tec,td->ecd", dispatch, flat)
        h = F.silu(torch.bmm(xin, self.w1))
        y = torch.bmm(h, self.w2)
        out = torch.einsum("tec,ecd->td", combine, y)
        return out.view(B, S, D), aux, z


class FFN(nn.Sequential):
    def __init__(self, dim, hidden):
        super().__init__(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, dim))

    def forward(self, x):
        zero = x.new_zeros(())
        return super().forward(x), zero, zero


class Layer(nn.Module):
    def __init__(self, dim, heads, hidden, n_experts, use_moe):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.ff = MoE(dim, hidden, n_experts) if use_moe else FFN(dim, hidden)

    def forward(self, x):
        B, S, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, S, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(B, S, D))
        y, aux, z = self.ff(self.n2(x))
        return x + y, aux, z


class MoETransformer(nn.Module):
    def __init__(self, vocab, dim, depth, heads, hidden, n_experts, max_len):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        self.layers = nn.ModuleList(
            Layer(dim, heads, hidden, n_experts, use_moe=i % 2 == 1) for i in range(depth))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos[: ids.size(1)]
        aux_total, z_total = 0.0, 0.0
        for layer in self.layers:
            x, aux, z = layer(x)
            aux_total = aux_total + aux
            z_total = z_total + z
        return self.head(self.norm(x)), aux_total, z_total


class Trainer:
    def __init__(self):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(0)
        self.vocab = 128 if TINY else 16000
        self.seq = 32 if TINY else 512
        self.batch_size = max(1, round((2 if TINY else 8) * float(os.environ.get("SCALE", "1"))))
        self.steps = 4 if TINY else 20
        if TINY:
            self.model = MoETransformer(self.vocab, 32, 2, 2, 64, 4, self.seq)
        else:
            self.model = MoETransformer(self.vocab, 512, 6, 8, 2048, 8, self.seq)
        self.model.to(self.device)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=3e-4, weight_decay=0.01, foreach=True)
        self.sched = torch.optim.lr_scheduler.LinearLR(self.opt, 0.1, 1.0, total_iters=5)
        self.gen = torch.Generator().manual_seed(123)
        self.transition = torch.randint(0, self.vocab, (self.vocab, 4), generator=self.gen)

    def sample(self):
        """Sparse Markov chain: every token has four possible successors."""
        cur = torch.randint(0, self.vocab, (self.batch_size,), generator=self.gen)
        seq = [cur]
        for _ in range(self.seq):
            branch = torch.randint(0, 4, (self.batch_size,), generator=self.gen)
            cur = self.transition[cur, branch]
            seq.append(cur)
        seq = torch.stack(seq, 1).to(self.device)
        return seq[:, :-1], seq[:, 1:]

    def train_step(self):
        x, y = self.sample()
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            logits, aux, z = self.model(x)
            ce = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())
            loss = ce + 0.01 * aux + 0.001 * z
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.sched.step()
        return ce.detach(), aux.detach()

    def fit(self):
        print("params", sum(p.numel() for p in self.model.parameters()))
        for step in range(self.steps):
            ce, aux = self.train_step()
            if step % 5 == 0 or step == self.steps - 1:
                print(f"[{step}] ce={ce.item():.3f} aux={aux.item():.3f}")


if __name__ == "__main__":
    Trainer().fit()
    print("done")
