"""PPO on a batched pixel environment (a small catch-the-falling-blocks game) that lives on the accelerator."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical


class FallingBlocks:
    """n independent boards drawn as s x s grey images. Three actions move a paddle: left, stay, right."""

    def __init__(self, n, size, device, seed):
        self.n, self.size, self.device = n, size, device
        self.gen = torch.Generator(device).manual_seed(seed)
        self.rows = torch.arange(size, device=device)[None, :, None]
        self.cols = torch.arange(size, device=device)[None, None, :]
        self.paddle = torch.full((n,), size // 2, device=device)
        self.bx, self.by, self.vx = (torch.zeros(n, dtype=torch.long, device=device) for _ in range(3))
        self._spawn(torch.ones(n, dtype=torch.bool, device=device))
        self.stack = self._frame()[:, None].repeat(1, 4, 1, 1)

    def _rand(self, lo, hi):
        return torch.randint(lo, hi, (self.n,), device=self.device, generator=self.gen)

    def _spawn(self, where):
        self.bx = torch.where(where, self._rand(6, self.size - 6), self.bx)
        self.by = torch.where(where, self._rand(2, self.size // 3), self.by)
        self.vx = torch.where(where, self._rand(-2, 3), self.vx)

    def _frame(self):
        ball = ((self.rows - self.by[:, None, None]).abs() <= 2) & ((self.cols - self.bx[:, None, None]).abs() <= 2)
        pad = (self.rows >= self.size - 4) & ((self.cols - self.paddle[:, None, None]).abs() <= 7)
        return ball.to(torch.uint8) * 255 + pad.to(torch.uint8) * 160

    def step(self, action):
        self.paddle = (self.paddle + (action - 1) * 4).clamp(7, self.size - 8)
        self.by = self.by + 3
        self.bx = self.bx + self.vx
        bounce = (self.bx < 3) | (self.bx > self.size - 4)
        self.vx = torch.where(bounce, -self.vx, self.vx)
        self.bx = self.bx.clamp(3, self.size - 4)
        done = self.by >= self.size - 5
        caught = done & ((self.bx - self.paddle).abs() <= 9)
        reward = caught.float() - (done & ~caught).float()
        self._spawn(done)
        self.stack = torch.cat([self.stack[:, 1:], self._frame()[:, None]], 1)
        return self.stack, reward, done.float()


class ResUnit(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.c2(F.relu(self.c1(F.relu(x))))


class Policy(nn.Module):
    def __init__(self, size, widths=(20, 36, 36), actions=3):
        super().__init__()
        layers, c, s = [], 4, size
        for w in widths:
            layers += [nn.Conv2d(c, w, 3, padding=1), nn.MaxPool2d(3, 2, 1), ResUnit(w), ResUnit(w)]
            c, s = w, (s + 1) // 2
        self.body = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(c * s * s, 256), nn.ReLU())
        self.pi, self.v = nn.Linear(256, actions), nn.Linear(256, 1)
        nn.init.orthogonal_(self.pi.weight, 0.01)

    def forward(self, obs):
        h = self.body(obs.float() / 255.0)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Rollout:
    def __init__(self, t, n, size, device):
        self.obs = torch.empty(t, n, 4, size, size, dtype=torch.uint8, device=device)
        self.act = torch.empty(t, n, dtype=torch.long, device=device)
        self.logp, self.val, self.rew, self.done = (torch.empty(t, n, device=device) for _ in range(4))

    def advantages(self, last, gamma, lam):
        adv, run = torch.empty_like(self.rew), torch.zeros_like(last)
        for i in reversed(range(len(self.rew))):
            nxt = last if i == len(self.rew) - 1 else self.val[i + 1]
            delta = self.rew[i] + gamma * nxt * (1 - self.done[i]) - self.val[i]
            run = delta + gamma * lam * (1 - self.done[i]) * run
            adv[i] = run
        return adv


@torch.no_grad()
def collect(env, policy, buf):
    obs = env.stack
    for t in range(len(buf.rew)):
        dist, value = policy(obs)
        action = dist.sample()
        buf.obs[t], buf.act[t], buf.logp[t], buf.val[t] = obs, action, dist.log_prob(action), value
        obs, buf.rew[t], buf.done[t] = env.step(action)
    return policy(obs)[1]


def update(policy, opt, buf, adv, args):
    returns = (adv + buf.val).flatten()
    adv, obs = adv.flatten(), buf.obs.flatten(0, 1)
    act, old = buf.act.flatten(), buf.logp.flatten()
    stats = []
    for _ in range(args.epochs):
        for idx in torch.randperm(len(act), device=act.device).split(args.minibatch):
            dist, value = policy(obs[idx])
            ratio = (dist.log_prob(act[idx]) - old[idx]).exp()
            a = (adv[idx] - adv[idx].mean()) / (adv[idx].std() + 1e-8)
            pg = -torch.min(ratio * a, ratio.clamp(1 - args.clip, 1 + args.clip) * a).mean()
            loss = pg + 0.5 * F.smooth_l1_loss(value, returns[idx]) - args.entropy * dist.entropy().mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            opt.step()
            stats.append(loss.detach())
    return torch.stack(stats).mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    p.add_argument("--envs", type=int, default=448)
    p.add_argument("--horizon", type=int, default=72)
    p.add_argument("--size", type=int, default=84)
    p.add_argument("--iterations", type=int, default=9)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--minibatch", type=int, default=1344)
    p.add_argument("--lr", type=float, default=4e-4)
    p.add_argument("--clip", type=float, default=0.15)
    p.add_argument("--entropy", type=float, default=0.01)
    p.add_argument("--eval-steps", type=int, default=120)
    args = p.parse_args()
    torch.manual_seed(5)
    device = torch.device(args.device)
    env = FallingBlocks(args.envs, args.size, device, 5)
    policy = Policy(args.size).to(device)
    opt = torch.optim.Adam(policy.parameters(), lr=args.lr, eps=1e-5)
    buf = Rollout(args.horizon, args.envs, args.size, device)
    for it in range(args.iterations):
        t = time.time()
        for g in opt.param_groups:
            g["lr"] = args.lr * (1 - it / args.iterations)
        last = collect(env, policy, buf)
        loss = update(policy, opt, buf, buf.advantages(last, 0.99, 0.95), args)
        score = buf.rew.sum().item() / max(1.0, buf.done.sum().item())
        fps = args.envs * args.horizon / (time.time() - t)
        print(f"iter {it} loss {loss:.4f} mean outcome {score:+.3f} frames/s {fps:.0f}", flush=True)
    del buf
    test = FallingBlocks(args.envs // 2, args.size, device, 99)
    total, ends = 0.0, 0.0
    with torch.inference_mode():
        for _ in range(args.eval_steps):
            _, r, d = test.step(policy(test.stack)[0].probs.argmax(-1))
            total, ends = total + r.sum(), ends + d.sum()
    print(f"greedy outcome {float(total / max(1.0, float(ends))):+.3f}")


if __name__ == "__main__":
    main()
