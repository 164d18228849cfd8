# Speech recogniser: strided 1-D convolutions on raw audio, bidirectional LSTM, CTC loss.
import argparse
import os
import tempfile

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

RATE = 16000


class Utterances(Dataset):
    def __init__(self, n, vocab, lo, hi, seed):
        g = torch.Generator().manual_seed(seed)
        self.lengths = (torch.rand(n, generator=g) * (hi - lo) + lo).mul(RATE).long()
        self.vocab, self.seed = vocab, seed

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        n = int(self.lengths[i])
        g = torch.Generator().manual_seed(self.seed * 31337 + i)
        tokens = torch.randint(1, self.vocab, (max(2, n // (RATE // 4)),), generator=g)
        pitch = tokens.repeat_interleave(-(-n // len(tokens)))[:n].float()
        wave = torch.sin(torch.arange(n) * (0.02 + 0.01 * pitch))
        return wave + 0.05 * torch.randn(n, generator=g), tokens


class LengthSorted(Sampler):
    """Batches of similar length, in random order."""

    def __init__(self, lengths, batch, seed):
        order = torch.argsort(lengths).tolist()
        self.batches = [order[i:i + batch] for i in range(0, len(order), batch)]
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        for j in torch.randperm(len(self.batches), generator=self.gen).tolist():
            yield self.batches[j]

    def __len__(self):
        return len(self.batches)


def collate(items):
    waves, tokens = zip(*items)
    return (pad_sequence(waves, batch_first=True), torch.tensor([len(w) for w in waves]),
            torch.cat(tokens), torch.tensor([len(t) for t in tokens]))


class ConvBlock(nn.Module):
    def __init__(self, cin, cout, kernel, stride):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, kernel, stride, bias=False)
        self.norm = nn.GroupNorm(8, cout)
        self.kernel, self.stride = kernel, stride

    def forward(self, x):
        return nn.functional.gelu(self.norm(self.conv(x)))

    def out_length(self, n):
        return torch.div(n - self.kernel, self.stride, rounding_mode="floor") + 1


class Recogniser(nn.Module):
    def __init__(self, vocab, width, hidden, layers):
        super().__init__()
        self.convs = nn.ModuleList([
            ConvBlock(1, width // 2, 11, 5), ConvBlock(width // 2, width, 5, 4),
            ConvBlock(width, width, 3, 2), ConvBlock(width, width, 3, 2), ConvBlock(width, width, 3, 2),
        ])
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True, bidirectional=True, dropout=0.15)
        self.head = nn.Sequential(nn.LayerNorm(2 * hidden), nn.Dropout(0.1), nn.Linear(2 * hidden, vocab))

    def forward(self, wave, lengths):
        x = wave.unsqueeze(1)
        for conv in self.convs:
            x = conv(x)
            lengths = conv.out_length(lengths)
        packed = pack_padded_sequence(x.transpose(1, 2), lengths.cpu(), batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(y).log_softmax(-1), lengths


def run(model, loader, ctc, device, opt=None, sched=None):
    model.train(opt is not None)
    total = 0.0
    with torch.set_grad_enabled(opt is not None):
        for i, (wave, n, tokens, m) in enumerate(loader):
            logp, frames = model(wave.to(device), n)
            loss = ctc(logp.transpose(0, 1), tokens.to(device), frames, m)
            if opt is not None:
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 3.0)
                opt.step()
                sched.step()
                if i % 10 == 0:
                    print(f"  it {i} audio {tuple(wave.shape)} ctc {loss.item():.3f}")
            total += loss.item()
    return total / len(loader)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=48)
    ap.add_argument("--width", type=int, default=320)
    ap.add_argument("--hidden", type=int, default=416)
    ap.add_argument("--layers", type=int, default=4)
    ap.add_argument("--batch", type=int, default=26)
    ap.add_argument("--items", type=int, default=780)
    ap.add_argument("--max-seconds", type=float, default=9.5)
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()

    torch.manual_seed(700)
    torch.set_num_threads(2)
    device = torch.device("cuda")
    model = Recogniser(args.vocab, args.width, args.hidden, args.layers).to(device)
    print(sum(p.numel() for p in model.parameters()) / 1e6, "M parameters")
    train_set = Utterances(args.items, args.vocab, 2.0, args.max_seconds, 1)
    val_set = Utterances(args.items // 8, args.vocab, 2.0, args.max_seconds, 2)
    train = DataLoader(train_set, batch_sampler=LengthSorted(train_set.lengths, args.batch, 4),
                       collate_fn=collate, num_workers=2)
    val = DataLoader(val_set, batch_size=args.batch, collate_fn=collate)
    opt = torch.optim.NAdam(model.parameters(), lr=4e-4, weight_decay=1e-5)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(train))
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    with tempfile.TemporaryDirectory() as tmp:
        for epoch in range(args.epochs):
            print(f"epoch {epoch} train {run(model, train, ctc, device, opt, sched):.4f}")
            print(f"epoch {epoch} val   {run(model, val, ctc, device):.4f}")
            torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, os.path.join(tmp, f"{epoch}.pt"))


if __name__ == "__main__":
    main()
