# Speech transducer (RNN-T): LSTM encoder, prediction network, joint network, loss in plain torch.
# Utterances come in length buckets, so every step has another (T, U).
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence, pack_padded_sequence, pad_packed_sequence

device = "cuda"
scale = float(os.environ.get("SCALE", "1"))
VOCAB = 500
MELS = 80


class Encoder(nn.Module):
    def __init__(self, dim=640, layers=4):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv1d(MELS, 256, 5, stride=2, padding=2), nn.ReLU(),
                                 nn.Conv1d(256, 256, 5, stride=2, padding=2), nn.ReLU())
        self.rnn = nn.LSTM(256, dim // 2, layers, batch_first=True, bidirectional=True, dropout=0.1)

    def forward(self, x, lens):
        x = self.sub(x.transpose(1, 2)).transpose(1, 2)
        lens = (lens + 3) // 4
        packed = pack_padded_sequence(x, lens.cpu(), batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return y, lens


class Predictor(nn.Module):
    def __init__(self, dim=640):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True)

    def forward(self, y, state=None):
        return self.rnn(self.emb(y), state)


class Transducer(nn.Module):
    def __init__(self, dim=640, joint=512):
        super().__init__()
        self.enc, self.pred = Encoder(dim), Predictor(dim)
        self.fe, self.fp = nn.Linear(dim, joint), nn.Linear(dim, joint)
        self.out = nn.Linear(joint, VOCAB)

    def joint(self, e, p):
        return self.out(torch.tanh(self.fe(e).unsqueeze(2) + self.fp(p).unsqueeze(1)))

    def forward(self, x, xl, y):
        e, el = self.enc(x, xl)
        p, _ = self.pred(F.pad(y, (1, 0)))          # blank as the start symbol
        return self.joint(e, p), el


def rnnt_loss(logits, targets, tlen, ulen, blank=0):
    lp = logits.float().log_softmax(-1)
    B, T, U1, _ = lp.shape
    b = lp[..., blank]
    e = lp[:, :, :-1].gather(3, targets[:, None, :, None].expand(B, T, U1 - 1, 1)).squeeze(3)
    cum = F.pad(e.cumsum(2), (1, 0))                # sum of emissions along u for one frame
    alpha = cum[:, 0]
    rows = [alpha]
    for t in range(1, T):
        stay = alpha + b[:, t - 1]
        alpha = cum[:, t] + torch.logcumsumexp(stay - cum[:, t], dim=1)
        rows.append(alpha)
    rows = torch.stack(rows, 1)
    i = torch.arange(B, device=logits.device)
    total = rows[i, tlen - 1, ulen] + b[i, tlen - 1, ulen]
    return -(total / ulen).mean()


def corpus(n, seed):
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        u = rng.choice([rng.randint(4, 10), rng.randint(8, 24), rng.randint(20, 44)])
        frames = u * rng.randint(14, 20) + rng.randint(10, 60)
        out.append((frames, u, rng.randint(0, 1 << 30)))
    return out


def buckets(items, frames_per_batch, seed):
    """Sort by length, fill batches up to a frame budget, shuffle the batches."""
    batches, cur, longest = [], [], 0
    for it in sorted(items):
        longest = max(longest, it[0])
        if cur and longest * (len(cur) + 1) > frames_per_batch:
            batches.append(cur)
            cur, longest = [], it[0]
        cur.append(it)
    batches.append(cur)
    random.Random(seed).shuffle(batches)
    return batches


def collate(batch):
    xs, ys = [], []
    for frames, u, seed in batch:
        g = torch.Generator().manual_seed(seed)
        ys.append(torch.randint(1, VOCAB, (u,), generator=g))
        xs.append(torch.randn(frames, MELS, generator=g))
    xl, yl = torch.tensor([len(x) for x in xs]), torch.tensor([len(y) for y in ys])
    x, y = pad_sequence(xs, batch_first=True), pad_sequence(ys, batch_first=True)
    return x.to(device), xl.to(device), y.to(device), yl.to(device)


@torch.no_grad()
def greedy(model, x, xl, max_symbols=3):
    model.eval()
    e, el = model.enc(x[:1], xl[:1])
    hyp = []
    p, state = model.pred(torch.zeros(1, 1, dtype=torch.long, device=device))
    for t in range(int(el[0])):
        for _ in range(max_symbols):
            k = model.joint(e[:, t:t + 1], p)[0, 0, 0].argmax().item()
            if k == 0:
                break
            hyp.append(k)
            p, state = model.pred(torch.tensor([[k]], device=device), state)
    model.train()
    return hyp


def main():
    torch.manual_seed(5)
    model = Transducer().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    train = buckets(corpus(int(os.environ.get("UTTERANCES", "900")), 5), int(9000 * scale), 5)
    print("batches", len(train), "largest", max(len(b) for b in train))
    for step, batch in enumerate(train):
        x, xl, y, yl = collate(batch)
        logits, el = model(x, xl, y)
        loss = rnnt_loss(logits, y, el, yl)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 5 == 0:
            print(f"step {step} B {len(batch)} T {logits.shape[1]} U {logits.shape[2]} loss {loss.item():.3f}", flush=True)
    print("greedy", len(greedy(model, x, xl)), "symbols")


if __name__ == "__main__":
    main()
