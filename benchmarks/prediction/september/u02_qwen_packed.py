"""Continue-training of a Qwen2-shaped decoder in pure bf16 with gradient checkpointing on packed documents."""
import argparse
import random
import time

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import Qwen2Config, Qwen2ForCausalLM


class PackedDocs(IterableDataset):
    """Greedy packing: documents of random length are laid one after another; positions restart at each of them."""

    def __init__(self, seq_len, vocab, seed, n_rows):
        self.seq_len, self.vocab, self.seed, self.n_rows = seq_len, vocab, seed, n_rows

    def documents(self):
        rng = random.Random(self.seed)
        g = torch.Generator().manual_seed(self.seed)
        while True:
            n = int(min(max(rng.lognormvariate(5.6, 0.9), 24), self.seq_len))
            topic = rng.randrange(self.vocab - 500)
            yield topic + torch.randint(0, 500, (n,), generator=g)

    def __iter__(self):
        docs = self.documents()
        left = next(docs)
        for _ in range(self.n_rows):
            ids, pos, labels, room = [], [], [], self.seq_len
            while room > 0:
                part, left = left[:room], left[room:]
                lab = part.clone()
                lab[0] = -100
                ids.append(part)
                labels.append(lab)
                pos.append(torch.arange(len(part)))
                room -= len(part)
                if len(left) == 0:
                    left = next(docs)
            yield {"input_ids": torch.cat(ids), "position_ids": torch.cat(pos), "labels": torch.cat(labels)}


def make_model(args):
    cfg = Qwen2Config(
        vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=args.ffn, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, max_position_embeddings=args.seq_len,
        tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa", pad_token_id=None)
    model = Qwen2ForCausalLM(cfg).to(device="cuda", dtype=torch.bfloat16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def to_cuda(batch):
    return {k: v.cuda(non_blocking=True) for k, v in batch.items()}


@torch.inference_mode()
def validate(model, loader):
    model.eval()
    losses = [model(**to_cuda(b)).loss.float() for b in loader]
    model.train()
    return torch.stack(losses).mean().item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--vocab", type=int, default=40960)
    p.add_argument("--hidden", type=int, default=1280)
    p.add_argument("--ffn", type=int, default=3456)
    p.add_argument("--layers", type=int, default=14)
    p.add_argument("--heads", type=int, default=20)
    p.add_argument("--kv-heads", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=1920)
    p.add_argument("--batch", type=int, default=3)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--lr", type=float, default=2e-4)
    args = p.parse_args()

    random.seed(5)
    torch.manual_seed(5)
    model = make_model(args)
    model.train()
    n = sum(x.numel() for x in model.parameters())
    print(f"model: {n / 1e6:.0f}M parameters, {args.layers} layers")
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.05, fused=True)
    sched = torch.optim.lr_scheduler.SequentialLR(
        opt,
        [torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=5),
         torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=max(1, args.steps - 5), eta_min=args.lr * 0.1)],
        milestones=[5])
    train = DataLoader(PackedDocs(args.seq_len, args.vocab, 11, args.steps * args.batch), batch_size=args.batch,
                       pin_memory=True)
    valid = DataLoader(PackedDocs(args.seq_len, args.vocab, 77, 6), batch_size=2)

    t0, tokens = time.time(), 0
    for step, batch in enumerate(train, 1):
        batch = to_cuda(batch)
        out = model(**batch)
        out.loss.backward()
        gn = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        tokens += batch["input_ids"].numel()
        if step % 8 == 0 or step == 1:
            print(f"step {step:4d}  loss {out.loss.item():.4f}  gnorm {gn.item():.2f}  "
                  f"{tokens / (time.time() - t0):.0f} tok/s")
        if step % 20 == 0:
            print(f"  valid loss {validate(model, valid):.4f}")
    print(f"peak reserved {torch.cuda.max_memory_reserved() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
