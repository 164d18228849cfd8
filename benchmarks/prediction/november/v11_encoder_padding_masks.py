# Event-log classifier: nn.TransformerEncoder with key padding masks over sequences of very different lengths.
import argparse
import math
import os
import tempfile

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class EventLogs(Dataset):
    """Sessions of (event id, seconds since last event) with a label and a next-event target."""

    def __init__(self, n, events, min_len, max_len, seed):
        g = torch.Generator().manual_seed(seed)
        u = torch.rand(n, generator=g)
        self.lengths = (min_len * (max_len / min_len) ** u).long()
        self.events, self.seed = events, seed

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 10007 + i)
        n = int(self.lengths[i])
        label = int(torch.randint(0, 4, (1,), generator=g))
        ids = torch.randint(1, self.events, (n,), generator=g)
        ids[:: 5 + label] = 1 + label
        gaps = torch.rand(n, generator=g) * (1 + label)
        return ids, gaps, label


def collate(batch):
    ids, gaps, labels = zip(*batch)
    return (pad_sequence(ids, batch_first=True), pad_sequence(gaps, batch_first=True), torch.tensor(labels))


class SessionModel(nn.Module):
    def __init__(self, events, dim, heads, layers, classes, max_len, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(events, dim, padding_idx=0)
        self.gap = nn.Linear(1, dim)
        pos = torch.arange(max_len)[:, None] * torch.exp(-math.log(1e4) * torch.arange(0, dim, 2) / dim)
        self.register_buffer("pos", torch.stack([pos.sin(), pos.cos()], -1).flatten(1), persistent=False)
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 4, dropout, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.classify = nn.Linear(dim, classes)
        self.next_event = nn.Linear(dim, events)

    def forward(self, ids, gaps):
        pad = ids == 0
        x = self.embed(ids) + self.gap(gaps[..., None]) + self.pos[: ids.size(1)]
        h = self.encoder(x, src_key_padding_mask=pad)
        keep = (~pad)[..., None].to(h.dtype)
        pooled = (h * keep).sum(1) / keep.sum(1)
        return self.classify(pooled), h


def losses(model, ids, gaps, labels):
    logits, h = model(ids, gaps)
    cls = nn.functional.cross_entropy(logits, labels)
    target = ids[:, 1:]
    mask = target != 0
    nxt = nn.functional.cross_entropy(model.next_event(h[:, :-1][mask]), target[mask])
    return cls, nxt, logits


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct = total = 0
    nll = 0.0
    for ids, gaps, labels in loader:
        ids, gaps, labels = ids.to(device), gaps.to(device), labels.to(device)
        cls, nxt, logits = losses(model, ids, gaps, labels)
        correct += (logits.argmax(1) == labels).sum().item()
        total += labels.numel()
        nll += nxt.item()
    return correct / total, nll / len(loader)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--events", type=int, default=3100)
    ap.add_argument("--dim", type=int, default=360)
    ap.add_argument("--heads", type=int, default=6)
    ap.add_argument("--layers", type=int, default=7)
    ap.add_argument("--batch", type=int, default=38)
    ap.add_argument("--min-len", type=int, default=20)
    ap.add_argument("--max-len", type=int, default=420)
    ap.add_argument("--items", type=int, default=1520)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()

    torch.manual_seed(111)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    model = SessionModel(args.events, args.dim, args.heads, args.layers, 4, args.max_len + 1).to(device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    train = DataLoader(EventLogs(args.items, args.events, args.min_len, args.max_len, 1), batch_size=args.batch,
                       shuffle=True, collate_fn=collate, num_workers=0, pin_memory=True)
    val = DataLoader(EventLogs(args.items // 5, args.events, args.min_len, args.max_len, 2), batch_size=args.batch * 2,
                     collate_fn=collate)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
    steps = args.epochs * len(train)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / 15, max(0.05, 1 - s / steps)))

    with tempfile.TemporaryDirectory() as tmp:
        for epoch in range(args.epochs):
            model.train()
            for i, (ids, gaps, labels) in enumerate(train):
                ids, gaps, labels = (v.to(device, non_blocking=True) for v in (ids, gaps, labels))
                cls, nxt, _ = losses(model, ids, gaps, labels)
                loss = cls + 0.5 * nxt
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                if i % 10 == 0:
                    print(f"epoch {epoch} it {i} len {ids.size(1)} cls {cls.item():.3f} next {nxt.item():.3f}")
            acc, nll = evaluate(model, val, device)
            print(f"epoch {epoch} val accuracy {acc:.3f} next-event nll {nll:.3f}")
            torch.save({"model": model.state_dict(), "epoch": epoch}, os.path.join(tmp, "ckpt.pt"))


if __name__ == "__main__":
    main()
