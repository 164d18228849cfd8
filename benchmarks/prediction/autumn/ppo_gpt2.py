"""
PPO fine-tuning of a GPT-2 style policy against a rule-based reward, with a KL penalty to a frozen
reference model. Everything is randomly initialised.
"""
import copy
import os
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

TINY = os.environ.get("TINY") == "1"
SCALE = float(os.environ.get("SCALE", "1"))

VOCAB = 100 if TINY else 20000
PROMPT = 6 if TINY else 32
RESPONSE = 8 if TINY else 40
ROLLOUT_BATCH = max(1, round((4 if TINY else 32) * SCALE))
MINIBATCH = max(1, round((2 if TINY else 8) * SCALE))
PPO_EPOCHS = 2
ITERS = 2 if TINY else 6
KL_COEF, CLIP, VF_COEF, GAMMA, LAM = 0.05, 0.2, 0.1, 1.0, 0.95


class ActorCritic(nn.Module):
    def __init__(self, lm):
        super().__init__()
        self.lm = lm
        self.v_head = nn.Sequential(nn.Linear(lm.config.n_embd, 256), nn.Tanh(), nn.Linear(256, 1))

    def forward(self, ids):
        out = self.lm(ids, output_hidden_states=True, use_cache=False)
        values = self.v_head(out.hidden_states[-1]).squeeze(-1)
        return out.logits, values


def response_logprobs(logits, ids):
    logits = logits[:, PROMPT - 1:-1]
    logp_all = F.log_softmax(logits, dim=-1)
    tok = ids[:, PROMPT:]
    return logp_all.gather(-1, tok.unsqueeze(-1)).squeeze(-1), logp_all


def reward_fn(ids):
    """Reward even tokens and discourage immediate repetition."""
    resp = ids[:, PROMPT:]
    even = (resp % 2 == 0).float().mean(1)
    rep = (resp[:, 1:] == resp[:, :-1]).float().mean(1)
    return 2 * even - 1 - rep


def compute_advantages(rewards, values):
    adv = torch.zeros_like(rewards)
    last = torch.zeros(rewards.size(0), device=rewards.device)
    T = rewards.size(1)
    for t in reversed(range(T)):
        next_v = values[:, t + 1] if t + 1 < T else 0.0
        delta = rewards[:, t] + GAMMA * next_v - values[:, t]
        last = delta + GAMMA * LAM * last
        adv[:, t] = last
    return adv, adv + values


@torch.no_grad()
def rollout(policy, ref, device):
    policy.eval()
    prompts = torch.randint(1, VOCAB, (ROLLOUT_BATCH, PROMPT), device=device)
    ids = policy.lm.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0,
                             max_new_tokens=RESPONSE, min_new_tokens=RESPONSE, pad_token_id=0)
    logits, values = policy(ids)
    logp, _ = response_logprobs(logits, ids)
    ref_logp, _ = response_logprobs(ref(ids, use_cache=False).logits, ids)
    values = values[:, PROMPT - 1:-1]
    score = reward_fn(ids)
    rewards = -KL_COEF * (logp - ref_logp)
    rewards[:, -1] += score
    adv, returns = compute_advantages(rewards, values)
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    policy.train()
    return dict(ids=ids, logp=logp, values=values, adv=adv, returns=returns), score.mean(), (logp - ref_logp).mean()


def main():
    torch.manual_seed(2024)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"

    cfg = GPT2Config(vocab_size=VOCAB, n_positions=256, n_embd=32 if TINY else 512, n_layer=2 if TINY else 6,
                     n_head=2 if TINY else 8, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                     bos_token_id=0, eos_token_id=0)
    lm = GPT2LMHeadModel(cfg).to(device)
    ref = copy.deepcopy(lm).eval().requires_grad_(False)
    policy = ActorCritic(lm).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-5, eps=1e-5)

    stats = defaultdict(list)
    for it in range(ITERS):
        batch, score, kl = rollout(policy, ref, device)
        stats["score"].append(score.item())
        stats["kl"].append(kl.item())

        for _ in range(PPO_EPOCHS):
            perm = torch.randperm(ROLLOUT_BATCH, device=device)
            for mb in perm.split(MINIBATCH):
                ids = batch["ids"][mb]
                logits, values = policy(ids)
                logp, logp_all = response_logprobs(logits, ids)
                values = values[:, PROMPT - 1:-1]

                ratio = (logp - batch["logp"][mb]).exp()
                adv = batch["adv"][mb]
                pg_loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                v_clip = batch["values"][mb] + (values - batch["values"][mb]).clamp(-CLIP, CLIP)
                ret = batch["returns"][mb]
                vf_loss = 0.5 * torch.max((values - ret) ** 2, (v_clip - ret) ** 2).mean()
                loss = pg_loss + VF_COEF * vf_loss

                entropy = -(logp_all.exp() * logp_all).sum(-1).mean()

                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                optimizer.step()

                stats["pg_loss"].append(pg_loss.item())
                stats["vf_loss"].append(vf_loss.item())
                stats["entropy"].append(entropy)

        print(f"iter {it} score {stats['score'][-1]:+.3f} kl {stats['kl'][-1]:+.4f} "
              f"pg {stats['pg_loss'][-1]:+.4f} vf {stats['vf_loss'][-1]:.4f} ent {stats['entropy'][-1].item():.3f}")

    ent = torch.stack(stats["entropy"])
    print(f"entropy first {ent[0].item():.3f} last {ent[-1].item():.3f}")
    print("done")


if __name__ == "__main__":
    main()
