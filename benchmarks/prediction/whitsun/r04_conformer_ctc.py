"""CTC training of a Conformer encoder on log-mel features with length-bucketed batches."""
import argparse
import math
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler


class Utterances(Dataset):
    def __init__(self, n, mels, vocab, seed, min_len, max_len):
        rng = random.Random(seed)
        self.items = []
        for i in range(n):
            frames = int(min(max_len, max(min_len, rng.lognormvariate(6.5, 0.45))))
            self.items.append((frames, max(2, frames // rng.randint(11, 17)), seed * 7919 + i))
        self.mels, self.vocab = mels, vocab

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        frames, tokens, seed = self.items[i]
        g = torch.Generator().manual_seed(seed)
        text = torch.randint(1, self.vocab, (tokens,), generator=g)
        feats = torch.randn(frames, self.mels, generator=g) * 0.5
        centre = torch.linspace(0, tokens - 1, frames).round().long()
        feats += torch.sin(text[centre].float()[:, None] * torch.arange(1, self.mels + 1) * 0.05)
        return feats, text


class BucketSampler(Sampler):
    """Groups similar lengths; each batch holds at most `budget` padded frames."""

    def __init__(self, dataset, budget, seed, shuffle=True):
        order = sorted(range(len(dataset)), key=lambda i: dataset.items[i][0])
        self.batches = [[]]
        for i in order:
            if self.batches[-1] and dataset.items[i][0] * (len(self.batches[-1]) + 1) > budget:
                self.batches.append([])
            self.batches[-1].append(i)
        self.rng, self.shuffle = random.Random(seed), shuffle

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        order = list(self.batches)
        if self.shuffle:
            self.rng.shuffle(order)
        yield from order


def collate(batch):
    feats, texts = zip(*batch)
    flen, tlen = (torch.tensor([len(v) for v in vs]) for vs in (feats, texts))
    return pad_sequence(feats, batch_first=True), flen, torch.cat(texts), tlen


class Subsample(nn.Module):
    def __init__(self, mels, d):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 96, 3, 2, 1), nn.SiLU(), nn.Conv2d(96, 96, 3, 2, 1), nn.SiLU())
        self.proj = nn.Linear(96 * math.ceil(mels / 4), d)

    def forward(self, x, lens):
        x = self.conv(x.unsqueeze(1))
        b, c, t, f = x.shape
        return self.proj(x.transpose(1, 2).reshape(b, t, c * f)), torch.div(lens + 3, 4, rounding_mode="floor")


def ffn(d, p):
    return nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Dropout(p), nn.Linear(4 * d, d), nn.Dropout(p))


class ConvModule(nn.Module):
    def __init__(self, d, kernel, p):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.pw1 = nn.Conv1d(d, 2 * d, 1)
        self.dw = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d)
        self.pw2 = nn.Conv1d(d, d, 1)
        self.bn, self.drop = nn.BatchNorm1d(d), nn.Dropout(p)

    def forward(self, x, pad):
        x = F.glu(self.pw1(self.norm(x).transpose(1, 2)), 1)
        x = self.dw(x.masked_fill(pad[:, None], 0.0))
        return self.drop(self.pw2(F.silu(self.bn(x)))).transpose(1, 2)


