import argparse
import math
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

TINY = os.environ.get("TINY") == "1"


class InstructionDataset(Dataset):
    """prompt + answer pairs; the loss is computed on the answer only."""

    def __init__(self, n, vocab, max_len, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            p = int(torch.randint(max_len // 4, max_len // 2, (1,), generator=g))
            a = int(torch.randint(max_len // 8, max_len // 2, (1,), generator=g))
            prompt = torch.randint(3, vocab, (p,), generator=g)
            answer = prompt.repeat(math.ceil(a / p))[:a].flip(0)
            self.items.append((prompt, answer))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        p, a = self.items[i]
        ids = torch.cat([torch.tensor([1]), p, a, torch.tensor([2])])
        labels = ids.clone()
        labels[: len(p) + 1] = -100
        return ids, labels


def collate(batch, pad_to=64):
    n = max(len(x[0]) for x in batch)
    n = (n + pad_to - 1) // pad_to * pad_to
    ids = torch.zeros(len(batch), n, dtype=torch.long)
    labels = torch.full((len(batch), n), -100)
    mask = torch.zeros(len(batch), n, dtype=torch.long)
    for i, (x, y) in enumerate(batch):
        ids[i, : len(x)] = x
        labels[i, : len(y)] = y
        mask[i, : len(x)] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--per_device_batch", type=int, default=2 if TINY else 6)
    ap.add_argument("--grad_accum", type=int, default=2)
    ap.add_argument("--max_len", type=int, default=64 if TINY else 512)
    ap.add_argument("--lora_r", type=int, default=16)
    ap.add_argument("--lr", type=float, default=2e-4)
    ap.add_argument("--updates", type=int, default=2 if TINY else 8)
    args = ap.parse_args()
    batch = max(1, round(args.per_device_batch * float(os.environ.get("SCALE", "1"))))

    set_seed(11)
    accelerator = Accelerator(gradient_accumulation_steps=args.grad_accum)

    if TINY:
        cfg = LlamaConfig(vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                          num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)
    else:
        cfg = LlamaConfig(vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12,
                          num_attention_heads=16, num_key_value_heads=4, max_position_embeddings=1024)
    cfg.use_cache = False
    base = LlamaForCausalLM(cfg).to(torch.bfloat16)

    peft_cfg = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=args.lora_r,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )
    model = get_peft_model(base, peft_cfg)
    if accelerator.is_main_process:
        model.print_trainable_parameters()

    ds = InstructionDataset(batch * args.grad_accum * args.updates, cfg.vocab_size, args.max_len)
    loader = DataLoader(ds, batch_size=batch, shuffle=True, collate_fn=collate, drop_last=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.lr, weight_decay=0.0)
    sched = get_cosine_schedule_with_warmup(optimizer, 2, args.updates)
    model, optimizer, loader, sched = accelerator.prepare(model, optimizer, loader, sched)

    model.train()
    running, seen = 0.0, 0
    for i, b in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**b).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            sched.step()
            optimizer.zero_grad()
        running += loss.item()
        seen += 1
        if seen % 4 == 0:
            accelerator.print(f"micro-step {i + 1} len {b['input_ids'].size(1)} loss {running / 4:.4f}")
            running = 0.0

    accelerator.print("done")


if __name__ == "__main__":
    main()
