# Batched serving loop for a GPT-NeoX model: queue of requests, left padding, HF generate.
import argparse
import time
from collections import deque
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, GPTNeoXConfig, GPTNeoXForCausalLM

PAD = 0


@dataclass
class Request:
    uid: int
    route: str
    prompt: torch.Tensor
    arrived: float


def synth_requests(n, vocab, max_prompt, seed):
    g = torch.Generator().manual_seed(seed)
    out = []
    for uid in range(n):
        length = int(torch.randint(max_prompt // 6, max_prompt + 1, (1,), generator=g))
        route = ("chat", "complete", "rerank")[int(torch.randint(0, 3, (1,), generator=g))]
        out.append(Request(uid, route, torch.randint(5, vocab, (length,), generator=g), time.time()))
    return out


class Server:
    def __init__(self, model, max_batch, new_tokens, device):
        self.model, self.max_batch, self.device = model, max_batch, device
        common = dict(pad_token_id=PAD, eos_token_id=None, use_cache=True)
        self.configs = {
            "chat": GenerationConfig(do_sample=True, top_p=0.92, top_k=60, temperature=0.8,
                                     max_new_tokens=new_tokens, **common),
            "complete": GenerationConfig(do_sample=False, num_beams=3, max_new_tokens=new_tokens // 2, **common),
        }
        self.queues = {"chat": deque(), "complete": deque(), "rerank": deque()}
        self.latencies = []

    def submit(self, req):
        self.queues[req.route].append(req)

    def next_batch(self):
        route = max(self.queues, key=lambda r: len(self.queues[r]))
        queue = self.queues[route]
        limit = self.max_batch // 2 if route == "complete" else self.max_batch
        return route, [queue.popleft() for _ in range(min(limit, len(queue)))]

    def pad_left(self, reqs):
        longest = max(len(r.prompt) for r in reqs)
        ids = torch.full((len(reqs), longest), PAD, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, r in enumerate(reqs):
            ids[i, longest - len(r.prompt):] = r.prompt
            mask[i, longest - len(r.prompt):] = 1
        return ids.to(self.device), mask.to(self.device)

    @torch.inference_mode()
    def rerank(self, ids, mask):
        """Mean log-likelihood of each prompt."""
        logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        logp = torch.log_softmax(logits.float(), -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        keep = mask[:, 1:].float()
        return ((logp * keep).sum(1) / keep.sum(1)).tolist()

    @torch.inference_mode()
    def step(self):
        route, reqs = self.next_batch()
        if not reqs:
            return None
        ids, mask = self.pad_left(reqs)
        if route == "rerank":
            answer = self.rerank(ids, mask)
            produced = 0
        else:
            out = self.model.generate(ids, attention_mask=mask, generation_config=self.configs[route])
            answer = out[:, ids.size(1):].cpu().tolist()
            produced = sum(len(a) for a in answer)
        now = time.time()
        self.latencies.extend(now - r.arrived for r in reqs)
        print(f"{route:9s} batch {len(reqs):3d} prompt {ids.size(1):4d} -> {produced} tokens, first {str(answer[0])[:36]}")
        return produced


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--hidden", type=int, default=1344)
    p.add_argument("--layers", type=int, default=17)
    p.add_argument("--vocab", type=int, default=36500)
    p.add_argument("--requests", type=int, default=90)
    p.add_argument("--max-batch", type=int, default=18)
    p.add_argument("--max-prompt", type=int, default=460)
    p.add_argument("--new-tokens", type=int, default=72)
    args = p.parse_args()

    torch.manual_seed(1414)
    device = torch.device("cuda")
    cfg = GPTNeoXConfig(
        vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64, intermediate_size=4 * args.hidden,
        max_position_embeddings=1024, bos_token_id=1, eos_token_id=2,
    )
    torch.set_default_dtype(torch.float16)
    with device:
        model = GPTNeoXForCausalLM(cfg)
    torch.set_default_dtype(torch.float32)
    model.eval()
    model.generation_config.eos_token_id = None
    print(f"{model.num_parameters() / 1e6:.0f}M parameters in {next(model.parameters()).dtype}")

    server = Server(model, args.max_batch, args.new_tokens, device)
    waiting = deque(synth_requests(args.requests, args.vocab, args.max_prompt, 2))
    start, tokens = time.time(), 0
    while waiting or any(server.queues.values()):
        for _ in range(min(30, len(waiting))):  # a burst arrives between two batches
            server.submit(waiting.popleft())
        tokens += server.step() or 0
    took = time.time() - start
    lat = torch.tensor(server.latencies)
    print(f"{args.requests} requests, {tokens} tokens in {took:.1f}s ({tokens / took:.0f} tok/s), "
          f"p50 {lat.quantile(0.5):.2f}s p95 {lat.quantile(0.95):.2f}s")


if __name__ == "__main__":
    main()
