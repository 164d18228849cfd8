"""Masked modelling of DNA with a deep encoder: FSDP2, activation checkpointing, held-out evaluation, full checkpoint.

torchrun --nproc-per-node 2 t04_fsdp2_dna_encoder.py
"""
import argparse
import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl, apply_activation_checkpointing, checkpoint_wrapper)
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PAD, MASK, BASES = 0, 1, 6


class Genome(Dataset):
    """Windows of 3-mers cut from one random sequence."""

    def __init__(self, windows, length, seed):
        g = torch.Generator().manual_seed(seed)
        letters = torch.randint(0, 4, (windows * length // 2 + length + 3,), generator=g)
        kmers = letters[:-2] * 16 + letters[1:-1] * 4 + letters[2:]
        self.kmers = (kmers + BASES).to(torch.int16)
        self.windows, self.length = windows, length

    def __len__(self):
        return self.windows

    def __getitem__(self, i):
        start = i * self.length // 2
        return self.kmers[start:start + self.length].long()


class EncoderBlock(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + F.dropout(self.out(y), self.dropout, self.training)
        return x + F.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))), self.dropout, self.training)


class DNAEncoder(nn.Module):
    def __init__(self, vocab, length, dim, depth, heads, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(EncoderBlock(dim, heads, dropout) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, vocab))

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def corrupt(ids, vocab, rate, generator):
    picked = torch.rand(ids.shape, generator=generator, device=ids.device) < rate
    labels = ids.masked_fill(~picked, -100)
    roll = torch.rand(ids.shape, generator=generator, device=ids.device)
    noisy = ids.masked_fill(picked & (roll < 0.8), MASK)
    random_ids = torch.randint(BASES, vocab, ids.shape, generator=generator, device=ids.device)
    return torch.where(picked & (roll > 0.9), random_ids, noisy), labels


def mlm_loss(logits, labels):
    return F.cross_entropy(logits.float().view(-1, logits.size(-1)), labels.view(-1), ignore_index=-100)


@torch.no_grad()
def evaluate(model, loader, vocab, device):
    model.eval()
    generator = torch.Generator(device=device).manual_seed(0)
    sums = torch.zeros(3, device=device)
    for ids in loader:
        noisy, labels = corrupt(ids.to(device), vocab, 0.15, generator)
        logits = model(noisy)
        keep = labels != -100
        right = (logits.argmax(-1) == labels)[keep].sum()
        sums += torch.stack([mlm_loss(logits, labels) * keep.sum(), right.float(), keep.sum().float()])
    dist.all_reduce(sums)
    model.train()
    return math.exp((sums[0] / sums[2]).item()), (sums[1] / sums[2]).item()


def shard(model):
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=lambda m: checkpoint_wrapper(m, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
        check_fn=lambda m: isinstance(m, EncoderBlock))
    dtypes = dict(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, mp_policy=MixedPrecisionPolicy(**dtypes))
    return fully_shard(model, mp_policy=MixedPrecisionPolicy(**dtypes, output_dtype=torch.float32))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dim", type=int, default=1280)
    ap.add_argument("--depth", type=int, default=24)
    ap.add_argument("--heads", type=int, default=20)
    ap.add_argument("--length", type=int, default=1500)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--eval-batch", type=int, default=10)
    ap.add_argument("--steps", type=int, default=24)
    ap.add_argument("--lr", type=float, default=2e-4)
    args = ap.parse_args()
    vocab = 64 + BASES

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(77)
    with device:
        model = DNAEncoder(vocab, args.length, args.dim, args.depth, args.heads)
    model = shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps, eta_min=args.lr / 20)
    torch.manual_seed(1000 + rank)
    generator = torch.Generator(device=device).manual_seed(500 + rank)

    train = Genome(world * args.batch * args.steps, args.length, 1)
    test = Genome(world * args.eval_batch * 3, args.length, 2)
    train_loader = DataLoader(train, args.batch, sampler=DistributedSampler(train), drop_last=True, pin_memory=True)
    test_loader = DataLoader(test, args.eval_batch, sampler=DistributedSampler(test, shuffle=False))

    for step, ids in enumerate(train_loader, 1):
        noisy, labels = corrupt(ids.to(device, non_blocking=True), vocab, 0.15, generator)
        loss = mlm_loss(model(noisy), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if rank == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
        if step % (args.steps // 2) == 0:
            perplexity, accuracy = evaluate(model, test_loader, vocab, device)
            if rank == 0:
                print(f"step {step}: held-out perplexity {perplexity:.2f} accuracy {accuracy:.4f}", flush=True)

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "encoder.pt")
            torch.save({k: v.to(torch.bfloat16) for k, v in state.items()}, path)
            print(f"saved {len(state)} tensors, {os.path.getsize(path) / 2**20:.0f} MiB")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
