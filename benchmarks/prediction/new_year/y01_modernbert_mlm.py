"""Masked language model pre-training of a mid-size ModernBERT on bucketed documents.

bf16 autocast, fused AdamW, gradient accumulation, warmup-stable-decay schedule, perplexity on a held-out split.
"""
import argparse
import math
import os
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import ModernBertConfig, ModernBertForMaskedLM

PAD, CLS, SEP, MASK = 0, 1, 2, 3


class SyntheticDocs(Dataset):
    """Zipf-distributed token sequences with a length drawn from a few buckets."""

    def __init__(self, n, vocab, lengths, seed):
        g = torch.Generator().manual_seed(seed)
        self.buckets = torch.randint(len(lengths), (n,), generator=g).tolist()
        self.lengths = lengths
        self.docs = []
        for b in self.buckets:
            low = lengths[b - 1] if b else lengths[0] // 2
            size = int(torch.randint(low + 1, lengths[b] + 1, (1,), generator=g))
            u = torch.rand(size, generator=g)
            ids = (torch.exp(u * math.log(vocab - 10)).long() + 4).clamp_(max=vocab - 1)
            ids[0], ids[-1] = CLS, SEP
            self.docs.append(ids)

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        return self.docs[i], self.lengths[self.buckets[i]]


class BucketBatches(Sampler):
    def __init__(self, buckets, batch_size, seed, shuffle=True):
        self.buckets, self.batch_size, self.shuffle = buckets, batch_size, shuffle
        self.g = torch.Generator().manual_seed(seed)
        self._count = sum(len(v) // batch_size for v in self._groups().values())

    def _groups(self):
        groups = {}
        for i, b in enumerate(self.buckets):
            groups.setdefault(b, []).append(i)
        return groups

    def __iter__(self):
        out = []
        for _, idx in sorted(self._groups().items()):
            out += [idx[s:s + self.batch_size] for s in range(0, len(idx) - self.batch_size + 1, self.batch_size)]
        order = torch.randperm(len(out), generator=self.g).tolist() if self.shuffle else range(len(out))
        return iter([out[i] for i in order])

    def __len__(self):
        return self._count


def collate(vocab, prob):
    def fn(items):
        width = items[0][1]
        ids = torch.full((len(items), width), PAD)
        for row, (doc, _) in enumerate(items):
            ids[row, :len(doc)] = doc
        attention = (ids != PAD).long()
        labels = ids.clone()
        pick = (torch.rand(ids.shape) < prob) & (ids > MASK)
        labels[~pick] = -100
        swap = torch.rand(ids.shape)
        ids[pick & (swap < 0.8)] = MASK
        rnd = pick & (swap > 0.9)
        ids[rnd] = torch.randint(4, vocab, (int(rnd.sum()),))
        return {"input_ids": ids, "attention_mask": attention, "labels": labels}
    return fn


def wsd(step, warmup, total):
    if step < warmup:
        return (step + 1) / warmup
    decay_from = int(0.7 * total)
    return 1.0 if step < decay_from else max(0.05, (total - step) / (total - decay_from))


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    loss_sum = count = 0
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch).loss
        n = int((batch["labels"] != -100).sum())
        loss_sum += float(loss) * n
        count += n
    model.train()
    return loss_sum / count


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=50368)
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--hidden", type=int, default=768)
    p.add_argument("--batch-size", type=int, default=9)
    p.add_argument("--lengths", type=int, nargs="+", default=[192, 320, 448, 608])
    p.add_argument("--docs", type=int, default=420)
    p.add_argument("--accum", type=int, default=3)
    p.add_argument("--lr", type=float, default=4e-4)
    args = p.parse_args()
    torch.manual_seed(11)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")

    config = ModernBertConfig(vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers,
                              num_attention_heads=args.hidden // 64, intermediate_size=args.hidden * 3 // 2,
                              max_position_embeddings=1024, local_attention=128, pad_token_id=PAD, bos_token_id=CLS,
                              eos_token_id=SEP, cls_token_id=CLS, sep_token_id=SEP, attn_implementation="sdpa", reference_compile=False)
    model = ModernBertForMaskedLM(config).to(device)
    print(f"parameters: {sum(x.numel() for x in model.parameters()) / 1e6:.1f} M")

    train_set = SyntheticDocs(args.docs, args.vocab, args.lengths, seed=1)
    valid_set = SyntheticDocs(args.docs // 5, args.vocab, args.lengths, seed=2)
    fn = collate(args.vocab, 0.3)
    train = DataLoader(train_set, batch_sampler=BucketBatches(train_set.buckets, args.batch_size, 5), collate_fn=fn,
                       num_workers=2, pin_memory=True)
    valid = DataLoader(valid_set, collate_fn=fn,
                       batch_sampler=BucketBatches(valid_set.buckets, args.batch_size - 1, 6, shuffle=False))

    decay = [x for x in model.parameters() if x.ndim >= 2]
    plain = [x for x in model.parameters() if x.ndim < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
                            lr=args.lr, betas=(0.9, 0.98), eps=1e-6, fused=True)
    updates = max(1, len(train) // args.accum)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: wsd(s, 3, updates))

    start, running = time.time(), 0.0
    for i, batch in enumerate(train):
        batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch).loss / args.accum
        loss.backward()
        running += loss.item()
        if (i + 1) % args.accum == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad(set_to_none=True)
            print(f"update {(i + 1) // args.accum}/{updates} loss {running:.4f} |g| {norm:.3f} "
                  f"lr {sched.get_last_lr()[0]:.2e} {time.time() - start:.1f}s")
            running = 0.0
    print(f"validation perplexity {math.exp(min(20, evaluate(model, valid, device))):.1f}")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "mlm.pt")
        torch.save(model.state_dict(), path)
        print(f"checkpoint {os.path.getsize(path) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
