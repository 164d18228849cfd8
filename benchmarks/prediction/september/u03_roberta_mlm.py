"""Masked-language-model pretraining of a medium RoBERTa with fp16 autocast and a GradScaler, length buckets."""
import argparse
import os
import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import RobertaConfig, RobertaForMaskedLM, get_linear_schedule_with_warmup

BOS, PAD, EOS, MASK, FIRST = 0, 1, 2, 4, 5


class Sentences(Dataset):
    def __init__(self, n, vocab, lo, hi, seed):
        rng = np.random.default_rng(seed)
        self.lengths = rng.integers(lo, hi + 1, n)
        self.items = [np.clip(rng.zipf(1.3, l) + FIRST, FIRST, vocab - 1) for l in self.lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return torch.from_numpy(np.concatenate(([BOS], self.items[i], [EOS])).astype(np.int64))


class BucketBatches(Sampler):
    """Sort by length within large pools, cut into batches, shuffle the batches."""

    def __init__(self, lengths, batch, pool=20, seed=0):
        self.lengths, self.batch, self.pool = np.asarray(lengths), batch, pool
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        order = self.rng.permutation(len(self.lengths))
        batches = []
        for s in range(0, len(order), self.batch * self.pool):
            part = order[s:s + self.batch * self.pool]
            part = part[np.argsort(self.lengths[part])]
            batches += [part[i:i + self.batch].tolist() for i in range(0, len(part), self.batch)]
        self.rng.shuffle(batches)
        yield from batches

    def __len__(self):
        return -(-len(self.lengths) // self.batch)


class MlmCollator:
    def __init__(self, vocab, prob=0.15, multiple=8):
        self.vocab, self.prob, self.multiple = vocab, prob, multiple

    def __call__(self, rows):
        width = max(len(r) for r in rows)
        width = -(-width // self.multiple) * self.multiple
        ids = torch.full((len(rows), width), PAD)
        for i, r in enumerate(rows):
            ids[i, :len(r)] = r
        attention = (ids != PAD).long()
        labels = ids.clone()
        chosen = (torch.rand(ids.shape) < self.prob) & (ids >= FIRST)
        labels[~chosen] = -100
        u = torch.rand(ids.shape)
        ids[chosen & (u < 0.8)] = MASK
        swap = chosen & (u >= 0.8) & (u < 0.9)
        ids[swap] = torch.randint(FIRST, self.vocab, (int(swap.sum()),))
        return {"input_ids": ids, "attention_mask": attention, "labels": labels}


def run_eval(model, loader):
    model.eval()
    hits = seen = 0
    loss_sum = 0.0
    with torch.no_grad():
        for batch in loader:
            batch = {k: v.to("cuda") for k, v in batch.items()}
            with torch.autocast("cuda", dtype=torch.float16):
                out = model(**batch)
            loss_sum += out.loss.item()
            mask = batch["labels"] != -100
            hits += (out.logits.argmax(-1)[mask] == batch["labels"][mask]).sum().item()
            seen += mask.sum().item()
    model.train()
    return loss_sum / len(loader), hits / max(1, seen)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=42000)
    parser.add_argument("--hidden", type=int, default=640)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--heads", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=28)
    parser.add_argument("--min-len", type=int, default=30)
    parser.add_argument("--max-len", type=int, default=254)
    parser.add_argument("--train-size", type=int, default=1120)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    torch.manual_seed(101)

    config = RobertaConfig(vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers,
                           num_attention_heads=args.heads, intermediate_size=4 * args.hidden,
                           max_position_embeddings=args.max_len + 12, type_vocab_size=1,
                           pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    model = RobertaForMaskedLM(config).to("cuda")
    model.train()

    train_set = Sentences(args.train_size, args.vocab, args.min_len, args.max_len, 1)
    valid_set = Sentences(150, args.vocab, args.min_len, args.max_len, 2)
    collate = MlmCollator(args.vocab)
    train = DataLoader(train_set, batch_sampler=BucketBatches(train_set.lengths, args.batch_size), collate_fn=collate)
    valid = DataLoader(valid_set, batch_size=32, collate_fn=collate)

    no_decay = ("bias", "LayerNorm.weight", "layer_norm.weight")
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if n.endswith(no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, eps=1e-6, betas=(0.9, 0.98))
    total = args.epochs * len(train)
    scheduler = get_linear_schedule_with_warmup(optimizer, total // 10, total)
    scaler = torch.amp.GradScaler("cuda")

    with tempfile.TemporaryDirectory() as out_dir:
        best = float("inf")
        for epoch in range(args.epochs):
            for it, batch in enumerate(train):
                batch = {k: v.to("cuda", non_blocking=True) for k, v in batch.items()}
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(**batch).loss
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scheduler.step()
                if it % 10 == 0:
                    print(f"epoch {epoch} it {it} width {batch['input_ids'].shape[1]} loss {loss.item():.3f} "
                          f"scale {scaler.get_scale():.0f}", flush=True)
            val_loss, acc = run_eval(model, valid)
            print(f"epoch {epoch} valid loss {val_loss:.3f} masked accuracy {acc:.4f}", flush=True)
            if val_loss < best:
                best = val_loss
                torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()},
                           os.path.join(out_dir, "best.pt"))


if __name__ == "__main__":
    main()
