"""ELECTRA pretraining: masked-LM generator and replaced-token discriminator, fp16 with a gradient scaler.

Batches are built from buckets of similar length and padded to the longest member.
"""
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import (ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, get_linear_schedule_with_warmup)

PAD, CLS, SEP, MASK, FIRST = 0, 101, 102, 103, 1000


class Sentences(Dataset):
    def __init__(self, n, vocab, min_len, max_len, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(min_len, max_len + 1, (1,), generator=g))
            body = FIRST + (torch.rand(length - 2, generator=g).pow(3) * (vocab - FIRST)).long()
            self.items.append(torch.cat([torch.tensor([CLS]), body, torch.tensor([SEP])]))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class BucketSampler(Sampler):
    """Shuffle, sort within pools, yield batches in random order."""

    def __init__(self, lengths, batch_size, pool=8, seed=0):
        self.lengths, self.batch_size, self.pool, self.rng = lengths, batch_size, pool, random.Random(seed)

    def __len__(self):
        return len(self.lengths) // self.batch_size

    def __iter__(self):
        order = list(range(len(self.lengths)))
        self.rng.shuffle(order)
        batches, span = [], self.batch_size * self.pool
        for a in range(0, len(order), span):
            part = sorted(order[a:a + span], key=lambda i: self.lengths[i])
            batches += [part[b:b + self.batch_size] for b in range(0, len(part), self.batch_size)]
        batches = [b for b in batches if len(b) == self.batch_size]
        self.rng.shuffle(batches)
        return iter(batches)


def collate(items):
    ids = nn.utils.rnn.pad_sequence(items, batch_first=True, padding_value=PAD)
    return ids, (ids != PAD).long()


def mask_tokens(ids, attn, p):
    candidates = (attn == 1) & (ids != CLS) & (ids != SEP)
    chosen = (torch.rand(ids.shape, device=ids.device) < p) & candidates
    chosen[:, 1] = True
    masked = torch.where(chosen & (torch.rand(ids.shape, device=ids.device) < 0.85), MASK, ids)
    return masked, chosen


class Electra(nn.Module):
    def __init__(self, vocab, hidden, layers, gen_fraction):
        super().__init__()
        heads = hidden // 64
        gen_hidden = hidden // gen_fraction
        common = dict(vocab_size=vocab, embedding_size=hidden, max_position_embeddings=256, pad_token_id=PAD)
        self.disc = ElectraForPreTraining(ElectraConfig(hidden_size=hidden, num_hidden_layers=layers,
                                                        num_attention_heads=heads, intermediate_size=4 * hidden, **common))
        self.gen = ElectraForMaskedLM(ElectraConfig(hidden_size=gen_hidden, num_hidden_layers=layers,
                                                    num_attention_heads=max(1, heads // gen_fraction),
                                                    intermediate_size=4 * gen_hidden, **common))
        self.gen.electra.embeddings = self.disc.electra.embeddings
        self.gen.generator_lm_head.weight = self.disc.electra.embeddings.word_embeddings.weight

    def forward(self, ids, attn, p_mask):
        masked, chosen = mask_tokens(ids, attn, p_mask)
        logits = self.gen(input_ids=masked, attention_mask=attn).logits
        targets = torch.where(chosen, ids, -100)
        mlm = F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.view(-1))
        with torch.no_grad():
            noise = torch.empty_like(logits).uniform_(1e-3, 1 - 1e-3).log_().neg_().log_().neg_()
            sampled = (logits.detach() + noise).argmax(-1)
            corrupted = torch.where(chosen, sampled, ids)
            replaced = (corrupted != ids).float()
        scores = self.disc(input_ids=corrupted, attention_mask=attn).logits.float()
        weight = attn.float()
        rtd = (F.binary_cross_entropy_with_logits(scores, replaced, reduction="none") * weight).sum() / weight.sum()
        accuracy = (((scores > 0).float() == replaced).float() * weight).sum() / weight.sum()
        return mlm, rtd, accuracy


@torch.no_grad()
def validate(model, loader, p_mask):
    model.eval()
    sums = torch.zeros(3, device="cuda")
    for ids, attn in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            sums += torch.stack([v.float() for v in model(ids.to("cuda"), attn.to("cuda"), p_mask)])
    model.train()
    return (sums / len(loader)).tolist()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=30522)
    ap.add_argument("--hidden", type=int, default=768)
    ap.add_argument("--layers", type=int, default=9)
    ap.add_argument("--gen-fraction", type=int, default=3)
    ap.add_argument("--batch", type=int, default=28)
    ap.add_argument("--n-train", type=int, default=1100)
    ap.add_argument("--n-val", type=int, default=150)
    ap.add_argument("--max-len", type=int, default=140)
    ap.add_argument("--mask-p", type=float, default=0.15)
    ap.add_argument("--disc-weight", type=float, default=50.0)
    ap.add_argument("--lr", type=float, default=2e-4)
    args = ap.parse_args()

    torch.manual_seed(31)
    train_set = Sentences(args.n_train, args.vocab, 24, args.max_len, seed=1)
    val_set = Sentences(args.n_val, args.vocab, 24, args.max_len, seed=2)
    train = DataLoader(train_set, batch_sampler=BucketSampler([len(x) for x in train_set.items], args.batch, seed=5),
                       collate_fn=collate, pin_memory=True)
    val = DataLoader(val_set, batch_size=args.batch + 8, collate_fn=collate)

    model = Electra(args.vocab, args.hidden, args.layers, args.gen_fraction).to("cuda")
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{n_params / 1e6:.1f} M parameters, {len(train)} batches")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, eps=1e-6, weight_decay=0.01, foreach=True)
    scheduler = get_linear_schedule_with_warmup(optimizer, 5, len(train))
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 12)

    model.train()
    for step, (ids, attn) in enumerate(train):
        ids, attn = ids.to("cuda", non_blocking=True), attn.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            mlm, rtd, acc = model(ids, attn, args.mask_p)
            loss = mlm + args.disc_weight * rtd
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        if step % 5 == 0:
            print(f"step {step} shape {tuple(ids.shape)} mlm {mlm.item():.3f} rtd {rtd.item():.4f} acc {acc.item():.3f} "
                  f"scale {scaler.get_scale():.0f}")
    mlm, rtd, acc = validate(model, val, args.mask_p)
    print(f"validation: mlm {mlm:.3f} rtd {rtd:.4f} accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
