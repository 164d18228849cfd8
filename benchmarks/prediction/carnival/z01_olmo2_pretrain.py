"""Pretrain a small OLMo-2 style decoder on a synthetic token stream.

Sequence length warm-up (short contexts first), gradient accumulation, bf16 autocast, fused AdamW, cosine schedule.
"""
import argparse
import math
import os
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Olmo2Config, Olmo2ForCausalLM


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--hidden", type=int, default=832)
    p.add_argument("--layers", type=int, default=11)
    p.add_argument("--heads", type=int, default=13)
    p.add_argument("--kv-heads", type=int, default=13)
    p.add_argument("--ffn", type=int, default=2240)
    p.add_argument("--vocab", type=int, default=30500)
    p.add_argument("--micro-batch", type=int, default=5)
    p.add_argument("--accum", type=int, default=3)
    p.add_argument("--contexts", type=int, nargs="+", default=[320, 576])
    p.add_argument("--steps-per-context", type=int, default=12)
    p.add_argument("--eval-batches", type=int, default=4)
    p.add_argument("--lr", type=float, default=4e-4)
    p.add_argument("--min-lr-ratio", type=float, default=0.1)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--z-loss", type=float, default=1e-5)
    p.add_argument("--seed", type=int, default=1207)
    return p.parse_args()


class TokenStream(Dataset):
    """A long array of token ids cut in windows, as a memmap of tokenised text would be."""

    def __init__(self, vocab, n_tokens, context, seed):
        rng = np.random.default_rng(seed)
        ids = rng.zipf(1.25, size=n_tokens) % vocab
        # local repetition, so that there is something to learn
        rep = rng.random(n_tokens) < 0.3
        ids[8:][rep[8:]] = ids[:-8][rep[8:]]
        self.ids = ids.astype(np.uint16)
        self.context = context

    def __len__(self):
        return (len(self.ids) - 1) // self.context

    def __getitem__(self, i):
        a = i * self.context
        chunk = torch.from_numpy(self.ids[a:a + self.context + 1].astype(np.int64))
        return chunk[:-1], chunk[1:]


def param_groups(model, weight_decay):
    decay, no_decay = [], []
    for name, p in model.named_parameters():
        (no_decay if p.ndim < 2 or "embed" in name else decay).append(p)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]


def lr_lambda(warmup, total, floor):
    def f(step):
        if step < warmup:
            return (step + 1) / warmup
        t = (step - warmup) / max(1, total - warmup)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, t)))
    return f


def lm_loss(model, x, y, z_weight):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(input_ids=x, use_cache=False).logits
    logits = logits.float().view(-1, logits.size(-1))
    ce = torch.nn.functional.cross_entropy(logits, y.reshape(-1))
    z = torch.logsumexp(logits, dim=-1).pow(2).mean()
    return ce + z_weight * z, ce.detach()


@torch.no_grad()
def evaluate(model, loader, n, device):
    model.eval()
    total, count = 0.0, 0
    for i, (x, y) in enumerate(loader):
        if i >= n:
            break
        _, ce = lm_loss(model, x.to(device), y.to(device), 0.0)
        total += ce.item() * y.numel()
        count += y.numel()
    model.train()
    return total / count


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda")

    config = Olmo2Config(
        vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=args.ffn, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, max_position_embeddings=1024,
        tie_word_embeddings=False, pad_token_id=1, bos_token_id=None, eos_token_id=2)
    model = Olmo2ForCausalLM(config).to(device)
    model.train()
    print(f"parameters: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M")

    total_steps = args.steps_per_context * len(args.contexts)
    opt = torch.optim.AdamW(param_groups(model, args.weight_decay), lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_lambda(args.warmup, total_steps, args.min_lr_ratio))

    step = 0
    for context in args.contexts:
        need = args.micro_batch * args.accum * args.steps_per_context * context + 1
        train = DataLoader(TokenStream(args.vocab, need, context, args.seed + context), batch_size=args.micro_batch,
                           shuffle=True, drop_last=True, pin_memory=True)
        val = DataLoader(TokenStream(args.vocab, args.micro_batch * args.eval_batches * context + 1, context, 99),
                         batch_size=args.micro_batch, drop_last=True)
        t0, tokens = time.time(), 0
        running = torch.zeros((), device=device)
        for micro, (x, y) in enumerate(train, 1):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss, ce = lm_loss(model, x, y, args.z_loss)
            (loss / args.accum).backward()
            running += ce / args.accum
            tokens += y.numel()
            if micro % args.accum == 0:
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                opt.step()
                sched.step()
                opt.zero_grad(set_to_none=True)
                step += 1
                print(f"ctx {context} step {step:3d} loss {running.item():.4f} norm {norm.item():.2f} "
                      f"lr {sched.get_last_lr()[0]:.2e}")
                running.zero_()
        dt = time.time() - t0
        ppl = math.exp(min(20.0, evaluate(model, val, args.eval_batches, device)))
        print(f"context {context}: {tokens / dt:.0f} tokens/s, validation perplexity {ppl:.1f}")

    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "last.pt")
        torch.save({"model": model.state_dict(), "step": step}, path)
        print(f"saved {os.path.getsize(path) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
