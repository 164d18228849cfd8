"""Two-stage alignment of a small GPT-2: supervised warm-up on chosen answers, then direct preference optimisation."""
import argparse
import json
import random
import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel


def make_pairs(n, vocab, longest, seed):
    rng = random.Random(seed)
    pairs = []
    for _ in range(n):
        prompt = [rng.randrange(vocab - 1) for _ in range(rng.randint(longest // 10, longest // 2))]
        room = longest - len(prompt)
        good = [(t + 1) % (vocab - 1) for t in prompt][:rng.randint(room // 4, room)]
        bad = [rng.randrange(vocab - 1) for _ in range(rng.randint(room // 4, room))]
        pairs.append({"prompt": prompt, "chosen": good or [1], "rejected": bad or [2]})
    return pairs


class PairCollator:
    def __init__(self, pad, round_to=16):
        self.pad, self.round_to = pad, round_to

    def _stack(self, rows):
        width = max(len(p) + len(a) for p, a in rows)
        width = (width + self.round_to - 1) // self.round_to * self.round_to
        ids = torch.full((len(rows), width), self.pad)
        answer = torch.zeros(len(rows), width, dtype=torch.bool)
        for i, (p, a) in enumerate(rows):
            ids[i, :len(p) + len(a)] = torch.tensor(p + a)
            answer[i, len(p):len(p) + len(a)] = True
        return ids, answer

    def __call__(self, batch):
        rows = [(b["prompt"], b["chosen"]) for b in batch] + [(b["prompt"], b["rejected"]) for b in batch]
        return self._stack(rows)


class ChosenOnly(PairCollator):
    def __call__(self, batch):
        return self._stack([(b["prompt"], b["chosen"]) for b in batch])


def sequence_logps(model, ids, answer, pad):
    logits = model(input_ids=ids, attention_mask=(ids != pad).long()).logits[:, :-1]
    logp = F.log_softmax(logits.float(), dim=-1)
    token = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    keep = answer[:, 1:]
    return (token * keep).sum(-1), keep.sum(-1)


def supervised(policy, pairs, args, device, pad):
    opt = torch.optim.AdamW(policy.parameters(), lr=args.sft_lr, fused=device.type == "cuda")
    loader = DataLoader(pairs, args.batch * 2, shuffle=True, collate_fn=ChosenOnly(pad), drop_last=True,
                        generator=torch.Generator().manual_seed(0))
    policy.train()
    for i, (ids, answer) in enumerate(loader):
        if i == args.sft_steps:
            break
        ids, answer = ids.to(device), answer.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = policy(input_ids=ids, attention_mask=(ids != pad).long()).logits
            labels = ids.masked_fill(~answer, -100)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        if i % 20 == 0:
            emit(stage="sft", step=i, loss=round(loss.item(), 4))


def preference(policy, reference, pairs, args, device, pad):
    opt = torch.optim.RMSprop(policy.parameters(), lr=args.dpo_lr)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=20)
    loader = DataLoader(pairs, args.batch, shuffle=True, collate_fn=PairCollator(pad), drop_last=True,
                        generator=torch.Generator().manual_seed(1))
    policy.train()
    for i, (ids, answer) in enumerate(loader):
        if i == args.dpo_steps:
            break
        ids, answer = ids.to(device), answer.to(device)
        with torch.no_grad():
            ref, _ = sequence_logps(reference, ids, answer, pad)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            pol, count = sequence_logps(policy, ids, answer, pad)
        pc, pr = pol.chunk(2)
        rc, rr = ref.chunk(2)
        margin = args.beta * ((pc - rc) - (pr - rr))
        anchor = -(pc / count[:len(pc)].clamp(min=1)).mean()
        loss = -F.logsigmoid(margin).mean() + args.anchor * anchor
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        opt.step()
        warm.step()
        if i % 20 == 0:
            emit(stage="dpo", step=i, loss=round(loss.item(), 4), width=ids.shape[1],
                 accuracy=(margin > 0).float().mean().item(), margin=round(margin.mean().item(), 4))


@torch.no_grad()
def judge(policy, pairs, args, device, pad):
    policy.eval()
    wins = total = 0
    for ids, answer in DataLoader(pairs, args.batch, collate_fn=PairCollator(pad)):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            lp, n = sequence_logps(policy, ids.to(device), answer.to(device), pad)
        a, b = (lp / n.clamp(min=1)).chunk(2)
        wins += int((a > b).sum())
        total += len(a)
    emit(stage="eval", win_rate=round(wins / total, 4), pairs=total)


def emit(**record):
    json.dump(record, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--layers", type=int, default=12)
    ap.add_argument("--dim", type=int, default=768)
    ap.add_argument("--vocab", type=int, default=50257)
    ap.add_argument("--longest", type=int, default=448)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--sft-steps", type=int, default=90)
    ap.add_argument("--dpo-steps", type=int, default=220)
    ap.add_argument("--sft-lr", type=float, default=2e-4)
    ap.add_argument("--dpo-lr", type=float, default=1e-6)
    ap.add_argument("--beta", type=float, default=0.1)
    ap.add_argument("--anchor", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=13)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    pad = args.vocab - 1
    cfg = GPT2Config(vocab_size=args.vocab, n_positions=max(512, args.longest + 16), n_embd=args.dim, n_layer=args.layers,
                     n_head=max(1, args.dim // 64), use_cache=False)
    policy = GPT2LMHeadModel(cfg).to(device)
    need = max(args.sft_steps * 2, args.dpo_steps) * args.batch
    pairs = make_pairs(need + 80 * args.batch // 4, args.vocab, args.longest, args.seed)
    train, held = pairs[:need], pairs[need:]
    supervised(policy, train, args, device, pad)
    reference = GPT2LMHeadModel(cfg).to(torch.bfloat16).to(device)
    reference.load_state_dict(policy.state_dict())
    reference.eval().requires_grad_(False)
    judge(policy, held, args, device, pad)
    preference(policy, reference, train, args, device, pad)
    judge(policy, held, args, device, pad)


if __name__ == "__main__":
    main()
