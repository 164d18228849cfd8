"""DeepSpeech-like acoustic model: conv front-end, bidirectional LSTMs on packed sequences, CTC."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


class SpecAugment(nn.Module):
    def __init__(self, freq=15, time=50):
        super().__init__()
        self.freq, self.time = freq, time

    def forward(self, x):
        if not self.training:
            return x
        x = x.clone()
        for i in range(x.shape[0]):
            f0 = int(torch.randint(0, x.shape[2] - self.freq, (1,)))
            t0 = int(torch.randint(0, max(1, x.shape[1] - self.time), (1,)))
            x[i, :, f0:f0 + self.freq] = 0
            x[i, t0:t0 + self.time] = 0
        return x


class AcousticModel(nn.Module):
    def __init__(self, mels, hidden, layers, vocab, dropout=0.2):
        super().__init__()
        self.augment = SpecAugment(freq=min(15, mels // 4))
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, (11, 11), stride=(2, 2), padding=(5, 5), bias=False),
            nn.BatchNorm2d(32), nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(32, 32, (11, 11), stride=(1, 2), padding=(5, 5), bias=False),
            nn.BatchNorm2d(32), nn.Hardtanh(0, 20, inplace=True))
        self.rnn = nn.LSTM(32 * ((mels + 3) // 4), hidden, num_layers=layers, dropout=dropout,
                           bidirectional=True, batch_first=True)
        self.norm = nn.LayerNorm(2 * hidden)
        self.out = nn.Linear(2 * hidden, vocab)

    def forward(self, feats, lengths):
        x = self.conv(self.augment(feats).unsqueeze(1))
        lengths = (lengths + 1) // 2
        b, c, t, f = x.shape
        x = x.permute(0, 2, 1, 3).reshape(b, t, c * f)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)
        x, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return F.log_softmax(self.out(self.norm(x)), dim=-1), lengths


def synth_batch(args):
    """Utterances of random lengths, sorted from longest to shortest as the loader would."""
    lengths = torch.randint(args.frames // 2, args.frames + 1, (args.batch,)).sort(descending=True).values
    lengths[0] = args.frames
    feats = pad_sequence([torch.randn(int(n), args.mels) for n in lengths], batch_first=True)
    tgt_len = (lengths // 12).clamp(min=1)
    targets = torch.randint(1, args.vocab, (int(tgt_len.sum()),))
    return feats, lengths, targets, tgt_len


def greedy_decode(logp, lengths):
    best = logp.argmax(-1).cpu()
    hyps = []
    for row, n in zip(best, lengths.tolist()):
        row = torch.unique_consecutive(row[:n])
        hyps.append(row[row != 0].tolist())
    return hyps


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=48)
    p.add_argument("--frames", type=int, default=1500)
    p.add_argument("--mels", type=int, default=80)
    p.add_argument("--hidden", type=int, default=1024)
    p.add_argument("--layers", type=int, default=5)
    p.add_argument("--vocab", type=int, default=1024)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--lr", type=float, default=3e-4)
    args = p.parse_args()

    torch.manual_seed(3)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = AcousticModel(args.mels, args.hidden, args.layers, args.vocab).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-2)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=args.lr, total_steps=args.steps + 1)
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    print(f"{sum(q.numel() for q in model.parameters()) / 1e6:.1f}M parameters")

    model.train()
    for step in range(args.steps):
        feats, lengths, targets, tgt_len = synth_batch(args)
        logp, out_len = model(feats.to(device), lengths)
        loss = ctc(logp.transpose(0, 1), targets.to(device), out_len, tgt_len)
        opt.zero_grad()
        loss.backward()
        gnorm = nn.utils.clip_grad_norm_(model.parameters(), 400.0)
        opt.step()
        sched.step()
        print(f"step {step} ctc {loss.item():.3f} grad {gnorm.item():.2f}")

    model.eval()
    with torch.no_grad():
        feats, lengths, targets, tgt_len = synth_batch(args)
        logp, out_len = model(feats.to(device), lengths)
        loss = ctc(logp.transpose(0, 1), targets.to(device), out_len, tgt_len)
        hyps = greedy_decode(logp, out_len)
    print(f"dev ctc {loss.item():.3f}, mean hypothesis length {sum(map(len, hyps)) / len(hyps):.1f}")


if __name__ == "__main__":
    main()
