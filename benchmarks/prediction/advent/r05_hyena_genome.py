"""Single-nucleotide language model with long implicit convolutions; sequence-length warm-up, then variant scoring."""
import argparse
import json
import math
import time
from pathlib import Path
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 7


class ImplicitFilter(nn.Module):
    def __init__(self, d, order, emb=33, width=64, max_len=65536):
        super().__init__()
        self.emb, self.max_len = emb, max_len
        lin = [nn.Linear(emb, width)]
        lin += [nn.Linear(width, width) for _ in range(2)]
        self.layers = nn.ModuleList(lin)
        self.out = nn.Linear(width, d * order, bias=False)
        self.freq = nn.Parameter(torch.full((width,), 10.0))
        decay = torch.linspace(math.log(1e-2) / 0.3, math.log(1e-2) / 1.5, d * order)
        self.register_buffer("decay", decay)
        self.bias = nn.Parameter(torch.randn(order, d))
        self.order, self.d = order, d

    def forward(self, L):
        t = torch.linspace(0, 1, self.max_len, device=self.freq.device)[:L, None]
        bands = torch.linspace(1e-4, (self.emb - 1) / 2 - 1, (self.emb - 1) // 2, device=t.device)
        w = 2 * math.pi * t * self.max_len / 1024
        z = torch.cat([t, torch.cos(bands * w), torch.sin(bands * w)], -1)
        for l in self.layers:
            z = torch.sin(self.freq * l(z))
        k = self.out(z) * torch.exp(-t * self.decay.abs() * 4)
        return k.t().reshape(self.order, self.d, L)


def fft_conv(u, k, bias):
    L = u.shape[-1]
    n = 2 * L
    kf = torch.fft.rfft(k, n=n) / n
    uf = torch.fft.rfft(u, n=n)
    y = torch.fft.irfft(uf * kf, n=n, norm="forward")[..., :L]
    return y + u * bias[:, None]


class HyenaOperator(nn.Module):
    def __init__(self, d, order=2, max_len=65536):
        super().__init__()
        self.order = order
        self.inp = nn.Linear(d, (order + 1) * d)
        self.out = nn.Linear(d, d)
        self.short = nn.Conv1d((order + 1) * d, (order + 1) * d, 3, padding=2, groups=(order + 1) * d)
        self.filter = ImplicitFilter(d, order - 1, max_len=max_len)

    def forward(self, x):
        L = x.shape[1]
        u = self.short(self.inp(x).transpose(1, 2))[..., :L]
        *gates, v = u.chunk(self.order + 1, 1)
        with torch.autocast(x.device.type, enabled=False):
            ks = self.filter(L)
            v = v.float()
            for o, g in enumerate(reversed(gates[1:])):
                v = fft_conv(v * g.float(), ks[o], self.filter.bias[o])
        return self.out((v * gates[0]).transpose(1, 2))


class Layer(nn.Module):
    def __init__(self, d, max_len):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mix = HyenaOperator(d, max_len=max_len)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.mix(self.n1(x))
        return x + self.mlp(self.n2(x))


class GenomeLM(nn.Module):
    def __init__(self, d, depth, max_len):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.layers = nn.ModuleList(Layer(d, max_len) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, ids):
        x = self.tok(ids)
        for l in self.layers:
            x = l(x)
        return F.linear(self.norm(x), self.tok.weight)


class Genome:
    def __init__(self, length, seed):
        g = torch.Generator().manual_seed(seed)
        motif = torch.randint(0, 4, (64, 24), generator=g)
        order = torch.randint(0, 64, (length // 24 + 1,), generator=g)
        seq = motif[order].flatten()[:length]
        mut = torch.rand(length, generator=g) < 0.05
        self.seq = torch.where(mut, torch.randint(0, 4, (length,), generator=g), seq).to(torch.uint8)
        self.g = g

    def batch(self, n, L):
        start = torch.randint(0, len(self.seq) - L - 1, (n,), generator=self.g)
        x = torch.stack([self.seq[s: s + L + 1] for s in start.tolist()]).long()
        flip = torch.rand(n, generator=self.g) < 0.5
        x[flip] = 3 - x[flip].flip(1)
        return x


def param_groups(model, wd):
    decay = [p for n, p in model.named_parameters() if p.ndim >= 2 and "filter" not in n]
    filt = [p for n, p in model.named_parameters() if "filter" in n]
    rest = [p for n, p in model.named_parameters() if p.ndim < 2 and "filter" not in n]
    return [{"params": decay, "weight_decay": wd}, {"params": filt, "weight_decay": 0.0, "lr": 1e-3}, {"params": rest, "weight_decay": 0.0}]


@torch.no_grad()
def score_variants(model, genome, n, L, device):
    model.eval()
    ref = genome.batch(n, L)[:, :-1].to(device)
    alt = ref.clone()
    alt[:, L // 2] = (alt[:, L // 2] + 1) % 4
    out = []
    for ids in (ref, alt):
        lp = F.log_softmax(model(ids[:, :-1]).float(), -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        out.append(lp.sum(1))
    return (out[1] - out[0]).cpu()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--dim", type=int, default=256)
    ap.add_argument("--depth", type=int, default=6)
    ap.add_argument("--schedule", default="2048x24x60,8192x6x60,20000x2x80", help="length x micro-batch x steps")
    ap.add_argument("--accum", type=int, default=3)
    ap.add_argument("--genome", type=int, default=2_000_000)
    ap.add_argument("--score-length", type=int, default=50_001)
    ap.add_argument("--score-n", type=int, default=2)
    a = ap.parse_args()
    torch.manual_seed(0)
    stages = [tuple(int(v) for v in s.split("x")) for s in a.schedule.split(",")]
    max_len = max(max(s[0] for s in stages), a.score_length)
    model = GenomeLM(a.dim, a.depth, max_len).to(a.device)
    opt = torch.optim.AdamW(param_groups(model, 0.1), lr=6e-4, betas=(0.9, 0.999))
    total = sum(s[2] for s in stages)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, [6e-4, 1e-3, 6e-4], total_steps=total, pct_start=0.1)
    genome = Genome(a.genome, 1)
    history = []
    for L, mb, steps in stages:
        model.train()
        t0 = time.perf_counter()
        for s in range(steps):
            acc = 0.0
            for _ in range(a.accum):
                x = genome.batch(mb, L).to(a.device)
                with torch.autocast(a.device, dtype=torch.bfloat16):
                    logits = model(x[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten()) / a.accum
                loss.backward()
                acc += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad(set_to_none=True)
        history.append({"length": L, "batch": mb, "loss": acc, "sec": time.perf_counter() - t0})
        print(json.dumps(history[-1]))
    delta = torch.cat([score_variants(model, genome, a.score_n, a.score_length, a.device) for _ in range(4)])
    print(f"variant effect mean {delta.mean():.3f} std {delta.std():.3f}")
    out = Path(tempfile.mkdtemp()) / "history.json"
    out.write_text(json.dumps(history, indent=1))


if __name__ == "__main__":
    main()
