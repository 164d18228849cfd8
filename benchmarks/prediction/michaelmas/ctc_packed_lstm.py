"""Speech recogniser: conv subsampling + packed bidirectional LSTM + CTC, length-bucketed batches, early stopping."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

class Utterances(torch.utils.data.Dataset):
    def __init__(self, n, feats, vocab, max_len, seed):
        g = torch.Generator().manual_seed(seed)
        self.lens = torch.randint(max_len // 4, max_len, (n,), generator=g)
        self.feats, self.vocab, self.seed = feats, vocab, seed

    def __len__(self):
        return len(self.lens)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + int(i))
        n = int(self.lens[i])
        return torch.randn(n, self.feats, generator=g), torch.randint(1, self.vocab, (max(1, n // 16),), generator=g)

class FrameBudgetSampler(torch.utils.data.Sampler):
    """Sorts by length and fills each batch up to a frame budget."""

    def __init__(self, lens, budget, seed):
        order, batch, longest = lens.argsort().tolist(), [], 0
        self.batches = []
        for i in order:
            longest = max(longest, int(lens[i]))
            if batch and longest * (len(batch) + 1) > budget:
                self.batches.append(batch)
                batch, longest = [], int(lens[i])
            batch.append(i)
        self.batches.append(batch)
        self.g = torch.Generator().manual_seed(seed)

    def __iter__(self):
        for j in torch.randperm(len(self.batches), generator=self.g).tolist():
            yield self.batches[j]

    def __len__(self):
        return len(self.batches)

def collate(items):
    x, y = zip(*items)
    return (pad_sequence(x, batch_first=True), torch.tensor([len(v) for v in x]), torch.cat(y),
            torch.tensor([len(v) for v in y]))

class Recogniser(nn.Module):
    def __init__(self, feats, hidden, layers, vocab):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 48, 3, 2, 1), nn.BatchNorm2d(48), nn.Hardtanh(0, 20, inplace=True),
                                  nn.Conv2d(48, 48, 3, (1, 2), 1), nn.BatchNorm2d(48),
                                  nn.Hardtanh(0, 20, inplace=True))
        self.lstm = nn.LSTM(48 * ((feats + 3) // 4), hidden, layers, batch_first=True, bidirectional=True, dropout=0.1)
        self.norm = nn.LayerNorm(2 * hidden)
        self.out = nn.Linear(2 * hidden, vocab)

    def forward(self, x, lens):
        x = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)
        h = self.conv(x.unsqueeze(1)).permute(0, 2, 1, 3).flatten(2)
        lens = (lens + 1) // 2
        packed = pack_padded_sequence(h, lens.cpu(), batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return F.log_softmax(self.out(self.norm(h)), -1), lens

def run_epoch(model, loader, opt, limit):
    model.train(opt is not None)
    total = n = 0
    for i, (x, xl, y, yl) in enumerate(loader):
        if i == limit:
            break
        x, y = x.to("cuda"), y.to("cuda")
        with torch.set_grad_enabled(opt is not None):
            logp, out_len = model(x, xl)
            loss = F.ctc_loss(logp.transpose(0, 1), y, out_len, yl, zero_infinity=True)
        if opt is not None:
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            print(f"  batch {i} {tuple(x.shape)} loss {loss.item():.4f}")
        total, n = total + loss.item(), n + 1
    return total / n

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--utts", type=int, default=600)
    ap.add_argument("--budget", type=int, default=48000)
    ap.add_argument("--max-len", type=int, default=1600)
    ap.add_argument("--hidden", type=int, default=768)
    ap.add_argument("--layers", type=int, default=4)
    ap.add_argument("--limit", type=int, default=5)
    ap.add_argument("--epochs", type=int, default=3)
    a = ap.parse_args()
    torch.manual_seed(5)
    sets = [Utterances(n, 80, 1024, a.max_len, s) for n, s in ((a.utts, 1), (a.utts // 6, 2))]
    train, val = [torch.utils.data.DataLoader(d, batch_sampler=FrameBudgetSampler(d.lens, a.budget, 0),
                                              collate_fn=collate, pin_memory=True) for d in sets]
    model = Recogniser(80, a.hidden, a.layers, 1024).to("cuda")
    opt = torch.optim.Adam(model.parameters(), lr=4e-4)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    best, bad = float("inf"), 0
    for epoch in range(a.epochs):
        tr = run_epoch(model, train, opt, a.limit)
        va = run_epoch(model, val, None, 3)
        sched.step(va)
        print(f"epoch {epoch} train {tr:.4f} val {va:.4f} lr {opt.param_groups[0]['lr']:.2e}")
        bad = 0 if va < best - 1e-3 else bad + 1
        best = min(best, va)
        if bad >= 2:
            print("early stop")
            break

if __name__ == "__main__":
    main()
