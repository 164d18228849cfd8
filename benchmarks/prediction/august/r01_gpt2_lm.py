"""Pre-train a small GPT-2 on synthetic 'log line' text: bf16 autocast, fused AdamW, cosine schedule."""
import argparse
import math
import os
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup


class PackedTokens(Dataset):
    """A long stream of tokens from a sparse bigram process, cut into blocks."""

    def __init__(self, n_blocks, block_size, vocab_size, seed):
        rng = np.random.default_rng(seed)
        n = n_blocks * block_size
        zipf = rng.zipf(1.3, size=n).astype(np.int64) % vocab_size
        shifted = np.roll(zipf, 1) * 7 + 13
        repeat = rng.random(n) < 0.5
        stream = np.where(repeat, shifted % vocab_size, zipf)
        self.blocks = torch.from_numpy(stream).view(n_blocks, block_size)

    def __len__(self):
        return self.blocks.shape[0]

    def __getitem__(self, i):
        return self.blocks[i]


def parse_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--block-size", type=int, default=480)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--eval-batch-size", type=int, default=14)
    p.add_argument("--max-steps", type=int, default=45)
    p.add_argument("--eval-every", type=int, default=20)
    p.add_argument("--lr", type=float, default=6e-4)
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--warmup", type=int, default=8)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--n-layer", type=int, default=12)
    p.add_argument("--n-head", type=int, default=12)
    p.add_argument("--n-embd", type=int, default=768)
    p.add_argument("--vocab-size", type=int, default=50257)
    p.add_argument("--seed", type=int, default=1337)
    return p.parse_args()


def param_groups(model, weight_decay):
    decay, no_decay = [], []
    for p in model.parameters():
        if p.requires_grad:
            (decay if p.dim() >= 2 else no_decay).append(p)
    return [{"params": decay, "weight_decay": weight_decay},
            {"params": no_decay, "weight_decay": 0.0}]


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    total, count = 0.0, 0
    for ids in loader:
        ids = ids.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(input_ids=ids, labels=ids, use_cache=False)
        total += out.loss.item() * ids.size(0)
        count += ids.size(0)
    model.train()
    loss = total / count
    return loss, math.exp(min(loss, 20))


def endless(loader):
    while True:
        yield from loader


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")

    cfg = GPT2Config(vocab_size=args.vocab_size, n_positions=max(512, args.block_size),
                     n_layer=args.n_layer, n_head=args.n_head, n_embd=args.n_embd,
                     resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1,
                     bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(cfg).to(device)
    print(f"parameters: {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M")

    train = PackedTokens(256, args.block_size, args.vocab_size, args.seed)
    valid = PackedTokens(50, args.block_size, args.vocab_size, args.seed + 1)
    train_loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True, pin_memory=True)
    valid_loader = DataLoader(valid, args.eval_batch_size, pin_memory=True)

    optimizer = torch.optim.AdamW(param_groups(model, args.weight_decay), lr=args.lr,
                                  betas=(0.9, 0.95), fused=True)
    scheduler = get_cosine_schedule_with_warmup(optimizer, args.warmup, args.max_steps)

    out_dir = tempfile.mkdtemp(prefix="gpt2_")
    best = float("inf")
    model.train()
    batches = endless(train_loader)
    t0 = time.time()
    for step in range(1, args.max_steps + 1):
        ids = next(batches).to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)

        if step % 10 == 0 or step == 1:
            tok_s = step * ids.numel() / (time.time() - t0)
            print(f"step {step:4d} loss {loss.item():.4f} norm {norm.item():.2f} "
                  f"lr {scheduler.get_last_lr()[0]:.2e} tok/s {tok_s:.0f}")
        if step % args.eval_every == 0 or step == args.max_steps:
            val, ppl = evaluate(model, valid_loader, device)
            print(f"  eval loss {val:.4f} ppl {ppl:.1f}")
            if val < best:
                best = val
                torch.save({"model": model.state_dict(), "step": step}, os.path.join(out_dir, "best.pt"))
    print(f"done, best eval loss {best:.4f}, saved in {out_dir}")


if __name__ == "__main__":
    main()
