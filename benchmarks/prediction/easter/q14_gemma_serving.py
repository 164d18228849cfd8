"""Offline serving of a Gemma-3 text model in bf16: requests of unlike lengths, bucketed, left-padded, with key/value caches.

Greedy and sampled generation, best-of-n from one shared prefix cache, then likelihood scoring of the answers.
"""
import argparse
import copy
import time

import torch
import torch.nn.functional as F
from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig, GenerationConfig


def parse_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--vocab", type=int, default=64000)
    p.add_argument("--dim", type=int, default=1152)
    p.add_argument("--layers", type=int, default=20)
    p.add_argument("--window", type=int, default=512)
    p.add_argument("--requests", type=int, default=42)
    p.add_argument("--longest", type=int, default=1350)
    p.add_argument("--token-budget", type=int, default=15000, help="padded tokens in a batch")
    p.add_argument("--new-tokens", type=int, default=40)
    p.add_argument("--best-of", type=int, default=9)
    p.add_argument("--score-batch", type=int, default=3)
    return p.parse_args()


def build(args):
    config = Gemma3TextConfig(vocab_size=args.vocab, hidden_size=args.dim, intermediate_size=6 * args.dim,
                              num_hidden_layers=args.layers, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
                              sliding_window=args.window, max_position_embeddings=8192, pad_token_id=0, bos_token_id=2,
                              eos_token_id=1)
    model = Gemma3ForCausalLM(config).to(device="cuda", dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None                        # fixed lengths
    return model


def make_requests(args):
    g = torch.Generator().manual_seed(40)
    lengths = torch.randint(args.longest // 10, args.longest, (args.requests,), generator=g).tolist()
    return [torch.randint(3, args.vocab, (n,), generator=g) for n in lengths]


def bucket(requests, budget):
    """Sorted by length; a batch is closed when its padded size would pass the budget."""
    order = sorted(range(len(requests)), key=lambda i: -len(requests[i]))
    batch, longest = [], 0
    for i in order:
        longest = max(longest, len(requests[i]))
        if batch and longest * (len(batch) + 1) > budget:
            yield batch
            batch, longest = [], len(requests[i])
        batch.append(i)
    if batch:
        yield batch


def left_pad(seqs):
    longest = max(map(len, seqs))
    ids = torch.stack([F.pad(s, (longest - len(s), 0), value=0) for s in seqs])
    mask = torch.stack([F.pad(torch.ones_like(s), (longest - len(s), 0)) for s in seqs])
    return ids.to("cuda"), mask.to("cuda")


@torch.inference_mode()
def serve(model, requests, args):
    answers = [None] * len(requests)
    for n, indices in enumerate(bucket(requests, args.token_budget)):
        ids, mask = left_pad([requests[i] for i in indices])
        sample = n % 2 == 1
        config = GenerationConfig(max_new_tokens=args.new_tokens, do_sample=sample, pad_token_id=0, eos_token_id=None,
                                  **({"top_k": 50, "top_p": 0.95, "temperature": 0.9} if sample else {}))
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        torch.cuda.synchronize()
        took = time.perf_counter() - start
        for row, i in zip(out[:, ids.shape[1]:].cpu(), indices):
            answers[i] = row
        print(f"batch {n}: {len(indices)} x {ids.shape[1]} {'sampled' if sample else 'greedy'} "
              f"{len(indices) * args.new_tokens / took:.0f} tokens/s")
    return answers


@torch.inference_mode()
def best_of(model, prompt, args):
    """One prefill, its cache repeated, then a loop of single-token steps by hand."""
    prompt = prompt[None].to("cuda")
    cache = DynamicCache(config=model.config)
    out = model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
    cache = copy.deepcopy(out.past_key_values)
    cache.batch_repeat_interleave(args.best_of)
    logits = out.logits[:, -1].expand(args.best_of, -1)
    score, tokens = torch.zeros(args.best_of, device="cuda"), []
    for _ in range(args.new_tokens):
        logp = logits.float().log_softmax(-1)
        nxt = torch.multinomial(logp.exp(), 1)
        score += logp.gather(1, nxt).squeeze(1)
        tokens.append(nxt)
        logits = model(input_ids=nxt, past_key_values=cache, use_cache=True).logits[:, -1]
    best = score.argmax()
    return torch.cat(tokens, 1)[best].cpu(), score[best].item()


@torch.inference_mode()
def score(model, requests, answers, batch):
    total, count = 0.0, 0
    for i in range(0, len(requests), batch):
        rows = [torch.cat([r, a]) for r, a in zip(requests[i:i + batch], answers[i:i + batch])]
        ids, mask = left_pad(rows)
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logp = -F.cross_entropy(logits[:, :-1].float().transpose(1, 2), ids[:, 1:], reduction="none")
        n = len(answers[i])
        total += logp[:, -n:].sum().item()
        count += n * len(rows)
    return total / count


def main():
    args = parse_args()
    torch.manual_seed(40)
    model = build(args)
    print(f"{sum(q.numel() for q in model.parameters()) / 1e6:.0f}M parameters")
    requests = make_requests(args)
    answers = serve(model, requests, args)
    for r in requests[:3]:
        tokens, value = best_of(model, r, args)
        print(f"prompt {len(r)}: best of {args.best_of} logp {value:.1f}, first tokens {tokens[:4].tolist()}")
    print(f"mean log-likelihood of the answers {score(model, requests, answers, args.score_batch):.4f}")


if __name__ == "__main__":
    main()
