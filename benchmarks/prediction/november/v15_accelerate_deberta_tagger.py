# Token tagging with a DeBERTa-v2 configuration in an Accelerate loop with gradient accumulation.
import argparse
import os
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import DebertaV2Config, DebertaV2ForTokenClassification, get_linear_schedule_with_warmup


class TaggedSentences(Dataset):
    def __init__(self, n, vocab, tags, max_len, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(max_len // 3, max_len + 1, (1,), generator=g))
            ids = torch.randint(4, vocab, (length,), generator=g)
            self.items.append({"input_ids": ids, "labels": (ids + ids.roll(1)) % tags})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(rows):
    ids = pad_sequence([r["input_ids"] for r in rows], batch_first=True, padding_value=0)
    labels = pad_sequence([r["labels"] for r in rows], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def parameter_groups(model, lr, decay):
    groups = {}
    for name, p in model.named_parameters():
        no_decay = name.endswith("bias") or "LayerNorm" in name
        head = name.startswith("classifier")
        key = (no_decay, head)
        groups.setdefault(key, {"params": [], "weight_decay": 0.0 if no_decay else decay, "lr": lr * (5 if head else 1)})
        groups[key]["params"].append(p)
    return list(groups.values())


def evaluate(model, loader, accelerator):
    model.eval()
    right = total = 0
    for batch in loader:
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        pred, labels = accelerator.gather_for_metrics(
            (accelerator.pad_across_processes(logits.argmax(-1), dim=1),
             accelerator.pad_across_processes(batch["labels"], dim=1, pad_index=-100)))
        keep = labels != -100
        right += (pred[keep] == labels[keep]).sum().item()
        total += keep.sum().item()
    return right / max(total, 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=28000)
    p.add_argument("--hidden", type=int, default=640)
    p.add_argument("--layers", type=int, default=9)
    p.add_argument("--tags", type=int, default=23)
    p.add_argument("--max-len", type=int, default=290)
    p.add_argument("--batch", type=int, default=17)
    p.add_argument("--accum", type=int, default=3)
    p.add_argument("--updates", type=int, default=30)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--precision", default="bf16", choices=["no", "bf16", "fp16"])
    args = p.parse_args()

    set_seed(15)
    accelerator = Accelerator(mixed_precision=args.precision, gradient_accumulation_steps=args.accum)
    assert accelerator.device.type == "cuda"
    cfg = DebertaV2Config(
        vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64, intermediate_size=args.hidden * 4, max_position_embeddings=512,
        relative_attention=True, position_buckets=128, norm_rel_ebd="layer_norm", share_att_key=True,
        pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0, num_labels=args.tags,
    )
    model = DebertaV2ForTokenClassification(cfg)
    train = DataLoader(TaggedSentences(args.updates * args.accum * args.batch, args.vocab, args.tags, args.max_len, 1),
                       batch_size=args.batch, shuffle=True, collate_fn=collate)
    val = DataLoader(TaggedSentences(args.batch * 10, args.vocab, args.tags, args.max_len, 2),
                     batch_size=args.batch * 2, collate_fn=collate)
    opt = torch.optim.AdamW(parameter_groups(model, args.lr, 0.01), betas=(0.9, 0.98), eps=1e-6)
    sched = get_linear_schedule_with_warmup(opt, max(1, args.updates // 10), args.updates)
    model, opt, train, val, sched = accelerator.prepare(model, opt, train, val, sched)
    accelerator.print(f"{sum(q.numel() for q in model.parameters()) / 1e6:.1f}M parameters")

    updates, running = 0, 0.0
    with tempfile.TemporaryDirectory() as tmp:
        model.train()
        for batch in train:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
            running += loss.detach().float()
            if accelerator.sync_gradients:
                updates += 1
                if updates % 6 == 0:
                    accelerator.print(f"update {updates} loss {running.item() / (6 * args.accum):.4f} "
                                      f"lr {sched.get_last_lr()[0]:.2e}")
                    running = 0.0
                if updates == args.updates // 2:
                    accelerator.print(f"mid accuracy {evaluate(model, val, accelerator):.3f}")
                    accelerator.save_state(os.path.join(tmp, "state"))
                    model.train()
        accelerator.print(f"final accuracy {evaluate(model, val, accelerator):.3f}")
        accelerator.wait_for_everyone()
        accelerator.unwrap_model(model).save_pretrained(os.path.join(tmp, "final"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
