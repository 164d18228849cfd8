"""Offline text-generation server: requests of many lengths are grouped into batches for a Llama-shaped bf16 model."""
import argparse
import dataclasses
import random
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM


@dataclasses.dataclass
class Request:
    uid: int
    prompt: list
    new_tokens: int
    kind: str = "generate"
    result: object = None


def load_model(args):
    cfg = LlamaConfig(vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=args.ffn,
                      num_hidden_layers=args.layers, num_attention_heads=args.heads, num_key_value_heads=args.kv_heads,
                      max_position_embeddings=4096, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
                      pad_token_id=0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(cfg)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def make_requests(args):
    rng = random.Random(args.seed)
    queue = []
    for uid in range(args.requests):
        kind = "embed" if rng.random() < 0.3 else "generate"
        n = int(min(max(rng.lognormvariate(5.5, 0.8), 12), args.max_prompt))
        prompt = [rng.randrange(3, args.vocab) for _ in range(n)]
        queue.append(Request(uid, prompt, rng.choice([24, 32, 48]), kind))
    return queue


def schedule(queue, max_batch, max_tokens):
    """Group requests of one kind, sorted by length, under a budget of padded tokens."""
    for kind in ("generate", "embed"):
        todo = sorted((r for r in queue if r.kind == kind), key=lambda r: len(r.prompt))
        batch = []
        for r in todo:
            width = len(r.prompt)
            if batch and (len(batch) == max_batch or width * (len(batch) + 1) > max_tokens):
                yield kind, batch
                batch = []
            batch.append(r)
        if batch:
            yield kind, batch


def left_pad(batch, device):
    width = max(len(r.prompt) for r in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, r in enumerate(batch):
        ids[i, width - len(r.prompt):] = torch.tensor(r.prompt)
        mask[i, width - len(r.prompt):] = 1
    return ids.to(device), mask.to(device)


class Engine:
    def __init__(self, model, args):
        self.model, self.args = model, args
        self.device = next(model.parameters()).device

    @torch.inference_mode()
    def generate(self, batch):
        ids, mask = left_pad(batch, self.device)
        longest = max(r.new_tokens for r in batch)
        out = self.model.generate(input_ids=ids, attention_mask=mask, do_sample=True, top_p=0.92, temperature=0.8,
                                  top_k=0, min_new_tokens=longest, max_new_tokens=longest)
        new = out[:, ids.size(1):].tolist()
        for r, tokens in zip(batch, new):
            r.result = tokens[:r.new_tokens]
        return ids.numel(), longest * len(batch)

    @torch.inference_mode()
    def embed(self, batch):
        ids, mask = left_pad(batch, self.device)
        hidden = self.model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * weights).sum(1) / weights.sum(1)
        pooled = torch.nn.functional.normalize(pooled.float(), dim=-1).cpu()
        for r, v in zip(batch, pooled):
            r.result = v
        return ids.numel(), 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=32064)
    p.add_argument("--hidden", type=int, default=1792)
    p.add_argument("--ffn", type=int, default=4864)
    p.add_argument("--layers", type=int, default=18)
    p.add_argument("--heads", type=int, default=14)
    p.add_argument("--kv-heads", type=int, default=7)
    p.add_argument("--requests", type=int, default=150)
    p.add_argument("--max-prompt", type=int, default=1400)
    p.add_argument("--max-batch", type=int, default=24)
    p.add_argument("--max-tokens", type=int, default=12000)
    p.add_argument("--seed", type=int, default=19)
    args = p.parse_args()
    torch.manual_seed(args.seed)

    model = load_model(args)
    print(f"{sum(x.numel() for x in model.parameters()) / 1e6:.0f}M parameters in {model.dtype}")
    engine = Engine(model, args)
    queue = make_requests(args)
    t0, read, written = time.time(), 0, 0
    for n, (kind, batch) in enumerate(schedule(queue, args.max_batch, args.max_tokens)):
        t = time.time()
        a, b = getattr(engine, kind)(batch)
        read, written = read + a, written + b
        print(f"batch {n:2d} {kind:8s} size {len(batch):3d} width {a // len(batch):5d} {time.time() - t:.2f}s", flush=True)
    took = time.time() - t0
    done = sum(r.result is not None for r in queue)
    print(f"{done}/{len(queue)} requests, {read} tokens read, {written} written, {written / took:.0f} tok/s")
    print(f"peak reserved {torch.cuda.max_memory_reserved() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
