"""A small text-generation service: Gemma-3 style decoder in bf16, requests of many prompt and answer lengths.

Requests arrive in waves. They are sorted by length, batched under a budget of padded prompt tokens, answered with sampling,
and part of them is re-scored by the same model (log-likelihood of the answer) to pick the better of two samples.
"""
import argparse
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig


@dataclass
class Request:
    uid: int
    prompt: list
    answer_len: int
    samples: int = 1
    answers: list = field(default_factory=list)


def make_wave(rng, first_uid, count, vocab, longest):
    out = []
    for k in range(count):
        n = int(np.clip(rng.gamma(1.4, longest / 4), 12, longest))
        out.append(Request(first_uid + k, rng.integers(3, vocab, n).tolist(), int(rng.choice([24, 40, 72])),
                           2 if rng.random() < 0.3 else 1))
    return out


def plan_batches(requests, budget, max_rows):
    """Requests with the same answer length, longest prompts first, under a budget of padded tokens."""
    batches = []
    for length in sorted({r.answer_len for r in requests}):
        group = sorted((r for r in requests if r.answer_len == length), key=lambda r: -len(r.prompt))
        rows, cur = 0, []
        for r in group:
            widest = len(cur[0].prompt) if cur else len(r.prompt)
            if cur and ((rows + r.samples) * widest > budget or rows + r.samples > max_rows):
                batches.append(cur)
                rows, cur = 0, []
            cur.append(r)
            rows += r.samples
        batches.append(cur)
    return batches


def left_pad(rows, device):
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for k, row in enumerate(rows):
        ids[k, width - len(row):] = torch.tensor(row)
        mask[k, width - len(row):] = 1
    return ids.to(device), mask.to(device)


class Service:
    def __init__(self, model, device, temperature=0.9, top_k=50):
        self.model, self.device = model, device
        self.temperature, self.top_k = temperature, top_k
        self.tokens = 0

    @torch.inference_mode()
    def answer(self, batch):
        rows = [r.prompt for r in batch for _ in range(r.samples)]
        ids, mask = left_pad(rows, self.device)
        out = self.model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=batch[0].answer_len,
                                  min_new_tokens=batch[0].answer_len, do_sample=True, temperature=self.temperature,
                                  top_k=self.top_k, pad_token_id=0)
        new = out[:, ids.shape[1]:].tolist()
        self.tokens += sum(map(len, new))
        it = iter(new)
        for r in batch:
            r.answers = [next(it) for _ in range(r.samples)]
        return ids.shape

    @torch.inference_mode()
    def rerank(self, requests):
        """Mean log-likelihood of each sampled answer; keeps the best one."""
        for r in requests:
            ids, mask = left_pad([r.prompt + a for a in r.answers], self.device)
            keep = r.answer_len + 1
            logits = self.model(input_ids=ids, attention_mask=mask, logits_to_keep=keep).logits[:, :-1]
            target = ids[:, -r.answer_len:]
            logp = torch.log_softmax(logits.float(), -1).gather(-1, target.unsqueeze(-1)).squeeze(-1).mean(-1)
            r.answers = [r.answers[int(logp.argmax())]]


def build_model(args, device):
    layers = ["full_attention" if (i + 1) % 4 == 0 else "sliding_attention" for i in range(args.layers)]
    cfg = Gemma3TextConfig(vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=4 * args.hidden,
                           num_hidden_layers=args.layers, num_attention_heads=8, num_key_value_heads=2, head_dim=args.hidden // 8,
                           sliding_window=args.window, layer_types=layers, max_position_embeddings=4096,
                           query_pre_attn_scalar=args.hidden // 8, pad_token_id=0, bos_token_id=2, eos_token_id=None,
                           dtype="bfloat16")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):  # weights are drawn on the device, that is quicker
        model = Gemma3ForCausalLM(cfg)
    torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    return model.eval()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=151000)
    ap.add_argument("--hidden", type=int, default=1152)
    ap.add_argument("--layers", type=int, default=16)
    ap.add_argument("--window", type=int, default=256)
    ap.add_argument("--longest", type=int, default=1400)
    ap.add_argument("--waves", type=int, default=2)
    ap.add_argument("--per-wave", type=int, default=56)
    ap.add_argument("--budget", type=int, default=18000)
    ap.add_argument("--max-rows", type=int, default=36)
    args = ap.parse_args()
    torch.manual_seed(31)
    rng = np.random.default_rng(31)
    device = torch.device("cuda")
    model = build_model(args, device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters in {model.dtype}")
    service = Service(model, device)
    started = time.time()
    latencies = []
    for wave in range(args.waves):
        requests = make_wave(rng, 1000 * wave, args.per_wave, args.vocab, args.longest)
        for batch in plan_batches(requests, args.budget, args.max_rows):
            t = time.time()
            shape = service.answer(batch)
            latencies.append(time.time() - t)
            print(f"wave {wave}: {len(batch)} requests as {tuple(shape)}, {batch[0].answer_len} new, {latencies[-1]:.2f} s", flush=True)
        service.rerank([r for r in requests if r.samples > 1])
        assert all(len(r.answers) == 1 for r in requests)
    took = time.time() - started
    print(f"{service.tokens} tokens in {took:.1f} s, {service.tokens / took:.0f} tokens/s, "
          f"p50 {np.median(latencies):.2f} s, p95 {np.quantile(latencies, 0.95):.2f} s")


if __name__ == "__main__":
    main()
