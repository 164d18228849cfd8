"""Instruction tuning of a small Llama with low-rank adapters, written without peft."""
import argparse
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, get_cosine_schedule_with_warmup

IGNORE = -100


class InstructionSet(Dataset):
    """Pairs of prompt and answer as token ids; only the answer is learnt."""

    def __init__(self, n, vocab, min_len, max_len, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(n):
            length = int(rng.integers(min_len, max_len + 1))
            prompt = max(4, int(length * rng.uniform(0.2, 0.6)))
            ids = np.minimum(rng.zipf(1.3, size=length) + 3, vocab - 1)
            self.rows.append((torch.from_numpy(ids.astype(np.int64)), prompt))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, prompt = self.rows[i]
        labels = ids.clone()
        labels[:prompt] = IGNORE
        return ids, labels


def collate(rows, multiple=8):
    longest = max(len(ids) for ids, _ in rows)
    longest = (longest + multiple - 1) // multiple * multiple
    input_ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), IGNORE)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, (ids, lab) in enumerate(rows):
        input_ids[i, : len(ids)] = ids
        labels[i, : len(lab)] = lab
        mask[i, : len(ids)] = 1
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float):
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        device = base.weight.device
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features, device=device))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank, device=device))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        low = F.linear(F.linear(self.dropout(x), self.lora_a), self.lora_b)
        return self.base(x) + low * self.scale


def inject(model, targets, rank, alpha, dropout):
    for p in model.parameters():
        p.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name in targets:
                setattr(module, name, LoRALinear(child, rank, alpha, dropout))
    return [p for p in model.parameters() if p.requires_grad]


def loss_of(model, batch):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits
    logits = logits[:, :-1].float()
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), batch["labels"][:, 1:].reshape(-1), ignore_index=IGNORE)


@torch.no_grad()
def perplexity(model, loader, device):
    model.eval()
    losses = [loss_of(model, {k: v.to(device) for k, v in b.items()}).item() for b in loader]
    model.train()
    return math.exp(min(20.0, sum(losses) / len(losses)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--hidden", type=int, default=2048)
    ap.add_argument("--layers", type=int, default=16)
    ap.add_argument("--intermediate", type=int, default=5632)
    ap.add_argument("--vocab", type=int, default=32000)
    ap.add_argument("--batch-size", type=int, default=4)
    ap.add_argument("--max-len", type=int, default=640)
    ap.add_argument("--steps", type=int, default=48)
    ap.add_argument("--rank", type=int, default=16)
    ap.add_argument("--lr", type=float, default=2e-4)
    args = ap.parse_args()

    torch.manual_seed(13)
    device = torch.device("cuda")
    config = LlamaConfig(hidden_size=args.hidden, num_hidden_layers=args.layers, intermediate_size=args.intermediate,
                         num_attention_heads=args.hidden // 64, num_key_value_heads=args.hidden // 256,
                         vocab_size=args.vocab, max_position_embeddings=2048, tie_word_embeddings=True)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to(device)
    trainable = inject(model, {"q_proj", "k_proj", "v_proj", "o_proj", "down_proj"}, args.rank, 2 * args.rank, 0.05)
    total = sum(p.numel() for p in model.parameters())
    print(f"parameters {total / 1e6:.1f}M, trainable {sum(p.numel() for p in trainable) / 1e6:.2f}M")

    train = InstructionSet(args.steps * args.batch_size, args.vocab, args.max_len // 4, args.max_len, seed=1)
    dev = InstructionSet(6 * args.batch_size, args.vocab, args.max_len // 4, args.max_len, seed=2)
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, collate_fn=collate, drop_last=True)
    dev_loader = DataLoader(dev, batch_size=args.batch_size * 2, collate_fn=collate)

    optimizer = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0)
    scheduler = get_cosine_schedule_with_warmup(optimizer, args.steps // 10, args.steps)
    model.train()
    print(f"before: dev perplexity {perplexity(model, dev_loader, device):.1f}")
    for step, batch in enumerate(train_loader, 1):
        batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 8 == 0:
            print(f"step {step} len {batch['input_ids'].shape[1]} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
    print(f"after: dev perplexity {perplexity(model, dev_loader, device):.1f}")

    with tempfile.TemporaryDirectory() as folder:
        adapters = {k: v.cpu() for k, v in model.state_dict().items() if "lora_" in k}
        path = os.path.join(folder, "adapter.pt")
        torch.save(adapters, path)
        print(f"adapter saved: {len(adapters)} tensors, {os.path.getsize(path) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
