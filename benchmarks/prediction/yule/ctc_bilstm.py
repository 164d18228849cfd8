"""CTC speech recogniser: log-mel from STFT, conv subsampling, packed BiLSTM, greedy decoding, early stopping."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


class FakeSpeech(Dataset):
    def __init__(self, n, sr, lo, hi, vocab):
        g = torch.Generator().manual_seed(n)
        self.sec, self.sr, self.vocab = torch.rand(n, generator=g) * (hi - lo) + lo, sr, vocab

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = int(self.sec[i] * self.sr)
        text = torch.randint(1, self.vocab, (max(2, int(self.sec[i] * 8)),), generator=g)
        tone = F.interpolate(text[None, None].float(), size=n)[0, 0]
        return torch.sin(torch.cumsum(tone * 80 + 200, 0) * 2 * math.pi / self.sr) + 0.1 * torch.randn(n, generator=g), text


def buckets(sec, max_sec):
    batches = [[]]
    for i in sec.argsort().tolist():
        if batches[-1] and float(sec[i]) * (len(batches[-1]) + 1) > max_sec:
            batches.append([])
        batches[-1].append(i)
    return [batches[j] for j in torch.randperm(len(batches))]


def collate(items):
    waves, texts = zip(*items)
    return (pad_sequence(waves, batch_first=True), torch.tensor([len(w) for w in waves]),
            torch.cat(texts), torch.tensor([len(t) for t in texts]))


class LogMel(nn.Module):
    def __init__(self, sr=16000, mels=80):
        super().__init__()
        pts = 700 * (10 ** (torch.linspace(0, 2595 * math.log10(1 + sr / 1400), mels + 2) / 2595) - 1)
        f = torch.linspace(0, sr / 2, 257)[:, None]
        up, down = (f - pts[:-2]) / (pts[1:-1] - pts[:-2]), (pts[2:] - f) / (pts[2:] - pts[1:-1])
        self.register_buffer("fb", torch.minimum(up, down).clamp(min=0))
        self.register_buffer("win", torch.hann_window(400))

    @torch.no_grad()
    def forward(self, wave, lens):
        spec = torch.stft(wave, 512, 160, 400, self.win, return_complex=True)
        mel = (spec.abs().square().transpose(1, 2) @ self.fb).clamp(min=1e-6).log()
        frames = lens // 160 + 1
        mask = torch.arange(mel.size(1), device=mel.device)[None] < frames[:, None]
        return (mel - mel.mean((1, 2), keepdim=True)) * mask[..., None], frames


class Recogniser(nn.Module):
    def __init__(self, vocab, ch, hidden, layers):
        super().__init__()
        self.feat = LogMel()
        self.conv = nn.Sequential(nn.Conv2d(1, ch, 3, (1, 2), 1), nn.BatchNorm2d(ch), nn.Hardtanh(0, 20),
                                  nn.Conv2d(ch, ch, 3, 2, 1), nn.BatchNorm2d(ch), nn.Hardtanh(0, 20))
        self.rnn = nn.LSTM(ch * 20, hidden, layers, batch_first=True, bidirectional=True, dropout=0.1)
        self.out = nn.Sequential(nn.LayerNorm(2 * hidden), nn.Linear(2 * hidden, vocab))

    def forward(self, wave, lens):
        x, frames = self.feat(wave, lens)
        x, frames = self.conv(x.unsqueeze(1)).transpose(1, 2).flatten(2), (frames + 1) // 2
        packed = pack_padded_sequence(x, frames.cpu(), batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return F.log_softmax(self.out(y), -1), frames


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    p.add_argument("--max-sec", type=float, default=420.0)
    defaults = dict(utts=260, ch=48, hidden=768, epochs=3)
    for name, value in defaults.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = p.parse_args()
    torch.manual_seed(11)
    train, dev = FakeSpeech(a.utts, 16000, 2, 12, 40), FakeSpeech(a.utts // 5, 16000, 2, 15, 40)
    tl = DataLoader(train, batch_sampler=buckets(train.sec, a.max_sec), collate_fn=collate, pin_memory=True)
    dl = DataLoader(dev, batch_sampler=buckets(dev.sec, a.max_sec), collate_fn=collate)
    model = Recogniser(40, a.ch, a.hidden, 4).to(a.device)
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    best = float("inf")
    for epoch in range(a.epochs):
        model.train()
        for wave, wl, text, tlen in tl:
            wave, wl = wave.to(a.device, non_blocking=True), wl.to(a.device, non_blocking=True)
            logp, frames = model(wave, wl)
            loss = F.ctc_loss(logp.transpose(0, 1), text.to(a.device), frames, tlen.to(a.device), zero_infinity=True)
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"epoch {epoch} batch {tuple(wave.shape)} loss {loss.item():.4f}")
        model.eval()
        tot, n, tokens = 0.0, 0, 0
        with torch.no_grad():
            for wave, wl, text, tlen in dl:
                logp, frames = model(wave.to(a.device), wl.to(a.device))
                tot += F.ctc_loss(logp.transpose(0, 1), text.to(a.device), frames, tlen.to(a.device),
                                  reduction="sum", zero_infinity=True).item()
                n += int(tlen.sum())
                tokens += sum(int(torch.unique_consecutive(h[:f]).ne(0).sum()) for h, f in zip(logp.argmax(-1), frames))
        print(f"epoch {epoch} dev loss/token {tot / n:.4f} emitted {tokens} of {n}")
        if tot / n >= best:
            print("early stop")
            break
        best, best_state = tot / n, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    print(f"best {best:.4f}")


if __name__ == "__main__":
    main()
