"""
Long-document LM built on a chunked linear-attention (retention) layer with a hand-written backward.
Documents are read segment by segment; the recurrent state is carried from one segment to the next.
"""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

TINY = os.environ.get("TINY") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ChunkRetention(torch.autograd.Function):
    """o_t = q_t S_t,  S_t = gamma S_{t-1} + k_t^T v_t, evaluated chunk by chunk."""

    @staticmethod
    def _decay(gamma, C):
        i = torch.arange(C, device=gamma.device, dtype=gamma.dtype)
        diff = i[:, None] - i[None, :]
        D = torch.where(diff >= 0, gamma[:, None, None] ** diff.clamp(min=0), 0.0)   # H, C, C
        g_in = (gamma[:, None] ** (i + 1))[..., None]                                 # H, C, 1
        g_out = (gamma[:, None] ** (C - 1 - i))[..., None]                            # H, C, 1
        g_all = (gamma ** C)[:, None, None]
        return D, g_in, g_out, g_all

    @staticmethod
    def forward(ctx, q, k, v, gamma, state, chunk):
        D, g_in, g_out, g_all = ChunkRetention._decay(gamma, chunk)
        outs, states = [], []
        S = state
        for qc, kc, vc in zip(q.split(chunk, 2), k.split(chunk, 2), v.split(chunk, 2)):
            states.append(S)
            A = (qc @ kc.transpose(-1, -2)) * D
            outs.append(A @ vc + (qc * g_in) @ S)
            S = g_all * S + (kc * g_out).transpose(-1, -2) @ vc
        ctx.save_for_backward(q, k, v, gamma, torch.stack(states))
        ctx.chunk = chunk
        return torch.cat(outs, 2), S

    @staticmethod
    def backward(ctx, d_out, d_state):
        q, k, v, gamma, states = ctx.saved_tensors
        C = ctx.chunk
        D, g_in, g_out, g_all = ChunkRetention._decay(gamma, C)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dS = d_state
        for n in reversed(range(states.size(0))):
            s = slice(n * C, (n + 1) * C)
            qc, kc, vc, do, S = q[:, :, s], k[:, :, s], v[:, :, s], d_out[:, :, s], states[n]
            A = (qc @ kc.transpose(-1, -2)) * D
            dA = (do @ vc.transpose(-1, -2)) * D
            dv[:, :, s] = A.transpose(-1, -2) @ do + (kc * g_out) @ dS
            dq[:, :, s] = dA @ kc + (do @ S.transpose(-1, -2)) * g_in
            dk[:, :, s] = dA.transpose(-1, -2) @ qc + (vc @ dS.transpose(-1, -2)) * g_out
            dS = g_all * dS + (qc * g_in).transpose(-1, -2) @ do
        return dq, dk, dv, None, dS, None


class RetentionLayer(nn.Module):
    def __init__(self, dim, heads, chunk):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.norm = nn.LayerNorm(dim)
        self.qkvg = nn.Linear(dim, 4 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.gn = nn.GroupNorm(heads, dim)
        self.register_buffer("gamma", 1 - 2.0 ** (-5 - torch.arange(heads).float()))
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def init_state(self, batch, dim, device):
        hd = dim // self.heads
        return torch.zeros(batch, self.heads, hd, hd, device=device)

    def forward(self, x, state):
        B, T, D = x.shape
        q, k, v, g = self.qkvg(self.norm(x)).chunk(4, -1)
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        k = k * k.size(-1) ** -0.5
        y, state = ChunkRetention.apply(q, k, v, self.gamma, state, self.chunk)
        y = self.gn(y.transpose(1, 2).reshape(B * T, D)).view(B, T, D)
        x = x + self.out(y * F.silu(g))
        return x + self.mlp(x), state


class DocLM(nn.Module):
    def __init__(self, vocab, dim, depth, heads, chunk):
        super().__init__()
        self.dim = dim
        self.emb = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(RetentionLayer(dim, heads, chunk) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def init_states(self, batch, device):
        return [layer.init_state(batch, self.dim, device) for layer in self.layers]

    def forward(self, ids, states):
        x = self.emb(ids)
        new = []
        for layer, s in zip(self.layers, states):
            x, s = layer(x, s)
            new.append(s)
        return self.head(self.norm(x)), new


class DocTrainer:
    def __init__(self, model, optimizer, scheduler, segment, clip=1.0):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.segment, self.clip = segment, clip
        self.step = 0

    def train_document(self, ids):
        states = self.model.init_states(ids.size(0), ids.device)
        self.optimizer.zero_grad()
        n_seg = (ids.size(1) - 1) // self.segment
        loss = 0.0
        for i in range(n_seg):
            a = i * self.segment
            x = ids[:, a:a + self.segment]
            y = ids[:, a + 1:a + self.segment + 1]
            logits, states = self.model(x, states)
            loss = loss + F.cross_entropy(logits.flatten(0, 1), y.flatten()) / n_seg
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        return loss.item()

    def fit(self, documents):
        for ids in documents:
            loss = self.train_document(ids.to(DEVICE))
            if self.step % 4 == 1:
                print(f"doc batch {self.step:2d} tokens {ids.numel()} loss {loss:.4f}")


def documents(n, batch, length, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        # each document keeps returning to a small private vocabulary
        own = torch.randint(0, vocab, (batch, 64), generator=g)
        pick = own.gather(1, torch.randint(0, 64, (batch, length), generator=g))
        other = torch.randint(0, vocab, (batch, length), generator=g)
        yield torch.where(torch.rand(batch, length, generator=g) < 0.8, pick, other)


def main():
    torch.manual_seed(8)
    torch.set_float32_matmul_precision("high")
    scale = float(os.environ.get("SCALE", "1"))
    if TINY:
        vocab, dim, depth, heads, chunk, segment, length, batch, n = 100, 32, 2, 2, 8, 32, 129, 2, 3
    else:
        vocab, dim, depth, heads, chunk, segment, length, batch, n = 4000, 384, 6, 6, 64, 512, 4097, 6, 14
    batch = max(1, round(batch * scale))
    model = DocLM(vocab, dim, depth, heads, chunk).to(DEVICE)
    optimizer = torch.optim.Adamax(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=n)
    DocTrainer(model, optimizer, scheduler, segment).fit(documents(n, batch, length, vocab, seed=80))
    print("done")


if __name__ == "__main__":
    main()
