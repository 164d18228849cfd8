"""Word-level language model: three LSTM layers with variational dropout, adaptive softmax over a large vocabulary, tied nothing.

Truncated backpropagation with a random length per step (as in AWD-LSTM), activation regularisation, SGD that turns into ASGD.
TF32 for cuDNN and matmuls; evaluation in longer pieces with carried state.
"""
import argparse
import math
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn


def zipf_stream(n, vocab, seed):
    rng = np.random.default_rng(seed)
    ranks = np.minimum(rng.zipf(1.25, n) - 1, vocab - 1)
    ranks[1::3] = (ranks[0::3][: len(ranks[1::3])] * 7 + 3) % vocab  # something to learn
    return torch.from_numpy(ranks.astype(np.int64))


def batchify(stream, rows, device):
    cols = len(stream) // rows
    return stream[: cols * rows].view(rows, cols).t().contiguous().to(device)


class LockedDropout(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        mask = x.new_empty(1, *x.shape[1:]).bernoulli_(1 - self.p).div_(1 - self.p)
        return x * mask


class WordModel(nn.Module):
    def __init__(self, vocab, embed, hidden, layers, cutoffs, p_in=0.4, p_hidden=0.25, p_out=0.4, p_word=0.1):
        super().__init__()
        self.embed = nn.Embedding(vocab, embed)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        sizes = [embed] + [hidden] * (layers - 1) + [embed]
        self.rnns = nn.ModuleList(nn.LSTM(a, b) for a, b in zip(sizes, sizes[1:]))
        self.drop_in, self.drop_hidden, self.drop_out = LockedDropout(p_in), LockedDropout(p_hidden), LockedDropout(p_out)
        self.p_word = p_word
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(embed, vocab, cutoffs, div_value=3.0, head_bias=True)

    def words(self, ids):
        w = self.embed.weight
        if self.training and self.p_word > 0:
            keep = w.new_empty(w.shape[0], 1).bernoulli_(1 - self.p_word).div_(1 - self.p_word)
            w = w * keep
        return nn.functional.embedding(ids, w)

    def forward(self, ids, state):
        x, new = self.drop_in(self.words(ids)), []
        for k, (rnn, s) in enumerate(zip(self.rnns, state)):
            x, s = rnn(x, s)
            new.append(s)
            if k < len(self.rnns) - 1:
                x = self.drop_hidden(x)
        return x, self.drop_out(x), new

    def start(self, rows):
        p = next(self.parameters())
        return [(p.new_zeros(1, rows, r.hidden_size), p.new_zeros(1, rows, r.hidden_size)) for r in self.rnns]


def detach(state):
    return [tuple(t.detach() for t in s) for s in state]


@torch.no_grad()
def perplexity(model, data, piece):
    model.eval()
    state, total, count = model.start(data.shape[1]), 0.0, 0
    for i in range(0, len(data) - 1, piece):
        x, y = data[i: i + piece], data[i + 1: i + 1 + piece]
        x = x[: len(y)]
        _, out, state = model(x, state)
        total += model.softmax(out.flatten(0, 1), y.flatten()).loss.item() * y.numel()
        count += y.numel()
    model.train()
    return math.exp(min(20.0, total / count))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=110000)
    ap.add_argument("--cutoffs", type=int, nargs="+", default=[4000, 20000, 60000])
    ap.add_argument("--embed", type=int, default=480)
    ap.add_argument("--hidden", type=int, default=1350)
    ap.add_argument("--layers", type=int, default=3)
    ap.add_argument("--rows", type=int, default=150)
    ap.add_argument("--bptt", type=int, default=70)
    ap.add_argument("--tokens", type=int, default=700000)
    ap.add_argument("--lr", type=float, default=8.0)
    ap.add_argument("--alpha", type=float, default=2.0)
    ap.add_argument("--beta", type=float, default=1.0)
    args = ap.parse_args()
    torch.manual_seed(1111)
    rng = np.random.default_rng(1111)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    device = torch.device("cuda")
    train = batchify(zipf_stream(args.tokens, args.vocab, 1), args.rows, device)
    valid = batchify(zipf_stream(args.tokens // 8, args.vocab, 2), 20, device)
    model = WordModel(args.vocab, args.embed, args.hidden, args.layers, args.cutoffs).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {len(train)} columns")
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=1.2e-6)
    half, history, t0 = len(train) // 2, [], time.time()
    state, i, step = model.start(args.rows), 0, 0
    while i < len(train) - 2:
        base = args.bptt if rng.random() < 0.95 else args.bptt / 2
        length = min(max(5, int(rng.normal(base, 5))), len(train) - 1 - i)
        x, y = train[i: i + length], train[i + 1: i + 1 + length]
        scale = length / args.bptt
        for g in opt.param_groups:
            g["lr"] = args.lr * scale
        state = detach(state)
        raw, out, state = model(x, state)
        loss = model.softmax(out.flatten(0, 1), y.flatten()).loss
        full = loss + args.alpha * out.square().mean() + args.beta * (raw[1:] - raw[:-1]).square().mean()
        opt.zero_grad()
        full.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        opt.step()
        i, step = i + length, step + 1
        history.append(loss.item())
        if step % 10 == 0:
            print(f"step {step} length {length} loss {np.mean(history[-10:]):.3f} {time.time() - t0:.1f} s", flush=True)
        if isinstance(opt, torch.optim.SGD) and i > half:
            print(f"valid perplexity {perplexity(model, valid, 2 * args.bptt):.1f}; averaging from here", flush=True)
            opt = torch.optim.ASGD(model.parameters(), lr=args.lr, t0=0, lambd=0.0, weight_decay=1.2e-6)
    backup = {p: p.detach().clone() for p in model.parameters()}
    with torch.no_grad():
        for p in model.parameters():
            if "ax" in opt.state[p]:
                p.copy_(opt.state[p]["ax"])
    print(f"perplexity with averaged weights {perplexity(model, valid, 2 * args.bptt):.1f}")
    with tempfile.TemporaryDirectory() as tmp:
        torch.save(model.state_dict(), os.path.join(tmp, "averaged.pt"))
    with torch.no_grad():
        for p, b in backup.items():
            p.copy_(b)
    print(f"perplexity with last weights {perplexity(model, valid, 2 * args.bptt):.1f}")


if __name__ == "__main__":
    main()
