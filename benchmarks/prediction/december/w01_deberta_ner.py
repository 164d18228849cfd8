"""Fine-tune a DeBERTa-v3 style encoder for named entity recognition.

fp16 with GradScaler, layer-wise learning-rate decay, FGM adversarial step on the word embeddings
and length-bucketed batches (max_tokens per batch instead of a fixed batch size).
"""
import argparse
import os
import random
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import DebertaV2Config, DebertaV2ForTokenClassification, get_linear_schedule_with_warmup

LABELS = ["O"] + [f"{p}-{t}" for t in ("PER", "ORG", "LOC", "DATE", "PROD", "LAW") for p in "BI"]


class SyntheticNer(Dataset):
    def __init__(self, n, vocab, max_len, seed):
        rng = np.random.default_rng(seed)
        lengths = np.clip(rng.lognormal(4.9, 0.55, n).astype(int), 16, max_len)
        self.rows = []
        for length in lengths:
            ids = rng.integers(5, vocab, length)
            tags = np.where(ids % 11 < 2, 1 + ids % (len(LABELS) - 1), 0)
            tags[rng.random(length) < 0.15] = -100  # word pieces after the first
            self.rows.append((torch.from_numpy(ids), torch.from_numpy(tags)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class TokenBudgetSampler(Sampler):
    """Batches of sentences of similar length, at most `budget` padded tokens each."""

    def __init__(self, dataset, budget, shuffle, seed=0):
        self.budget, self.shuffle, self.rng = budget, shuffle, random.Random(seed)
        order = sorted(range(len(dataset)), key=lambda i: len(dataset.rows[i][0]))
        self.batches, cur, longest = [], [], 0
        for i in order:
            longest = max(longest, len(dataset.rows[i][0]))
            if cur and longest * (len(cur) + 1) > budget:
                self.batches.append(cur)
                cur, longest = [], len(dataset.rows[i][0])
            cur.append(i)
        self.batches.append(cur)

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        batches = list(self.batches)
        if self.shuffle:
            self.rng.shuffle(batches)
        return iter(batches)


def collate(rows):
    longest = -(-max(len(r[0]) for r in rows) // 8) * 8
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    tags = torch.full_like(ids, -100)
    for k, (i, t) in enumerate(rows):
        ids[k, : len(i)], mask[k, : len(i)], tags[k, : len(i)] = i, 1, t
    return {"input_ids": ids, "attention_mask": mask, "labels": tags}


def layerwise_groups(model, lr, decay, n_layers):
    groups = {}
    for name, p in model.named_parameters():
        if name.startswith("classifier"):
            depth = n_layers + 1
        elif ".layer." in name:
            depth = int(name.split(".layer.")[1].split(".")[0]) + 1
        else:
            depth = 0
        wd = 0.0 if p.ndim < 2 else 0.01
        g = groups.setdefault((depth, wd), {"params": [], "weight_decay": wd, "lr": lr * decay ** (n_layers + 1 - depth)})
        g["params"].append(p)
    return list(groups.values())


class FGM:
    def __init__(self, weight, eps):
        self.weight, self.eps, self.backup = weight, eps, None

    def attack(self):
        self.backup = self.weight.data.clone()
        g = self.weight.grad
        self.weight.data.add_(g * (self.eps / (g.norm() + 1e-6)))

    def restore(self):
        self.weight.data.copy_(self.backup)
        self.backup = None


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    hit = pred_n = gold_n = 0
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.autocast("cuda", dtype=torch.float16):
            pred = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.argmax(-1)
        keep = batch["labels"] != -100
        p, g = pred[keep], batch["labels"][keep]
        hit += ((p == g) & (g > 0)).sum().item()
        pred_n += (p > 0).sum().item()
        gold_n += (g > 0).sum().item()
    model.train()
    return 2 * hit / max(1, pred_n + gold_n)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=64100)
    ap.add_argument("--hidden", type=int, default=768)
    ap.add_argument("--layers", type=int, default=10)
    ap.add_argument("--tokens", type=int, default=6600)
    ap.add_argument("--max-len", type=int, default=420)
    ap.add_argument("--sentences", type=int, default=2000)
    ap.add_argument("--max-steps", type=int, default=50)
    ap.add_argument("--lr", type=float, default=4e-5)
    ap.add_argument("--fgm-eps", type=float, default=0.6)
    args = ap.parse_args()
    random.seed(13), np.random.seed(13), torch.manual_seed(13)
    device = torch.device("cuda")

    cfg = DebertaV2Config(vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers,
                          num_attention_heads=args.hidden // 64, intermediate_size=4 * args.hidden,
                          relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
                          pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0,
                          max_position_embeddings=512, num_labels=len(LABELS))
    model = DebertaV2ForTokenClassification(cfg).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")

    train = SyntheticNer(args.sentences, args.vocab, args.max_len, 1)
    dev = SyntheticNer(args.sentences // 8, args.vocab, args.max_len, 2)
    train_dl = DataLoader(train, batch_sampler=TokenBudgetSampler(train, args.tokens, True), collate_fn=collate, pin_memory=True)
    dev_dl = DataLoader(dev, batch_sampler=TokenBudgetSampler(dev, 2 * args.tokens, False), collate_fn=collate)

    opt = torch.optim.AdamW(layerwise_groups(model, args.lr, 0.9, args.layers), eps=1e-6)
    sched = get_linear_schedule_with_warmup(opt, args.max_steps // 10, args.max_steps)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 12)
    fgm = FGM(model.get_input_embeddings().weight, args.fgm_eps)
    out_dir = tempfile.mkdtemp(prefix="ner_")
    step, best, start = 0, -1.0, time.time()
    while step < args.max_steps:
        for batch in train_dl:
            batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(**batch).loss
            scaler.scale(loss).backward()
            if step % 2 == 1:  # adversarial pass every other step, gradients add up
                fgm.attack()
                with torch.autocast("cuda", dtype=torch.float16):
                    adv = model(**batch).loss
                scaler.scale(adv).backward()
                fgm.restore()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
            sched.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step} shape {tuple(batch['input_ids'].shape)} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
            if step % 25 == 0 or step == args.max_steps:
                f1 = evaluate(model, dev_dl, device)
                print(f"  token F1 {f1:.4f}")
                if f1 > best:
                    best = f1
                    torch.save(model.state_dict(), os.path.join(out_dir, "best.pt"))
            if step >= args.max_steps:
                break
    print(f"done in {time.time() - start:.1f} s, best F1 {best:.4f}")


if __name__ == "__main__":
    main()
