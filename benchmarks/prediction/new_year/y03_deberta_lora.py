"""Fine-tunes DeBERTa-v2 for sentence-pair classification with LoRA written by hand; fp16 with a gradient scaler."""
import argparse
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification, get_cosine_schedule_with_warmup


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank=16, alpha=32, dropout=0.05):
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.scale = alpha / rank
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(self.drop(x), self.down), self.up)


def inject(model, targets, rank):
    wrapped = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name in targets:
                setattr(module, name, LoRALinear(child, rank))
                wrapped += 1
    return wrapped


def lora_state(model):
    return {k: v for k, v in model.state_dict().items() if k.endswith((".down", ".up")) or k.startswith(("classifier", "pooler"))}


class PairDataset(Dataset):
    """Two halves either share their token range (1), oppose (2) or are unrelated (0)."""

    def __init__(self, n, vocab, max_len, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            label = int(torch.randint(3, (1,), generator=g))
            length = int(torch.randint(max_len // 3, max_len + 1, (1,), generator=g))
            first = torch.randint(100, vocab // 2, (length // 2,), generator=g)
            second = torch.randint(100, vocab // 2, (length - length // 2,), generator=g) + (vocab // 2 - 100) * (label == 2)
            if label == 1:
                second[:length // 4] = first[:length // 4]
            self.rows.append((torch.cat([first, second]), length // 2, label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pad_to(multiple):
    def collate(rows):
        longest = max(len(r[0]) for r in rows)
        width = (longest + multiple - 1) // multiple * multiple
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        types = torch.zeros_like(ids)
        for i, (tokens, cut, _) in enumerate(rows):
            ids[i, :len(tokens)] = tokens
            types[i, cut:len(tokens)] = 1
        return ids, (ids != 0).long(), types, torch.tensor([r[2] for r in rows])
    return collate


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = total = 0
    for ids, mask, types, labels in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(input_ids=ids.cuda(), attention_mask=mask.cuda(), token_type_ids=types.cuda()).logits
        hits += (logits.argmax(-1).cpu() == labels).sum().item()
        total += len(labels)
    model.train()
    return hits / total


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=128100)
    p.add_argument("--hidden", type=int, default=768)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--batch", type=int, default=26)
    p.add_argument("--max-len", type=int, default=200)
    p.add_argument("--train-size", type=int, default=900)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--rank", type=int, default=12)
    args = p.parse_args()
    torch.manual_seed(0)

    config = DebertaV2Config(
        vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers, intermediate_size=4 * args.hidden,
        num_attention_heads=args.hidden // 64, type_vocab_size=2, relative_attention=True, position_buckets=256,
        norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"], max_relative_positions=-1,
        position_biased_input=False, num_labels=3, pooler_hidden_size=args.hidden, layer_norm_eps=1e-7)
    model = DebertaV2ForSequenceClassification(config)
    model.requires_grad_(False)
    n = inject(model, {"query_proj", "value_proj"}, args.rank)
    model.classifier.requires_grad_(True)
    model.pooler.requires_grad_(True)
    model.to("cuda").train()
    trainable = [t for t in model.parameters() if t.requires_grad]
    print(f"LoRA in {n} layers; {sum(t.numel() for t in trainable) / 1e6:.2f}M of "
          f"{sum(t.numel() for t in model.parameters()) / 1e6:.1f}M parameters are trained")

    collate = pad_to(8)
    train = DataLoader(PairDataset(args.train_size, args.vocab, args.max_len, 1), args.batch, shuffle=True,
                       drop_last=True, collate_fn=collate)
    dev = DataLoader(PairDataset(args.train_size // 5, args.vocab, args.max_len + 56, 2), 2 * args.batch, collate_fn=collate)
    opt = torch.optim.AdamW(trainable, lr=5e-4, weight_decay=0.01)
    total = args.epochs * len(train)
    sched = get_cosine_schedule_with_warmup(opt, total // 10, total)
    scaler = torch.amp.GradScaler("cuda")

    for epoch in range(args.epochs):
        for step, (ids, mask, types, labels) in enumerate(train):
            with torch.autocast("cuda", dtype=torch.float16):
                out = model(input_ids=ids.cuda(), attention_mask=mask.cuda(), token_type_ids=types.cuda())
                loss = F.cross_entropy(out.logits.float(), labels.cuda(), label_smoothing=0.05)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(trainable, 1.0)
            scaler.step(opt)
            scaler.update()
            sched.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} width {ids.shape[1]} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
        print(f"epoch {epoch} dev accuracy {accuracy(model, dev):.3f}")
        with tempfile.TemporaryDirectory() as d:
            torch.save(lora_state(model), os.path.join(d, "adapter.pt"))
            print("adapter bytes", os.path.getsize(os.path.join(d, "adapter.pt")))


if __name__ == "__main__":
    main()
