"""
Sequence labelling for long documents: ALiBi transformer encoder + linear-chain CRF.
Documents are grouped into length buckets and padded to the bucket boundary.
"""
import math
import os
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

TINY = os.environ.get("TINY") == "1"
SCALE = float(os.environ.get("SCALE", "1"))

BUCKETS = [16, 32, 64] if TINY else [128, 256, 384, 512, 1024]
N_TAGS = 9
VOCAB = 200 if TINY else 12000
DIM = 32 if TINY else 384
HEADS = 2 if TINY else 6
DEPTH = 2 if TINY else 4
BATCH = max(1, round((3 if TINY else 12) * SCALE))


class AlibiAttention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)
        slopes = torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])
        self.register_buffer("slopes", slopes, persistent=False)

    def forward(self, x, mask):
        B, L, D = x.shape
        q, k, v = self.in_proj(x).view(B, L, 3, self.heads, self.hd).permute(2, 0, 3, 1, 4)
        pos = torch.arange(L, device=x.device)
        dist = (pos[None, :] - pos[:, None]).abs()
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.hd)
        scores = scores - self.slopes[:, None, None] * dist
        scores = scores.masked_fill(~mask[:, None, None, :], -1e4)
        attn = self.drop(scores.softmax(-1))
        return self.out_proj((attn @ v).transpose(1, 2).reshape(B, L, D))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, dropout=0.1):
        super().__init__()
        self.attn = AlibiAttention(dim, heads, dropout)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = x + self.drop(self.attn(self.n1(x), mask))
        return x + self.drop(self.ff(self.n2(x)))


class CRF(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.trans = nn.Parameter(torch.randn(n, n) * 0.1)
        self.start = nn.Parameter(torch.zeros(n))
        self.end = nn.Parameter(torch.zeros(n))

    def neg_log_likelihood(self, emis, tags, mask):
        return (self._partition(emis, mask) - self._score(emis, tags, mask)).mean()

    def _score(self, emis, tags, mask):
        m = mask.to(emis.dtype)
        e = emis.gather(2, tags.unsqueeze(2)).squeeze(2)
        score = self.start[tags[:, 0]] + (e * m).sum(1)
        score = score + (self.trans[tags[:, :-1], tags[:, 1:]] * m[:, 1:]).sum(1)
        last = tags.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
        return score + self.end[last]

    def _partition(self, emis, mask):
        alpha = self.start + emis[:, 0]
        for t in range(1, emis.size(1)):
            nxt = torch.logsumexp(alpha.unsqueeze(2) + self.trans, dim=1) + emis[:, t]
            alpha = torch.where(mask[:, t, None], nxt, alpha)
        return torch.logsumexp(alpha + self.end, dim=1)

    @torch.no_grad()
    def viterbi(self, emis, mask):
        score = self.start + emis[:, 0]
        history = []
        for t in range(1, emis.size(1)):
            best, idx = (score.unsqueeze(2) + self.trans).max(1)
            score = torch.where(mask[:, t, None], best + emis[:, t], score)
            history.append(torch.where(mask[:, t, None], idx, torch.arange(idx.size(1), device=idx.device)))
        tag = (score + self.end).argmax(1)
        path = [tag]
        for idx in reversed(history):
            tag = idx.gather(1, tag.unsqueeze(1)).squeeze(1)
            path.append(tag)
        return torch.stack(path[::-1], 1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM, padding_idx=0)
        self.layers = nn.ModuleList(EncoderLayer(DIM, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.emit = nn.Linear(DIM, N_TAGS)
        self.crf = CRF(N_TAGS)

    def encode(self, ids, mask):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.emit(self.norm(x))

    def forward(self, ids, tags, mask):
        return self.crf.neg_log_likelihood(self.encode(ids, mask), tags, mask)


def synth_docs(n, rng):
    """Tag of a token depends on token id modulo and on the previous token."""
    docs = []
    top = BUCKETS[-1]
    for _ in range(n):
        length = int(min(top // 2, max(8, rng.lognormvariate(math.log(BUCKETS[1]), 0.6))))
        if rng.random() < 0.06:
            length = rng.randint(top // 2 + 1, top)
        ids = [rng.randint(1, VOCAB - 1) for _ in range(length)]
        tags = [(a + b) % N_TAGS if a % 3 == 0 else 0 for a, b in zip(ids, [0] + ids[:-1])]
        docs.append((torch.tensor(ids), torch.tensor(tags)))
    return docs


def bucket_batches(docs, rng):
    groups = {b: [] for b in BUCKETS}
    for d in docs:
        groups[next(b for b in BUCKETS if len(d[0]) <= b)].append(d)
    batches = []
    for b, items in groups.items():
        rng.shuffle(items)
        for i in range(0, len(items), BATCH):
            batches.append((b, items[i:i + BATCH]))
    rng.shuffle(batches)
    return batches


def collate(bucket, items, device):
    ids = torch.zeros(len(items), bucket, dtype=torch.long)
    tags = torch.zeros(len(items), bucket, dtype=torch.long)
    padded = pad_sequence([d[0] for d in items], batch_first=True)
    ids[:, :padded.size(1)] = padded
    tags[:, :padded.size(1)] = pad_sequence([d[1] for d in items], batch_first=True)
    return ids.to(device), tags.to(device), (ids != 0).to(device)


def main():
    rng = random.Random(3)
    torch.manual_seed(3)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    n_batches = 6 if TINY else 22
    docs = synth_docs(BATCH * n_batches, rng)
    batches = bucket_batches(docs, rng)

    model = Tagger().to(device)
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-4, alpha=0.95, momentum=0.5, centered=True)
    for i, (bucket, items) in enumerate(batches):
        ids, tags, mask = collate(bucket, items, device)
        loss = model(ids, tags, mask)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        opt.step()
        if i % 3 == 0:
            print(f"batch {i:2d} len {bucket:4d} x {len(items):2d} nll/tok {loss.item() / mask.sum(1).float().mean().item():.4f}")

    model.eval()
    bucket, items = next(x for x in batches if x[0] == BUCKETS[0])
    ids, tags, mask = collate(bucket, items, device)
    with torch.no_grad():
        pred = model.crf.viterbi(model.encode(ids, mask), mask)
    print(f"accuracy {(pred[mask] == tags[mask]).float().mean().item():.4f}")
    print("done")


if __name__ == "__main__":
    main()
