"""Text-generation service: requests of many lengths, left-padded batches, key-value cache, nucleus sampling. fp16 weights."""
import argparse
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM


@dataclass
class Request:
    uid: int
    prompt: np.ndarray
    max_new: int
    temperature: float
    arrived: float = 0.0
    output: list = field(default_factory=list)


class Engine:
    def __init__(self, model, device, pad_id=0, top_p=0.92):
        self.model, self.device, self.pad_id, self.top_p = model, device, pad_id, top_p

    def _pad(self, requests):
        width = max(len(r.prompt) for r in requests)
        ids = torch.full((len(requests), width), self.pad_id, dtype=torch.long)
        mask = torch.zeros((len(requests), width), dtype=torch.long)
        for row, r in enumerate(requests):
            ids[row, width - len(r.prompt):] = torch.from_numpy(r.prompt)
            mask[row, width - len(r.prompt):] = 1
        return ids.to(self.device), mask.to(self.device)

    def _sample(self, logits, temperature):
        logits = logits.float() / temperature[:, None]
        ordered, order = torch.sort(logits, dim=-1, descending=True)
        probs = ordered.softmax(-1)
        drop = probs.cumsum(-1) - probs > self.top_p
        probs = probs.masked_fill(drop, 0.0)
        pick = torch.multinomial(probs, 1)
        return order.gather(1, pick)

    @torch.inference_mode()
    def run(self, requests):
        ids, mask = self._pad(requests)
        temperature = torch.tensor([r.temperature for r in requests], device=self.device)
        cache = DynamicCache(config=self.model.config)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        out = self.model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
                         use_cache=True, logits_to_keep=1)
        last = positions[:, -1:]
        tokens = []
        steps = max(r.max_new for r in requests)
        for step in range(steps):
            token = self._sample(out.logits[:, -1], temperature)
            tokens.append(token)
            if step == steps - 1:
                break
            last = last + 1
            mask = torch.cat([mask, mask.new_ones(len(requests), 1)], dim=1)
            out = self.model(input_ids=token, attention_mask=mask, position_ids=last, past_key_values=cache, use_cache=True)
        produced = torch.cat(tokens, dim=1).cpu()
        for row, r in enumerate(requests):
            r.output = produced[row, : r.max_new].tolist()
        return ids.shape[1], steps


def traffic(n, vocab, longest, max_new, seed):
    rng = np.random.default_rng(seed)
    for uid in range(n):
        length = int(np.clip(rng.lognormal(np.log(longest * 0.45), 0.5), 8, longest))
        yield Request(uid, rng.integers(3, vocab, size=length), int(rng.integers(max_new // 2, max_new + 1)),
                      float(rng.uniform(0.6, 1.1)), time.time())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--hidden", type=int, default=1792)
    ap.add_argument("--layers", type=int, default=20)
    ap.add_argument("--intermediate", type=int, default=4864)
    ap.add_argument("--heads", type=int, default=14)
    ap.add_argument("--kv-heads", type=int, default=7)
    ap.add_argument("--vocab", type=int, default=50000)
    ap.add_argument("--longest", type=int, default=900)
    ap.add_argument("--max-new", type=int, default=56)
    ap.add_argument("--batches", type=int, nargs="+", default=[1, 6, 20, 44, 12])
    args = ap.parse_args()

    torch.manual_seed(8)
    device = torch.device("cuda")
    config = MistralConfig(hidden_size=args.hidden, num_hidden_layers=args.layers, intermediate_size=args.intermediate,
                           num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, vocab_size=args.vocab,
                           max_position_embeddings=4096, sliding_window=None, tie_word_embeddings=False)
    torch.set_default_dtype(torch.float16)
    with device:
        model = MistralForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.eval().requires_grad_(False)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    print(f"weights: {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters, {size / 2**30:.2f} GiB")

    engine = Engine(model, device)
    queue = deque(traffic(sum(args.batches), args.vocab, args.longest, args.max_new, seed=21))
    finished = []
    for size in args.batches:
        group = [queue.popleft() for _ in range(min(size, len(queue)))]
        torch.cuda.synchronize()
        t0 = time.time()
        width, steps = engine.run(group)
        torch.cuda.synchronize()
        took = time.time() - t0
        made = sum(len(r.output) for r in group)
        finished += group
        print(f"batch {len(group):3d} prompt {width:4d} steps {steps:3d}: {took:.2f} s, {made / took:.0f} tokens/s")

    lengths = [len(r.prompt) + len(r.output) for r in finished]
    print(f"served {len(finished)} requests, mean length {np.mean(lengths):.1f}, distinct tokens "
          f"{len({t for r in finished for t in r.output})}")


if __name__ == "__main__":
    main()
