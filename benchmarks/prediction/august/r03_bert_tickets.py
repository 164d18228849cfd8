#!/usr/bin/env python
"""Classify support tickets into 14 queues with BERT; fp16 mixed precision and dynamic padding."""
import argparse
import logging
import pathlib
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
log = logging.getLogger("tickets")

CLS, SEP, PAD = 101, 102, 0


class Tickets(Dataset):
    """Tickets of log-normal length; words of a queue come from its own band of the vocabulary."""

    def __init__(self, n, n_classes, max_len, vocab, seed):
        self.rng = np.random.default_rng(seed)
        self.labels = self.rng.integers(0, n_classes, size=n)
        lens = np.exp(self.rng.normal(4.5, 0.7, size=n)).astype(int)
        self.lens = np.clip(lens, 8, max_len)
        band = (vocab - 1000) // n_classes
        self.texts = []
        for y, length in zip(self.labels, self.lens):
            common = self.rng.integers(1000, vocab, size=length - 2)
            topical = 1000 + y * band + self.rng.integers(0, band, size=length - 2)
            take = self.rng.random(length - 2) < 0.3
            self.texts.append(np.concatenate([[CLS], np.where(take, topical, common), [SEP]]))

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i], int(self.labels[i])


class DynamicPad:
    def __init__(self, multiple=8):
        self.multiple = multiple

    def __call__(self, batch):
        longest = max(len(t) for t, _ in batch)
        width = -(-longest // self.multiple) * self.multiple
        ids = torch.full((len(batch), width), PAD, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, (text, _) in enumerate(batch):
            ids[row, : len(text)] = torch.from_numpy(text)
            mask[row, : len(text)] = 1
        return ids, mask, torch.tensor([y for _, y in batch])


def evaluate(model, loader, n_classes):
    model.eval()
    confusion = torch.zeros(n_classes, n_classes, dtype=torch.long, device="cuda")
    loss_sum = torch.zeros((), device="cuda")
    with torch.no_grad():
        for ids, mask, y in loader:
            ids, mask, y = ids.cuda(), mask.cuda(), y.cuda()
            with torch.autocast("cuda", dtype=torch.float16):
                out = model(input_ids=ids, attention_mask=mask, labels=y)
            loss_sum += out.loss.float() * len(y)
            pred = out.logits.argmax(-1)
            confusion += torch.bincount(y * n_classes + pred, minlength=n_classes ** 2).view(n_classes, n_classes)
    tp = confusion.diag().float()
    f1 = 2 * tp / (confusion.sum(0) + confusion.sum(1)).clamp(min=1)
    n = confusion.sum()
    return (loss_sum / n).item(), (tp.sum() / n).item(), f1.mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--train-size", type=int, default=672)
    ap.add_argument("--valid-size", type=int, default=200)
    ap.add_argument("--batch-size", type=int, default=28)
    ap.add_argument("--max-len", type=int, default=384)
    ap.add_argument("--classes", type=int, default=14)
    ap.add_argument("--lr", type=float, default=5e-5)
    ap.add_argument("--layers", type=int, default=12)
    ap.add_argument("--hidden", type=int, default=768)
    ap.add_argument("--seed", type=int, default=42)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    np.random.seed(args.seed)

    config = BertConfig(num_labels=args.classes, num_hidden_layers=args.layers, hidden_size=args.hidden,
                        num_attention_heads=args.hidden // 64, intermediate_size=4 * args.hidden)
    model = BertForSequenceClassification(config).to("cuda")

    pad = DynamicPad()
    train_ds = Tickets(args.train_size, args.classes, args.max_len, config.vocab_size, args.seed)
    valid_ds = Tickets(args.valid_size, args.classes, args.max_len, config.vocab_size, args.seed + 1)
    train_dl = DataLoader(train_ds, args.batch_size, shuffle=True, collate_fn=pad, num_workers=2)
    valid_dl = DataLoader(valid_ds, 2 * args.batch_size, collate_fn=pad)

    skip = ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW([
        {"params": [p for n, p in named if not n.endswith(skip)], "weight_decay": 0.01},
        {"params": [p for n, p in named if n.endswith(skip)], "weight_decay": 0.0},
    ], lr=args.lr)
    steps = args.epochs * len(train_dl)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    scaler = torch.amp.GradScaler("cuda")

    work = pathlib.Path(tempfile.mkdtemp())
    best_f1 = -1.0
    for epoch in range(args.epochs):
        model.train()
        for step, (ids, mask, y) in enumerate(train_dl):
            ids, mask, y = ids.cuda(), mask.cuda(), y.cuda()
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(input_ids=ids, attention_mask=mask, labels=y).loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            if step % 6 == 0:
                log.info("epoch %d step %d width %d loss %.4f scale %g",
                         epoch, step, ids.size(1), loss.item(), scaler.get_scale())
        loss, acc, f1 = evaluate(model, valid_dl, args.classes)
        log.info("epoch %d: valid loss %.4f acc %.3f macro-F1 %.3f", epoch, loss, acc, f1)
        if f1 > best_f1:
            best_f1 = f1
            torch.save(model.state_dict(), work / "best.pt")
    model.load_state_dict(torch.load(work / "best.pt", map_location="cuda"))
    log.info("reloaded best: %s", evaluate(model, valid_dl, args.classes))


if __name__ == "__main__":
    main()
