"""LoRA instruction tuning of a Qwen3 decoder kept in bf16; loss on the answer only; adapters merged for generation."""
import argparse
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, Qwen3Config

PAD = 0


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha, dropout):
        super().__init__()
        self.base = base
        device = base.weight.device
        self.a = nn.Parameter(torch.empty(rank, base.in_features, device=device, dtype=torch.float32))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=device, dtype=torch.float32))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.scale, self.drop = alpha / rank, nn.Dropout(dropout)

    def forward(self, x):
        delta = F.linear(F.linear(self.drop(x), self.a.to(x.dtype)), self.b.to(x.dtype))
        return self.base(x) + self.scale * delta

    @torch.no_grad()
    def merged(self):
        self.base.weight += (self.scale * self.b @ self.a).to(self.base.weight.dtype)
        return self.base


def add_lora(model, targets, rank, alpha, dropout):
    for p in model.parameters():
        p.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets and isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, rank, alpha, dropout))
    return [p for p in model.parameters() if p.requires_grad]


def merge_lora(model):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LoRALinear):
                setattr(module, name, child.merged())


class Instructions(Dataset):
    """Prompt of random words; the answer is the prompt's every third word shifted by a constant."""

    def __init__(self, n, vocab, prompt, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            length = int(torch.randint(prompt[0], prompt[1] + 1, (1,), generator=g))
            p = torch.randint(10, min(vocab, 20000), (length,), generator=g)
            self.rows.append((p, torch.cat([(p[::3] + 17) % vocab, torch.tensor([2])])))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    longest = max(len(p) + len(a) for p, a in rows)
    ids = torch.full((len(rows), longest), PAD)
    labels = torch.full((len(rows), longest), -100)
    for i, (p, a) in enumerate(rows):
        n = len(p) + len(a)
        ids[i, :n] = torch.cat([p, a])
        labels[i, len(p):n] = a
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def to_gpu(batch):
    return {k: v.to("cuda", non_blocking=True) for k, v in batch.items()}


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    nll, hits, count = 0.0, 0, 0
    for batch in loader:
        batch = to_gpu(batch)
        out = model(**batch, use_cache=False)
        gold = batch["labels"][:, 1:]
        keep = gold != -100
        hits += ((out.logits[:, :-1].argmax(-1) == gold) & keep).sum().item()
        nll += out.loss.item() * keep.sum().item()
        count += keep.sum().item()
    model.train()
    return nll / count, hits / count


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--hidden", type=int, default=1024)
    ap.add_argument("--layers", type=int, default=20)
    ap.add_argument("--heads", type=int, default=16)
    ap.add_argument("--kv-heads", type=int, default=8)
    ap.add_argument("--ffn", type=int, default=3072)
    ap.add_argument("--vocab", type=int, default=110000)
    ap.add_argument("--rank", type=int, default=24)
    ap.add_argument("--alpha", type=float, default=48)
    ap.add_argument("--dropout", type=float, default=0.05)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--prompt", type=int, nargs=2, default=[60, 235])
    ap.add_argument("--n-train", type=int, default=160)
    ap.add_argument("--n-val", type=int, default=20)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()

    torch.manual_seed(300)
    config = Qwen3Config(vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers,
                         num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, head_dim=128,
                         intermediate_size=args.ffn, tie_word_embeddings=True, max_position_embeddings=2048,
                         pad_token_id=PAD, bos_token_id=1, eos_token_id=2)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    trainable = add_lora(model, {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"}, args.rank, args.alpha,
                         args.dropout)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters, "
          f"{sum(p.numel() for p in trainable) / 1e6:.2f} M trainable")
    train = DataLoader(Instructions(args.n_train, args.vocab, args.prompt, 1), batch_size=args.batch, shuffle=True,
                       collate_fn=collate, drop_last=True, pin_memory=True)
    val = DataLoader(Instructions(args.n_val, args.vocab, args.prompt, 2), batch_size=args.batch, collate_fn=collate)
    optimizer = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0, foreach=False)
    updates = len(train) // args.accum
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=updates + 1, pct_start=0.15)

    model.train()
    for step, batch in enumerate(train, 1):
        batch = to_gpu(batch)
        loss = model(**batch, use_cache=False).loss / args.accum
        loss.backward()
        if step % args.accum == 0:
            norm = torch.nn.utils.clip_grad_norm_(trainable, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % (4 * args.accum) == 0:
                print(f"step {step} tokens {tuple(batch['input_ids'].shape)} loss {loss.item() * args.accum:.4f} "
                      f"norm {norm.item():.3f}")
    nll, acc = evaluate(model, val)
    print(f"validation: loss {nll:.4f}, answer token accuracy {acc:.4f}")

    with tempfile.TemporaryDirectory() as d:
        adapter = {k: v.cpu() for k, v in model.state_dict().items() if k.endswith((".a", ".b"))}
        torch.save(adapter, os.path.join(d, "adapter.pt"))
    merge_lora(model)
    model.eval()
    prompts = torch.randint(10, args.vocab, (6, 64), device="cuda")
    out = model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), do_sample=False,
                         min_new_tokens=20, max_new_tokens=20)
    print("generated", tuple(out.shape))


if __name__ == "__main__":
    main()
