"""Instruction tuning of a Llama-style model with low-rank adapters, then sampling from the merged weights."""
import argparse
import logging
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

log = logging.getLogger("lora")
IGNORE = -100


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha, dropout):
        super().__init__()
        self.base = base.requires_grad_(False)
        dev = base.weight.device
        self.down = nn.Parameter(torch.empty(rank, base.in_features, device=dev))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device=dev))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.scale = alpha / rank
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        delta = F.linear(F.linear(self.drop(x), self.down.to(x.dtype)), self.up.to(x.dtype))
        return self.base(x) + delta * self.scale

    @torch.no_grad()
    def merge(self):
        self.base.weight += (self.up @ self.down * self.scale).to(self.base.weight.dtype)
        return self.base


def inject(model, targets, rank, alpha, dropout):
    count = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets and isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, rank, alpha, dropout))
                count += 1
    return count


def merge_all(model):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LoRALinear):
                setattr(module, name, child.merge())


class Instructions:
    """Synthetic prompt/response pairs. The response is a shifted copy of part of the prompt."""

    def __init__(self, n, vocab, max_len, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            p = int(torch.randint(max_len // 8, max_len // 2, (1,), generator=g))
            r = int(torch.randint(max_len // 16, max_len // 2, (1,), generator=g))
            prompt = torch.randint(5, vocab, (p,), generator=g)
            answer = (prompt.repeat(r // p + 1)[:r] + 1) % vocab
            self.rows.append((prompt, answer))

    def batches(self, size, device, multiple=8):
        for i in range(0, len(self.rows) - size + 1, size):
            rows = self.rows[i:i + size]
            width = max(len(p) + len(a) for p, a in rows)
            width = -(-width // multiple) * multiple
            ids = torch.zeros(size, width, dtype=torch.long)
            labels = torch.full((size, width), IGNORE)
            mask = torch.zeros(size, width, dtype=torch.long)
            for k, (p, a) in enumerate(rows):
                n = len(p) + len(a)
                ids[k, :n] = torch.cat([p, a])
                labels[k, len(p):n] = a
                mask[k, :n] = 1
            yield ids.to(device), labels.to(device), mask.to(device)


def build(args, device):
    cfg = LlamaConfig(vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=int(args.hidden * 2.75),
                      num_hidden_layers=args.layers, num_attention_heads=args.hidden // 64,
                      num_key_value_heads=max(1, args.hidden // 256), max_position_embeddings=4096,
                      tie_word_embeddings=False, use_cache=False)
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = LlamaForCausalLM(cfg)
    torch.set_default_dtype(torch.float32)
    model.requires_grad_(False)
    n = inject(model, {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"}, args.rank, 2 * args.rank, 0.05)
    log.info("adapted %d linears; base %.2fB, trainable %.2fM", n,
             sum(p.numel() for p in model.parameters()) / 1e9,
             sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6)
    return model


def finetune(model, data, args, device):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=2e-4, weight_decay=0.0)
    micro = len(data.rows) // args.batch
    sched = get_cosine_schedule_with_warmup(opt, 3, max(1, micro // args.accum))
    running, tokens = 0.0, 0
    for i, (ids, labels, mask) in enumerate(data.batches(args.batch, device)):
        out = model(input_ids=ids, attention_mask=mask, labels=labels)
        (out.loss / args.accum).backward()
        running += out.loss.detach().float()
        tokens += ids.numel()
        if (i + 1) % args.accum == 0:
            norm = nn.utils.clip_grad_norm_(params, 1.0)
            opt.step()
            sched.step()
            opt.zero_grad(set_to_none=True)
            if (i + 1) % (args.accum * 5) == 0:
                log.info("micro %d/%d loss %.3f norm %.3f tokens %d", i + 1, micro, running.item() / (args.accum * 5), norm, tokens)
                running = 0.0


@torch.no_grad()
def perplexity(model, data, args, device):
    model.eval()
    nll, count = 0.0, 0
    for ids, labels, mask in data.batches(args.batch * 2, device):
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        target = labels[:, 1:]
        nll += F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), ignore_index=IGNORE, reduction="sum").item()
        count += int((target != IGNORE).sum())
    return math.exp(min(20.0, nll / count))


@torch.no_grad()
def sample(model, data, args, device):
    model.gradient_checkpointing_disable()
    prompts = [p for p, _ in data.rows[:args.samples]]
    width = max(map(len, prompts))
    ids = torch.stack([F.pad(p, (width - len(p), 0)) for p in prompts]).to(device)
    mask = torch.stack([F.pad(torch.ones_like(p), (width - len(p), 0)) for p in prompts]).to(device)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    out = model.generate(input_ids=ids, attention_mask=mask, do_sample=True, top_k=50, temperature=0.8,
                         max_new_tokens=args.new_tokens, use_cache=True)
    log.info("sampled %s, first row tail %s", tuple(out.shape), out[0, -6:].tolist())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--hidden", type=int, default=1792)
    ap.add_argument("--layers", type=int, default=20)
    ap.add_argument("--vocab", type=int, default=32003)
    ap.add_argument("--rank", type=int, default=24)
    ap.add_argument("--examples", type=int, default=800)
    ap.add_argument("--max-len", type=int, default=1280)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--accum", type=int, default=4)
    ap.add_argument("--samples", type=int, default=24)
    ap.add_argument("--new-tokens", type=int, default=160)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s")
    torch.manual_seed(21)
    device = torch.device(args.device)
    train = Instructions(args.examples, args.vocab, args.max_len, 1)
    held_out = Instructions(max(args.examples // 8, args.batch * 2), args.vocab, args.max_len, 2)
    model = build(args, device)
    finetune(model, train, args, device)
    log.info("held-out perplexity %.1f", perplexity(model, held_out, args, device))
    merge_all(model)
    sample(model, held_out, args, device)


if __name__ == "__main__":
    main()
