"""Llama-like decoder sharded with FSDP2: built on the meta device, bf16 compute, fp32 gradient reduction.

torchrun --nproc-per-node 2 t03_fsdp2_llama.py
"""
import argparse
import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


@dataclass
class ModelArgs:
    vocab: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    max_len: int
    theta: float = 500000.0


def rope_tables(args, device):
    hd = args.dim // args.heads
    inv = 1.0 / args.theta ** (torch.arange(0, hd, 2, device=device).float() / hd)
    angles = torch.outer(torch.arange(args.max_len, device=device).float(), inv)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = cos[None, : x.size(1), None], sin[None, : x.size(1), None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).type_as(x)


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.h, self.kv, self.hd = a.heads, a.kv_heads, a.dim // a.heads
        self.wq = nn.Linear(a.dim, a.heads * self.hd, bias=False)
        self.wk = nn.Linear(a.dim, a.kv_heads * self.hd, bias=False)
        self.wv = nn.Linear(a.dim, a.kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(a.heads * self.hd, a.dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = rotate(self.wq(x).view(b, t, self.h, self.hd), cos, sin)
        k = rotate(self.wk(x).view(b, t, self.kv, self.hd), cos, sin)
        v = self.wv(x).view(b, t, self.kv, self.hd)
        k, v = (z.repeat_interleave(self.h // self.kv, dim=2) for z in (k, v))
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.wo(o.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.w1 = nn.Linear(a.dim, a.ffn, bias=False)
        self.w3 = nn.Linear(a.dim, a.ffn, bias=False)
        self.w2 = nn.Linear(a.ffn, a.dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.attn_norm, self.ffn_norm = nn.RMSNorm(a.dim, eps=1e-5), nn.RMSNorm(a.dim, eps=1e-5)
        self.attn, self.ffn = Attention(a), FeedForward(a)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.attn_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.args = a
        self.embed = nn.Embedding(a.vocab, a.dim)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.dim, eps=1e-5)
        self.output = nn.Linear(a.dim, a.vocab, bias=False)
        cos, sin = rope_tables(a, None)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @torch.no_grad()
    def init_weights(self, device):
        self.cos, self.sin = rope_tables(self.args, device)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.RMSNorm):
                nn.init.ones_(module.weight)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.output(self.norm(x))


def batches(n, batch, length, vocab, seed, device):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        ids = (torch.rand(batch, length + 1, generator=g).pow(3) * vocab).long()
        yield ids[:, :-1].to(device), ids[:, 1:].to(device)


def step_loss(model, x, y):
    logits = model(x)
    return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=32000)
    ap.add_argument("--dim", type=int, default=1536)
    ap.add_argument("--layers", type=int, default=18)
    ap.add_argument("--heads", type=int, default=12)
    ap.add_argument("--kv-heads", type=int, default=4)
    ap.add_argument("--ffn", type=int, default=4096)
    ap.add_argument("--length", type=int, default=896)
    ap.add_argument("--batch", type=int, default=3)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("dp",))
    torch.manual_seed(2)

    config = ModelArgs(args.vocab, args.dim, args.layers, args.heads, args.kv_heads, args.ffn, args.length)
    with torch.device("meta"):
        model = Llama(config)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    model.init_weights(device)

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters over {world} ranks", flush=True)

    model.train()
    t0 = time.time()
    for step, (x, y) in enumerate(batches(args.steps, args.batch, args.length, args.vocab, 1000 + rank, device), 1):
        loss = step_loss(model, x, y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            total_norm = norm.full_tensor().item()
            if rank == 0:
                rate = step * world * x.numel() / (time.time() - t0)
                print(f"step {step} loss {shown.item() / world:.4f} norm {total_norm:.2f} {rate:.0f} tokens/s", flush=True)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
