"""Speech recognition with a convolutional front end, packed bidirectional LSTMs and CTC. Plain fp32."""
import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset


class Speech(Dataset):
    def __init__(self, n, mels, alphabet, seed, lo=350, hi=1300):
        g = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(lo, hi, (n,), generator=g).tolist()
        self.mels, self.alphabet, self.seed = mels, alphabet, seed

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 7 + i)
        t = self.lengths[i]
        text = torch.randint(1, self.alphabet, (t // 14,), generator=g)
        frames = torch.randn(t, self.mels, generator=g) * 0.4
        spans = torch.linspace(0, t, len(text) + 1).long()
        for c, a, b in zip(text.tolist(), spans[:-1].tolist(), spans[1:].tolist()):
            frames[a:b, c % self.mels] += 1.5
        return frames, text


def collate(rows):
    rows.sort(key=lambda r: -len(r[0]))
    x = nn.utils.rnn.pad_sequence([r[0] for r in rows], batch_first=True)
    return x, torch.tensor([len(r[0]) for r in rows]), torch.cat([r[1] for r in rows]), \
        torch.tensor([len(r[1]) for r in rows])


class Recognizer(nn.Module):
    def __init__(self, mels, hidden, layers, alphabet, channels=32):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, channels, (11, 21), stride=(2, 2), padding=(5, 10)), nn.BatchNorm2d(channels), nn.Hardtanh(0, 20),
            nn.Conv2d(channels, channels, (11, 11), stride=(1, 2), padding=(5, 5)), nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20))
        freq = ((mels + 1) // 2 + 1) // 2
        self.rnns, self.norms = nn.ModuleList(), nn.ModuleList()
        size = channels * freq
        for _ in range(layers):
            self.norms.append(nn.LayerNorm(size))
            self.rnns.append(nn.LSTM(size, hidden, bidirectional=True, batch_first=True))
            size = 2 * hidden
        self.drop = nn.Dropout(0.15)
        self.out = nn.Linear(size, alphabet)

    def forward(self, x, lengths):
        x = self.front(x.unsqueeze(1))
        x = x.transpose(1, 2).flatten(2)
        lengths = (lengths + 1) // 2
        for norm, rnn in zip(self.norms, self.rnns):
            packed = pack_padded_sequence(norm(x), lengths, batch_first=True)
            y, _ = rnn(packed)
            y, _ = pad_packed_sequence(y, batch_first=True)
            x = self.drop(y) + x if x.shape == y.shape else self.drop(y)
        return self.out(x).log_softmax(-1), lengths


def collapse(path, blank=0):
    out, prev = [], blank
    for c in path:
        if c != prev and c != blank:
            out.append(c)
        prev = c
    return out


@torch.no_grad()
def evaluate(model, loader, ctc):
    model.eval()
    loss_sum, produced, expected = 0.0, 0, 0
    for x, lens, text, text_lens in loader:
        logp, out_lens = model(x.cuda(), lens)
        loss_sum += ctc(logp.transpose(0, 1), text.cuda(), out_lens, text_lens).item()
        paths = logp.argmax(-1).cpu().tolist()
        produced += sum(len(collapse(p[:n])) for p, n in zip(paths, out_lens.tolist()))
        expected += int(text_lens.sum())
    model.train()
    return loss_sum / len(loader), produced / expected


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--mels", type=int, default=81)
    ap.add_argument("--hidden", type=int, default=600)
    ap.add_argument("--layers", type=int, default=5)
    ap.add_argument("--alphabet", type=int, default=45)
    ap.add_argument("--batch", type=int, default=26)
    ap.add_argument("--utterances", type=int, default=780)
    ap.add_argument("--epochs", type=int, default=1)
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--seed", type=int, default=8)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    model = Recognizer(args.mels, args.hidden, args.layers, args.alphabet).cuda()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.995)
    train = DataLoader(Speech(args.utterances, args.mels, args.alphabet, 1), args.batch, shuffle=True,
                       collate_fn=collate, num_workers=2)
    valid = DataLoader(Speech(60, args.mels, args.alphabet, 2), 20, collate_fn=collate)

    for epoch in range(args.epochs):
        for it, (x, lens, text, text_lens) in enumerate(train):
            logp, out_lens = model(x.cuda(non_blocking=True), lens)
            loss = ctc(logp.transpose(0, 1), text.cuda(), out_lens, text_lens)
            opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            opt.step()
            sched.step()
            if it % 10 == 0:
                print(f"{epoch}:{it} frames {x.shape[1]} loss {loss.item():.3f} norm {norm.item():.1f}", flush=True)
        val, ratio = evaluate(model, valid, ctc)
        print(f"epoch {epoch} valid loss {val:.3f} length ratio {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
