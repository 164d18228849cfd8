"""Pre-trains a small Mixtral (8 experts, top-2) in pure bf16 with Adafactor and activation checkpointing."""
import argparse
import math
import time

import torch
from transformers import MixtralConfig, MixtralForCausalLM


def build(args):
    cfg = MixtralConfig(
        vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=2 * args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64, num_key_value_heads=args.hidden // 192, num_local_experts=8,
        num_experts_per_tok=2, max_position_embeddings=4096, sliding_window=None, router_aux_loss_coef=0.02,
        output_router_logits=True, use_cache=False, attn_implementation="sdpa", bos_token_id=1, eos_token_id=2)
    torch.manual_seed(args.seed)
    return MixtralForCausalLM(cfg).to(device="cuda", dtype=torch.bfloat16)


def markov_stream(vocab, total, seed):
    """A token stream with some structure: next = a * current + noise (mod vocab)."""
    g = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 17, (total,), generator=g).tolist()
    x, out = 1, []
    for n in noise:
        x = (x * 31 + n) % vocab
        out.append(x)
    return torch.tensor(out)


def batches(stream, batch, length, steps, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        at = torch.randint(0, len(stream) - length, (batch,), generator=g)
        yield torch.stack([stream[a:a + length] for a in at.tolist()])


@torch.inference_mode()
def perplexity(model, stream, batch, length, steps):
    model.eval()
    total = 0.0
    for ids in batches(stream, batch, length, steps, seed=99):
        ids = ids.to("cuda")
        logits = model(input_ids=ids, output_router_logits=False).logits
        total += torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()).item()
    model.train()
    return math.exp(min(total / steps, 30))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--hidden", type=int, default=768)
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--batch", type=int, default=7)
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--eval-every", type=int, default=15)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=3)
    args = p.parse_args()

    model = build(args)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    n_params = sum(t.numel() for t in model.parameters())
    print(f"{n_params / 1e6:.0f}M parameters in {model.dtype}")

    opt = torch.optim.Adafactor(model.parameters(), lr=args.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.SequentialLR(
        opt, [torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=5),
              torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps - 5, eta_min=args.lr / 20)], milestones=[5])

    train_stream = markov_stream(args.vocab, 60_000, 0)
    valid_stream = markov_stream(args.vocab, 12_000, 1)
    tick = time.perf_counter()
    for step, ids in enumerate(batches(train_stream, args.batch, args.seq, args.steps, seed=4), 1):
        ids = ids.to("cuda", non_blocking=True)
        out = model(input_ids=ids, labels=ids)
        out.loss.backward()
        gnorm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        if step % 5 == 0:
            took, tick = time.perf_counter() - tick, time.perf_counter()
            print(f"{step:4d} loss {out.loss.item():.3f} aux {out.aux_loss.item():.3f} gnorm {gnorm.item():.2f} "
                  f"{5 * ids.numel() / took / 1e3:.1f}k tok/s")
        if step % args.eval_every == 0:
            print(f"{step:4d} valid ppl {perplexity(model, valid_stream, 3, args.seq * 3 // 2, 3):.1f}")
    print("done")


if __name__ == "__main__":
    main()
