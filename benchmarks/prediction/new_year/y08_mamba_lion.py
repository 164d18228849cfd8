"""Character-level Mamba language model (transformers, plain PyTorch scan) trained with a hand-written Lion."""
import argparse
import math
import time

import torch
import torch.nn.functional as F
from transformers import MambaConfig, MambaForCausalLM


class Lion(torch.optim.Optimizer):
    """Evolved sign momentum, https://arxiv.org/abs/2302.06675"""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(m.lerp(p.grad, 1 - b1).sign_(), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - b2)
        return loss


def make_text(size, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    words = [torch.randint(2, vocab, (int(k),), generator=g) for k in torch.randint(2, 9, (300,), generator=g)]
    pick = (torch.rand(size, generator=g) ** 2 * 300).long().tolist()
    parts = []
    for w in pick:
        parts += [words[w], torch.tensor([1])]
    return torch.cat(parts)[:size]


def sample_batch(text, batch, length, g):
    start = torch.randint(0, len(text) - length - 1, (batch,), generator=g)
    idx = start[:, None] + torch.arange(length + 1)
    return text[idx].to("cuda")


@torch.no_grad()
def bits_per_char(model, text, batch, length, rounds):
    model.eval()
    g = torch.Generator().manual_seed(77)
    total = 0.0
    for _ in range(rounds):
        chunk = sample_batch(text, batch, length, g)
        logits = model(input_ids=chunk[:, :-1], use_cache=False).logits
        total += F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten()).item()
    model.train()
    return total / rounds / math.log(2)


@torch.no_grad()
def continue_text(model, prompt, new):
    model.eval()
    out = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new, min_new_tokens=new,
                         do_sample=True, top_k=20, pad_token_id=0)
    return out[:, prompt.shape[1]:]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=310)
    p.add_argument("--hidden", type=int, default=576)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--state", type=int, default=16)
    p.add_argument("--batch", type=int, default=7)
    p.add_argument("--length", type=int, default=224)
    p.add_argument("--steps", type=int, default=15)
    p.add_argument("--lr", type=float, default=2e-4)
    args = p.parse_args()
    torch.manual_seed(9)
    torch.set_float32_matmul_precision("high")

    cfg = MambaConfig(vocab_size=args.vocab, hidden_size=args.hidden, state_size=args.state, num_hidden_layers=args.layers,
                      expand=2, conv_kernel=4, use_cache=True, residual_in_fp32=True, use_associative_scan=False, pad_token_id=0, bos_token_id=0,
                      eos_token_id=0)
    model = MambaForCausalLM(cfg).to("cuda").train()
    print(f"{sum(t.numel() for t in model.parameters()) / 1e6:.1f}M parameters")
    text = make_text(40_000, args.vocab, 1)
    train_text, test_text = text[:len(text) * 9 // 10], text[len(text) * 9 // 10:]

    opt = Lion(model.parameters(), lr=args.lr, weight_decay=0.1)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    g = torch.Generator().manual_seed(3)
    start = time.time()
    for step in range(1, args.steps + 1):
        # the first third of training reads shorter windows
        length = args.length * 3 // 4 if step <= args.steps // 3 else args.length
        chunk = sample_batch(train_text, args.batch, length, g)
        logits = model(input_ids=chunk[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step()
        if step % 3 == 0:
            print(f"step {step} window {length} loss {loss.item():.3f} {time.time() - start:.1f}s")
    print(f"test bits per char {bits_per_char(model, test_text, args.batch, args.length, 2):.3f}")
    prompt = sample_batch(test_text, 4, 31, g)
    print("sample", continue_text(model, prompt, 40)[0].tolist())


if __name__ == "__main__":
    main()
