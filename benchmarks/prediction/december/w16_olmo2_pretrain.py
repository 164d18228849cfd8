"""Pre-training of an OLMo-2 style decoder with gradient checkpointing and accumulation, and sequences that grow during the run.

fp32 master weights with bf16 autocast, chunked cross-entropy with z-loss so that the logits never exist as a whole,
AdamW (fused), warm-up-stable-decay schedule, perplexity by document length.
"""
import argparse
import os
import tempfile
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import Olmo2Config, Olmo2ForCausalLM


class PackedText(torch.utils.data.IterableDataset):
    """Documents of random length packed into rows of fixed length; each document repeats a motif."""

    def __init__(self, vocab, length, rows, seed):
        self.vocab, self.length, self.rows, self.seed = vocab, length, rows, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.rows):
            row, have = [], 0
            while have <= self.length:
                n = int(torch.randint(40, 400, (1,), generator=g))
                motif = torch.randint(2, self.vocab, (17,), generator=g)
                row.append(torch.cat([motif.repeat(n // 17 + 1)[:n], torch.ones(1, dtype=torch.long)]))
                have += n + 1
            yield torch.cat(row)[: self.length + 1]


def chunk_loss(hidden, weight, target, z_weight):
    logits = (hidden @ weight.t()).float()
    z = torch.logsumexp(logits, -1)
    nll = z - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return nll.sum(), z_weight * z.square().sum()


def lm_loss(model, ids, chunk, z_weight=1e-4):
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    hidden, target = hidden.flatten(0, 1), ids[:, 1:].flatten()
    nll = z = 0.0
    for h, t in zip(hidden.split(chunk), target.split(chunk)):
        if torch.is_grad_enabled():
            a, b = checkpoint(chunk_loss, h, model.lm_head.weight, t, z_weight, use_reentrant=False)
        else:
            a, b = chunk_loss(h, model.lm_head.weight, t, z_weight)
        nll, z = nll + a, z + b
    return nll / target.numel(), z / target.numel()


def wsd(step, total, warm=0.1, decay=0.25):
    if step < warm * total:
        return (step + 1) / (warm * total)
    return 1.0 if step < (1 - decay) * total else max(0.05, (total - step) / (decay * total))


@torch.no_grad()
def perplexities(model, vocab, lengths, chunk, device):
    model.eval()
    out = {}
    for length in lengths:
        rows = torch.stack(list(PackedText(vocab, length, 4, 555)))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out[length] = lm_loss(model, rows.to(device), chunk)[0].clamp(max=20).exp().item()
    model.train()
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=50304)
    ap.add_argument("--hidden", type=int, default=1152)
    ap.add_argument("--layers", type=int, default=18)
    ap.add_argument("--heads", type=int, default=18)
    ap.add_argument("--kv-heads", type=int, default=6)
    ap.add_argument("--lengths", type=int, nargs="+", default=[768, 1344, 2048])
    ap.add_argument("--tokens", type=int, default=8192, help="tokens per micro-batch")
    ap.add_argument("--accumulate", type=int, default=3)
    ap.add_argument("--updates-per-length", type=int, default=5)
    ap.add_argument("--chunk", type=int, default=1536)
    ap.add_argument("--lr", type=float, default=4e-4)
    args = ap.parse_args()
    torch.manual_seed(2)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda")

    cfg = Olmo2Config(vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=args.hidden * 3, num_hidden_layers=args.layers,
                      num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, max_position_embeddings=max(args.lengths),
                      rope_theta=500000.0, tie_word_embeddings=False, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    with device:
        model = Olmo2ForCausalLM(cfg).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                            lr=args.lr, betas=(0.9, 0.95), fused=True)
    total = args.updates_per_length * len(args.lengths)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: wsd(s, total))

    done, t0 = 0, time.time()
    for length in args.lengths:
        rows = max(1, args.tokens // length)
        count = rows * args.accumulate * args.updates_per_length
        loader = torch.utils.data.DataLoader(PackedText(args.vocab, length, count, length), batch_size=rows, pin_memory=True)
        for k, ids in enumerate(loader, 1):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                nll, z = lm_loss(model, ids.to(device, non_blocking=True), args.chunk)
            ((nll + z) / args.accumulate).backward()
            if k % args.accumulate == 0:
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad(set_to_none=True)
                sched.step()
                done += 1
        print(f"length {length} x {rows}: {done} updates, nll {nll.item():.4f} z {z.item():.4f} grad {norm.item():.2f}, "
              f"{time.time() - t0:.1f} s", flush=True)
        print("  perplexity", {n: round(p, 1) for n, p in perplexities(model, args.vocab, args.lengths, args.chunk, device).items()})
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        print("saved", sorted(os.listdir(tmp)))


if __name__ == "__main__":
    main()
