"""AWD-style LSTM language model: truncated BPTT of random length, variational dropout, tied weights, SGD."""
import argparse
import math
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class LockedDropout(nn.Module):
    """The same mask for every time step."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        mask = x.new_empty(1, x.size(1), x.size(2)).bernoulli_(1 - self.p) / (1 - self.p)
        return x * mask


class WordLM(nn.Module):
    def __init__(self, vocab, emb, hid, layers, p_in=0.4, p_h=0.25, p_out=0.4):
        super().__init__()
        self.encoder = nn.Embedding(vocab, emb)
        sizes = [emb] + [hid] * (layers - 1) + [emb]
        self.rnns = nn.ModuleList(nn.LSTM(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
        self.decoder = nn.Linear(emb, vocab)
        self.decoder.weight = self.encoder.weight
        self.drop_in, self.drop_h, self.drop_out = LockedDropout(p_in), LockedDropout(p_h), LockedDropout(p_out)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def initial(self, batch):
        w = next(self.parameters())
        return [(w.new_zeros(1, batch, r.hidden_size), w.new_zeros(1, batch, r.hidden_size)) for r in self.rnns]

    def forward(self, tokens, state):
        x = self.drop_in(self.encoder(tokens))
        new_state = []
        for i, (rnn, s) in enumerate(zip(self.rnns, state)):
            raw, s = rnn(x, s)
            new_state.append(s)
            x = self.drop_out(raw) if i == len(self.rnns) - 1 else self.drop_h(raw)
        return self.decoder(x), raw, x, new_state


def detach(state):
    return [tuple(t.detach() for t in s) for s in state]


def batchify(stream, batch):
    n = len(stream) // batch
    return stream[: n * batch].view(batch, n).t().contiguous().to("cuda")


def make_corpus(n, vocab, seed):
    rng = np.random.default_rng(seed)
    ranks = np.minimum(rng.zipf(1.25, n), vocab) - 1
    copy = rng.random(n) < 0.35
    ranks[5:] = np.where(copy[5:], ranks[:-5], ranks[5:])
    return torch.from_numpy(ranks.astype(np.int64))


def evaluate(model, data, bptt):
    model.eval()
    state = model.initial(data.size(1))
    total, count = 0.0, 0
    with torch.no_grad():
        for i in range(0, data.size(0) - 1, bptt):
            n = min(bptt, data.size(0) - 1 - i)
            logits, _, _, state = model(data[i:i + n], state)
            target = data[i + 1:i + 1 + n]
            total += F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum").item()
            count += target.numel()
    return total / count


def train_epoch(model, data, opt, args, rng, lr):
    model.train()
    state = model.initial(data.size(1))
    i, step, running, t0 = 0, 0, 0.0, time.time()
    while i < data.size(0) - 2:
        base = args.bptt if rng.random() < 0.95 else args.bptt / 2
        n = max(5, int(rng.normal(base, 5)))
        n = min(n, data.size(0) - 1 - i)
        for group in opt.param_groups:
            group["lr"] = lr * n / args.bptt
        state = detach(state)
        logits, raw, dropped, state = model(data[i:i + n], state)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), data[i + 1:i + 1 + n].view(-1))
        full = loss + args.alpha * dropped.pow(2).mean()
        if n > 1:
            full = full + args.beta * (raw[1:] - raw[:-1]).pow(2).mean()
        opt.zero_grad()
        full.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        opt.step()
        running += loss.item()
        i += n
        step += 1
        if step % 10 == 0:
            print(f"  step {step} bptt {n} loss {running / 10:.3f} ms/step {(time.time() - t0) * 100:.0f}")
            running, t0 = 0.0, time.time()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=33278)
    ap.add_argument("--emb", type=int, default=400)
    ap.add_argument("--hid", type=int, default=1150)
    ap.add_argument("--layers", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=80)
    ap.add_argument("--eval-batch", type=int, default=10)
    ap.add_argument("--bptt", type=int, default=70)
    ap.add_argument("--tokens", type=int, default=280_000)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=15.0)
    ap.add_argument("--clip", type=float, default=0.25)
    ap.add_argument("--alpha", type=float, default=2.0)
    ap.add_argument("--beta", type=float, default=1.0)
    args = ap.parse_args()
    torch.manual_seed(141)
    torch.set_float32_matmul_precision("high")
    rng = np.random.default_rng(141)

    train = batchify(make_corpus(args.tokens, args.vocab, 0), args.batch_size)
    valid = batchify(make_corpus(args.tokens // 10, args.vocab, 1), args.eval_batch)
    model = WordLM(args.vocab, args.emb, args.hid, args.layers).to("cuda")
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=1.2e-6)

    lr, best = args.lr, float("inf")
    path = os.path.join(tempfile.mkdtemp(), "lm.pt")
    for epoch in range(args.epochs):
        train_epoch(model, train, opt, args, rng, lr)
        val = evaluate(model, valid, args.bptt)
        print(f"epoch {epoch} valid loss {val:.3f} ppl {math.exp(min(val, 20)):.1f} lr {lr}")
        if val < best:
            best = val
            torch.save(model.state_dict(), path)
        else:
            lr /= 4


if __name__ == "__main__":
    main()
