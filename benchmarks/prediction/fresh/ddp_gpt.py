"""A GPT under DistributedDataParallel: torchrun --nproc-per-node 2 ddp_gpt.py"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Block(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, vocab=16000, size=768, layers=8, context=512):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, size), nn.Embedding(context, size)
        self.blocks = nn.ModuleList(Block(size, 12) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, vocab, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--view", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(rank)
    model = DDP(GPT().to(local), device_ids=[local], gradient_as_bucket_view=args.view)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = TensorDataset(torch.randint(0, 16000, (8 * args.batch_size, 512)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, pin_memory=True)
    sampler.set_epoch(0)
    for step, (ids,) in enumerate(loader):
        ids = ids.to(local, non_blocking=True)
        model.require_backward_grad_sync = (step + 1) % args.accumulate == 0
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(ids)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) / args.accumulate
        loss.backward()
        if model.require_backward_grad_sync:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(step, total.item() / dist.get_world_size())
    dist.barrier()
    if rank == 0:
        torch.save(model.module.state_dict(), os.devnull)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
