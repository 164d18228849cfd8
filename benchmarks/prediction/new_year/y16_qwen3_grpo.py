"""GRPO-style reinforcement learning of a small Qwen3: grouped roll-outs with a KV cache, clipped policy gradient, KL to a
frozen reference; weights in bf16, old log-probabilities kept on the CPU between phases."""
import argparse
import copy
import os
import tempfile
import time

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def build(args):
    cfg = Qwen3Config(vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=args.hidden * 8 // 3 // 16 * 16,
                      num_hidden_layers=args.layers, num_attention_heads=args.hidden // 64,
                      num_key_value_heads=args.hidden // 192, head_dim=64, max_position_embeddings=2048,
                      tie_word_embeddings=True, attn_implementation="sdpa", bos_token_id=None, eos_token_id=None,
                      pad_token_id=0)
    model = Qwen3ForCausalLM(cfg)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.to(device="cuda", dtype=torch.bfloat16)


def make_prompts(n, width, vocab, g):
    """Left-padded prompts of different lengths."""
    ids = torch.randint(5, vocab, (n, width), generator=g)
    mask = torch.ones_like(ids)
    for row in range(n):
        pad = int(torch.randint(0, width // 2, (1,), generator=g))
        ids[row, :pad] = 0
        mask[row, :pad] = 0
    return ids, mask


@torch.no_grad()
def rollout(model, ids, mask, group, new_tokens, temperature):
    model.eval()
    out = model.generate(input_ids=ids.cuda(), attention_mask=mask.cuda(), do_sample=True, temperature=temperature, top_p=0.95,
                         num_return_sequences=group, max_new_tokens=new_tokens, use_cache=True)
    model.train()
    full_mask = torch.cat([mask.repeat_interleave(group, 0), torch.ones(out.shape[0], new_tokens, dtype=mask.dtype)], 1)
    return out, full_mask.cuda()


def reward(completions, vocab):
    """Prefers even tokens and few repetitions."""
    even = (completions % 2 == 0).float().mean(1)
    distinct = torch.tensor([len(set(r)) / len(r) for r in completions.tolist()])
    return even + 0.5 * distinct


def token_logps(model, seqs, mask, new_tokens):
    position = (mask.cumsum(1) - 1).clamp_min(0)
    logits = model(input_ids=seqs, attention_mask=mask, position_ids=position, use_cache=False,
                   logits_to_keep=new_tokens + 1).logits[:, :-1]
    logp = logits.float().log_softmax(-1)
    return logp.gather(-1, seqs[:, -new_tokens:, None])[..., 0]


@torch.no_grad()
def collect(model, seqs, mask, new_tokens, chunk):
    parts = [token_logps(model, s, m, new_tokens).cpu() for s, m in zip(seqs.split(chunk), mask.split(chunk))]
    return torch.cat(parts)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=36_000)
    p.add_argument("--hidden", type=int, default=960)
    p.add_argument("--layers", type=int, default=14)
    p.add_argument("--prompts", type=int, default=7)
    p.add_argument("--prompt-len", type=int, default=150)
    p.add_argument("--group", type=int, default=8)
    p.add_argument("--new-tokens", type=int, default=110)
    p.add_argument("--iterations", type=int, default=3)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--micro", type=int, default=14)
    p.add_argument("--lr", type=float, default=2e-5)
    p.add_argument("--kl", type=float, default=0.04)
    p.add_argument("--clip", type=float, default=0.2)
    args = p.parse_args()
    torch.manual_seed(55)
    g = torch.Generator().manual_seed(55)

    policy = build(args).train()
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    print(f"{sum(t.numel() for t in policy.parameters()) / 1e6:.0f}M parameters")
    opt = torch.optim.AdamW(policy.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    start = time.time()
    for it in range(1, args.iterations + 1):
        ids, mask = make_prompts(args.prompts, args.prompt_len, args.vocab, g)
        seqs, full_mask = rollout(policy, ids, mask, args.group, args.new_tokens, 1.0)
        old = collect(policy, seqs, full_mask, args.new_tokens, 2 * args.micro)
        ref = collect(reference, seqs, full_mask, args.new_tokens, 2 * args.micro)
        score = reward(seqs[:, -args.new_tokens:].cpu(), args.vocab).reshape(args.prompts, args.group)
        advantage = ((score - score.mean(1, keepdim=True)) / (score.std(1, keepdim=True) + 1e-4)).reshape(-1)

        for _ in range(args.epochs):
            order = torch.randperm(len(seqs), generator=g)
            pieces = order.split(args.micro)
            opt.zero_grad(set_to_none=True)
            stats = []
            for piece in pieces:
                logp = token_logps(policy, seqs[piece.cuda()], full_mask[piece.cuda()], args.new_tokens)
                ratio = (logp - old[piece].cuda()).exp()
                adv = advantage[piece].cuda()[:, None]
                gain = torch.minimum(ratio * adv, ratio.clamp(1 - args.clip, 1 + args.clip) * adv)
                gap = ref[piece].cuda() - logp
                kl = gap.exp() - gap - 1
                loss = (args.kl * kl - gain).mean() / len(pieces)
                loss.backward()
                stats.append((loss.item(), kl.mean().item()))
            norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
        print(f"iteration {it} reward {score.mean():.4f} loss {sum(s[0] for s in stats):.5f} "
              f"kl {sum(s[1] for s in stats) / len(stats):.5f} |g| {norm.item():.3f} {time.time() - start:.1f}s")

    ids, mask = make_prompts(args.prompts * 2, args.prompt_len // 2, args.vocab, g)
    out = policy.eval().generate(input_ids=ids.cuda(), attention_mask=mask.cuda(), do_sample=False, max_new_tokens=40)
    print(f"greedy evaluation reward {reward(out[:, -40:].cpu(), args.vocab).mean():.4f}")
    with tempfile.TemporaryDirectory() as d:
        torch.save(policy.state_dict(), os.path.join(d, "policy.pt"))


if __name__ == "__main__":
    main()
