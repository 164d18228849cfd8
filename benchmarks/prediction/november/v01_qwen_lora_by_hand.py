# Instruction tuning of a Qwen2-style decoder with LoRA adapters written from scratch.
import argparse
import math
import os
import tempfile

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, Qwen2Config, get_cosine_schedule_with_warmup


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float):
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        dev = base.weight.device
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features, device=dev, dtype=torch.float32))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank, device=dev, dtype=torch.float32))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.scale = alpha / rank
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        delta = nn.functional.linear(nn.functional.linear(self.drop(x), self.lora_a), self.lora_b)
        return self.base(x) + delta * self.scale

    @torch.no_grad()
    def merge(self):
        self.base.weight += (self.lora_b @ self.lora_a * self.scale).to(self.base.weight.dtype)
        return self.base


def inject(model, targets, rank, alpha, dropout):
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and n.split(".")[-1] in targets]
    for name, module in found:
        parent = model.get_submodule(name.rsplit(".", 1)[0])
        setattr(parent, name.rsplit(".", 1)[1], LoRALinear(module, rank, alpha, dropout))
    return len(found)


class Instructions(Dataset):
    """Prompt + answer pairs; loss only on the answer."""

    def __init__(self, n, vocab, min_len, max_len, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            length = int(torch.randint(min_len, max_len + 1, (1,), generator=g))
            prompt = int(length * (0.3 + 0.4 * torch.rand(1, generator=g).item()))
            start = int(torch.randint(3, vocab - 2 * length - 3, (1,), generator=g))
            ids = start + 2 * torch.arange(length)
            labels = ids.clone()
            labels[:prompt] = -100
            self.rows.append((ids, labels))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = pad_sequence([r[0] for r in rows], batch_first=True, padding_value=0)
    labels = pad_sequence([r[1] for r in rows], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    total, count = 0.0, 0
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            total += model(**batch, use_cache=False).loss.item()
        count += 1
    model.train()
    return total / max(count, 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--hidden", type=int, default=1408)
    p.add_argument("--layers", type=int, default=15)
    p.add_argument("--vocab", type=int, default=41000)
    p.add_argument("--rank", type=int, default=12)
    p.add_argument("--batch", type=int, default=5)
    p.add_argument("--max-len", type=int, default=530)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--steps", type=int, default=42)
    p.add_argument("--lr", type=float, default=3e-4)
    args = p.parse_args()

    torch.manual_seed(11)
    device = torch.device("cuda")
    cfg = Qwen2Config(
        vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=args.hidden * 3,
        num_hidden_layers=args.layers, num_attention_heads=args.hidden // 64, num_key_value_heads=2,
        max_position_embeddings=2048, tie_word_embeddings=True,
    )
    with device:
        model = AutoModelForCausalLM.from_config(cfg, dtype=torch.bfloat16)
    model.requires_grad_(False)
    n = inject(model, {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"}, args.rank, 2.0 * args.rank, 0.05)
    trainable = [q for q in model.parameters() if q.requires_grad]
    print(f"{n} adapters, {sum(q.numel() for q in trainable) / 1e6:.2f}M trainable of "
          f"{sum(q.numel() for q in model.parameters()) / 1e6:.1f}M")

    micro = args.steps * args.accum
    train = DataLoader(Instructions(micro * args.batch, args.vocab, args.max_len // 4, args.max_len, 1),
                       batch_size=args.batch, shuffle=True, collate_fn=collate, pin_memory=True)
    val = DataLoader(Instructions(8 * args.batch, args.vocab, args.max_len // 4, args.max_len, 2),
                     batch_size=2 * args.batch, collate_fn=collate)
    opt = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0)
    sched = get_cosine_schedule_with_warmup(opt, args.steps // 10 + 1, args.steps)

    model.train()
    running, step = 0.0, 0
    for i, batch in enumerate(train):
        batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch, use_cache=False).loss / args.accum
        loss.backward()
        running += loss.detach()
        if (i + 1) % args.accum == 0:
            norm = nn.utils.clip_grad_norm_(trainable, 1.0)
            opt.step()
            sched.step()
            opt.zero_grad(set_to_none=True)
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {running.item() / 10:.4f} norm {norm.item():.3f} lr {sched.get_last_lr()[0]:.2e}")
                running = 0.0
    print(f"val loss {evaluate(model, val, device):.4f}")

    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "adapter.pt")
        torch.save({k: v.cpu() for k, v in model.state_dict().items() if "lora_" in k}, path)
        print(f"adapter file {os.path.getsize(path) / 2**20:.1f} MB")

    for name, module in list(model.named_modules()):
        if isinstance(module, LoRALinear):
            parent = model.get_submodule(name.rsplit(".", 1)[0])
            setattr(parent, name.rsplit(".", 1)[1], module.merge())
    print(f"val loss after merging {evaluate(model, val, device):.4f}")


if __name__ == "__main__":
    main()
