"""Data-parallel GPT pre-training: bf16 autocast, gradient accumulation under no_sync.

torchrun --nproc-per-node 2 t01_ddp_gpt.py
"""
import argparse
import contextlib
import math
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class TokenWindows(Dataset):
    def __init__(self, windows, length, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        self.length, self.windows = length, windows
        self.tokens = (torch.rand(windows * length + 1, generator=g).pow(2.5) * vocab).to(torch.int32)

    def __len__(self):
        return self.windows

    def __getitem__(self, i):
        chunk = self.tokens[i * self.length: (i + 1) * self.length + 1].long()
        return chunk[:-1], chunk[1:]


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(d, bias=False)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.proj = nn.Linear(d, d, bias=False)
        self.norm2 = nn.LayerNorm(d, bias=False)
        self.up = nn.Linear(d, 4 * d, bias=False)
        self.down = nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).split(d, dim=-1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).contiguous().view(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocab, length, d, layers, heads):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d, bias=False)
        self.lm_head = nn.Linear(d, vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 / math.sqrt(2 * layers) if name.endswith(("proj.weight", "down.weight")) else 0.02
                nn.init.normal_(p, std=std)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    total = torch.zeros(2, device=device)
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x.to(device), y.to(device))
        total += torch.stack([loss.float() * y.numel(), torch.tensor(float(y.numel()), device=device)])
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=32768)
    ap.add_argument("--length", type=int, default=768)
    ap.add_argument("--dim", type=int, default=1024)
    ap.add_argument("--layers", type=int, default=12)
    ap.add_argument("--heads", type=int, default=16)
    ap.add_argument("--micro-batch", type=int, default=6)
    ap.add_argument("--accumulate", type=int, default=4)
    ap.add_argument("--updates", type=int, default=20)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(17)

    train = TokenWindows(world * args.micro_batch * args.accumulate * args.updates, args.length, args.vocab, 1)
    valid = TokenWindows(world * args.micro_batch * 4, args.length, args.vocab, 2)
    sampler = DistributedSampler(train, shuffle=True, drop_last=True)
    train_loader = DataLoader(train, args.micro_batch, sampler=sampler, pin_memory=True, drop_last=True)
    valid_loader = DataLoader(valid, args.micro_batch, sampler=DistributedSampler(valid, shuffle=False))

    model = GPT(args.vocab, args.length, args.dim, args.layers, args.heads).to(device)
    ddp = DDP(model, device_ids=[local_rank], gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=args.updates, pct_start=0.2)
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {world} ranks")

    sampler.set_epoch(0)
    t0, running = time.time(), torch.zeros((), device=device)
    for i, (x, y) in enumerate(train_loader, 1):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        last = i % args.accumulate == 0
        with contextlib.nullcontext() if last else ddp.no_sync():
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = ddp(x, y) / args.accumulate
            loss.backward()
        running += loss.detach()
        if last:
            norm = nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            update = i // args.accumulate
            if update % 4 == 0:
                dist.all_reduce(running, op=dist.ReduceOp.SUM)
                if rank == 0:
                    print(f"update {update} loss {running.item() / world:.4f} norm {norm.item():.2f} {time.time() - t0:.1f} s", flush=True)
            running.zero_()

    loss = validate(ddp, valid_loader, device)
    if rank == 0:
        print(f"validation loss {loss:.4f}")
        with tempfile.TemporaryDirectory() as d:
            torch.save(ddp.module.state_dict(), os.path.join(d, "gpt.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