class RelAttention(nn.Module):
    """Self attention with a learned clipped relative-position bias per head."""

    def __init__(self, d, heads, p, reach=64):
        super().__init__()
        self.h, self.reach, self.p = heads, reach, p
        self.norm = nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.bias = nn.Embedding(2 * reach + 1, heads)

    def forward(self, x, pad):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        pos = torch.arange(t, device=x.device)
        rel = (pos[None] - pos[:, None]).clamp(-self.reach, self.reach) + self.reach
        score = (q @ k.transpose(-1, -2)) / math.sqrt(d // self.h) + self.bias(rel).permute(2, 0, 1)
        score = score.masked_fill(pad[:, None, None], float("-inf"))
        att = F.dropout(score.softmax(-1), self.p, self.training)
        return self.out((att @ v).transpose(1, 2).reshape(b, t, d))


class ConformerBlock(nn.Module):
    def __init__(self, d, heads, p, kernel=31):
        super().__init__()
        self.ff1, self.ff2 = ffn(d, p), ffn(d, p)
        self.att, self.conv = RelAttention(d, heads, p), ConvModule(d, kernel, p)
        self.norm = nn.LayerNorm(d)

    def forward(self, x, pad):
        x = x + 0.5 * self.ff1(x)
        x = x + self.att(x, pad)
        x = x + self.conv(x, pad)
        return self.norm(x + 0.5 * self.ff2(x))


class Recognizer(nn.Module):
    def __init__(self, mels, vocab, d, heads, layers, p=0.1):
        super().__init__()
        self.sub = Subsample(mels, d)
        self.blocks = nn.ModuleList(ConformerBlock(d, heads, p) for _ in range(layers))
        self.head = nn.Linear(d, vocab)

    def spec_augment(self, x):
        x = x.clone()
        for _ in range(2):
            f0, t0 = random.randrange(x.shape[2] - 12), random.randrange(max(1, x.shape[1] - 40))
            x[:, :, f0:f0 + 12] = 0
            x[:, t0:t0 + 40] = 0
        return x

    def forward(self, feats, lens):
        if self.training:
            feats = self.spec_augment(feats)
        x, lens = self.sub(feats, lens)
        pad = torch.arange(x.shape[1], device=x.device)[None] >= lens[:, None]
        for blk in self.blocks:
            x = blk(x, pad)
        return self.head(x), lens


def step_loss(model, batch, device, dtype):
    feats, flen, text, tlen = (t.to(device, non_blocking=True) for t in batch)
    with torch.autocast(device.type, dtype=dtype):
        logits, lens = model(feats, flen)
    logp = logits.float().log_softmax(-1)
    return F.ctc_loss(logp.transpose(0, 1), text, lens, tlen, zero_infinity=True), logp, lens


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--utterances", type=int, default=4800)
    ap.add_argument("--frame-budget", type=int, default=26000)
    for name, value in {"dim": 264, "layers": 14, "vocab": 523, "epochs": 2, "workers": 6, "max-len": 1680}.items():
        ap.add_argument(f"--{name}", type=int, default=value)
    args = ap.parse_args()
    torch.manual_seed(3), random.seed(3)
    device = torch.device(args.device)
    amp = torch.float16 if device.type == "cuda" else torch.bfloat16
    train = Utterances(args.utterances, 80, args.vocab, 1, 180, args.max_len)
    dev = Utterances(args.utterances // 10, 80, args.vocab, 2, 180, args.max_len)
    kw = dict(collate_fn=collate, num_workers=args.workers, pin_memory=device.type == "cuda")
    train_dl = DataLoader(train, batch_sampler=BucketSampler(train, args.frame_budget, 9), **kw)
    dev_dl = DataLoader(dev, batch_sampler=BucketSampler(dev, args.frame_budget * 2, 9, shuffle=False), **kw)
    model = Recognizer(80, args.vocab, args.dim, 6, args.layers).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=8e-4, betas=(0.9, 0.98), weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / 60, (60 / (s + 1)) ** 0.5))
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    for epoch in range(args.epochs):
        model.train()
        t0, seen = time.time(), 0
        for i, batch in enumerate(train_dl):
            loss, _, _ = step_loss(model, batch, device, amp)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 3.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
            sched.step()
            seen += int(batch[1].sum())
            if i % 20 == 0:
                print(f"epoch {epoch} batch {i}/{len(train_dl)} {tuple(batch[0].shape)} ctc {loss.item():.3f}", flush=True)
        model.eval()
        total, emitted = 0.0, 0
        with torch.no_grad():
            for batch in dev_dl:
                loss, logp, _ = step_loss(model, batch, device, amp)
                best = logp.argmax(-1)
                emitted += int(((best[:, 1:] != best[:, :-1]) & (best[:, 1:] != 0)).sum())
                total += loss.item()
        print(f"epoch {epoch} dev ctc {total / len(dev_dl):.3f} tokens {emitted} frames/s {seen / (time.time() - t0):.0f}")


if __name__ == "__main__":
    main()
