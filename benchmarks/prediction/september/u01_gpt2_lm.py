"""Pretrain a small GPT-2 on a synthetic byte-pair stream: fp32 weights, bf16 autocast, checkpoint and resume."""
import argparse
import logging
import math
import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

log = logging.getLogger("gpt2")


class TokenStream(Dataset):
    """Windows over one long stream with some local structure (repeats with noise)."""

    def __init__(self, n_windows, block, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        base = torch.randint(0, vocab, (n_windows * block // 4 + block,), generator=g)
        self.data = base.repeat_interleave(4)
        flip = torch.rand(self.data.shape, generator=g) < 0.1
        self.data[flip] = torch.randint(0, vocab, (int(flip.sum()),), generator=g)
        self.n, self.block = n_windows, block

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ids = self.data[i * self.block:(i + 1) * self.block]
        return {"input_ids": ids, "labels": ids}


def param_groups(model, wd):
    decay = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    rest = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    return [{"params": decay, "weight_decay": wd}, {"params": rest, "weight_decay": 0.0}]


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    total, count = 0.0, 0
    for batch in loader:
        batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch).loss
        total += loss.item()
        count += 1
    model.train()
    return total / max(1, count)


def save_checkpoint(folder, model, optimizer, scheduler, step):
    path = os.path.join(folder, f"step{step}")
    model.save_pretrained(path)
    torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "step": step},
               os.path.join(path, "trainer.pt"))
    log.info("saved %s", path)
    return path


def build_optim(model, args):
    opt = torch.optim.AdamW(param_groups(model, args.weight_decay), lr=args.lr, betas=(0.9, 0.95))
    return opt, get_cosine_schedule_with_warmup(opt, args.warmup, args.steps)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=32003)
    ap.add_argument("--layers", type=int, default=10)
    ap.add_argument("--width", type=int, default=720)
    ap.add_argument("--heads", type=int, default=12)
    ap.add_argument("--block", type=int, default=448)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--warmup", type=int, default=8)
    ap.add_argument("--save-at", type=int, default=30)
    ap.add_argument("--lr", type=float, default=4e-4)
    ap.add_argument("--weight-decay", type=float, default=0.1)
    ap.add_argument("--seed", type=int, default=17)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(args.seed)
    device = torch.device("cuda")

    cfg = GPT2Config(vocab_size=args.vocab, n_positions=args.block, n_embd=args.width, n_layer=args.layers,
                     n_head=args.heads, bos_token_id=0, eos_token_id=0, use_cache=False)
    model = GPT2LMHeadModel(cfg).to(device)
    model.train()
    log.info("%.1f M parameters", sum(p.numel() for p in model.parameters()) / 1e6)
    optimizer, scheduler = build_optim(model, args)

    train = DataLoader(TokenStream(args.steps * args.accum * args.batch, args.block, args.vocab, 1),
                       batch_size=args.batch, shuffle=True, drop_last=True, pin_memory=True)
    valid = DataLoader(TokenStream(40, args.block, args.vocab, 2), batch_size=16)

    with tempfile.TemporaryDirectory() as folder:
        step, running = 0, 0.0
        for i, batch in enumerate(train):
            batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(**batch).loss / args.accum
            loss.backward()
            running += loss.detach()
            if (i + 1) % args.accum:
                continue
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % 10 == 0:
                log.info("step %d loss %.4f norm %.3f lr %.2e", step, running.item() / 10, norm.item(),
                         scheduler.get_last_lr()[0])
                running = 0.0
            if step == args.save_at:
                val = evaluate(model, valid, device)
                log.info("validation loss %.4f ppl %.1f", val, math.exp(min(val, 20)))
                path = save_checkpoint(folder, model, optimizer, scheduler, step)
                # continue from the file that was written, as a restarted job would
                state = torch.load(os.path.join(path, "trainer.pt"), map_location="cpu", weights_only=True)
                optimizer.load_state_dict(state["optimizer"])
                scheduler.load_state_dict(state["scheduler"])
        val = evaluate(model, valid, device)
        log.info("final validation loss %.4f", val)
        model.save_pretrained(os.path.join(folder, "final"))
    log.info("peak reserved %.2f GiB", torch.cuda.max_memory_reserved() / 2**30)


if __name__ == "__main__":
    main()
