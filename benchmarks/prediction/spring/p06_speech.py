"""CTC speech recogniser: conv subsampling, packed bidirectional LSTM, GRU head, variable lengths."""
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

device = "cuda"

MELS = 80
VOCAB = 4000
HIDDEN = 1024
LAYERS = 5
CHANNELS = 48
BATCH = 56
MIN_FRAMES, MAX_FRAMES = 500, 1500
UTTERANCES = 2240
VAL = 280
EPOCHS = 1
LR = 2e-4


class Utterances(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.frames = np.clip(rng.gamma(6.0, 170.0, n), MIN_FRAMES, MAX_FRAMES).astype(int)
        self.seed = seed
        basis = np.random.default_rng(77).standard_normal((VOCAB, MELS)).astype(np.float32)
        self.basis = torch.from_numpy(basis)

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        t = int(self.frames[i])
        n = max(t // 24, 2)
        tokens = torch.randint(1, VOCAB, (n,), generator=g)
        spans = torch.arange(t) * n // t
        mel = self.basis[tokens[spans]] + 0.5 * torch.randn(t, MELS, generator=g)
        return mel, tokens


class BucketSampler(Sampler):
    """Batches of similar lengths, in shuffled order."""

    def __init__(self, lengths, batch, seed):
        order = np.argsort(lengths, kind="stable")
        self.batches = [order[i: i + batch].tolist() for i in range(0, len(order), batch)]
        np.random.default_rng(seed).shuffle(self.batches)

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def collate(items):
    items.sort(key=lambda x: -x[0].shape[0])
    mels = pad_sequence([m for m, _ in items], batch_first=True)
    lengths = torch.tensor([m.shape[0] for m, _ in items])
    targets = torch.cat([t for _, t in items])
    target_lengths = torch.tensor([t.shape[0] for _, t in items])
    return mels, lengths, targets, target_lengths


class SpeechModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, CHANNELS, 3, stride=2, padding=1), nn.BatchNorm2d(CHANNELS), nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1), nn.BatchNorm2d(CHANNELS),
            nn.Hardtanh(0, 20, inplace=True))
        self.lstm = nn.LSTM(CHANNELS * MELS // 4, HIDDEN, LAYERS, batch_first=True, bidirectional=True, dropout=0.2)
        self.gru = nn.GRU(2 * HIDDEN, HIDDEN, batch_first=True)
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB)

    def forward(self, mels, lengths):
        x = self.conv(mels.unsqueeze(1))
        b, c, t, f = x.shape
        x = x.permute(0, 2, 1, 3).reshape(b, t, c * f)
        lengths = (lengths + 3) // 4
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        packed, _ = self.lstm(packed)
        packed, _ = self.gru(packed)
        x, _ = pad_packed_sequence(packed, batch_first=True)
        return F.log_softmax(self.head(self.norm(x)), dim=-1), lengths


def greedy_errors(logp, lengths, targets, target_lengths):
    best = logp.argmax(-1).cpu()
    errors, offset = 0, 0
    for i, n in enumerate(target_lengths.tolist()):
        path = torch.unique_consecutive(best[i, : lengths[i]])
        hyp = path[path != 0][:n]
        ref = targets[offset: offset + n]
        m = min(len(hyp), n)
        errors += n - int((hyp[:m] == ref[:m]).sum())
        offset += n
    return errors


def main():
    torch.manual_seed(0)
    model = SpeechModel().to(device)
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    train_set, val_set = Utterances(UTTERANCES, 1), Utterances(VAL, 2)
    train = DataLoader(train_set, batch_sampler=BucketSampler(train_set.frames, BATCH, 3), collate_fn=collate,
                       num_workers=3, pin_memory=True)
    val = DataLoader(val_set, batch_size=BATCH, collate_fn=collate, num_workers=2)
    start = time.time()
    for epoch in range(EPOCHS):
        model.train()
        for step, (mels, lengths, targets, target_lengths) in enumerate(train):
            mels = mels.to(device, non_blocking=True)
            logp, out_lengths = model(mels, lengths)
            loss = ctc(logp.transpose(0, 1), targets.to(device), out_lengths, target_lengths)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            if step % 8 == 0:
                print(f"step {step} frames {mels.shape[1]} loss {loss.item():.3f} {time.time() - start:.1f}s")
        model.eval()
        errors = total = 0
        with torch.no_grad():
            for mels, lengths, targets, target_lengths in val:
                logp, out_lengths = model(mels.to(device), lengths)
                errors += greedy_errors(logp, out_lengths, targets, target_lengths)
                total += targets.numel()
        print(f"epoch {epoch} token error {errors / total:.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
