"""Off-policy RL from pixels: DrQ (soft actor-critic with random shifts) on a batch of simulated point-mass worlds.

Everything lives on the GPU: the worlds are rendered by tensor code and the replay memory is one uint8 tensor there.
"""
import argparse
import copy
import math
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class PointWorlds:
    """N balls on a plane pulled by the action towards a goal; observations are stacks of small rendered frames."""

    def __init__(self, n, size, stack, horizon, device):
        self.n, self.stack, self.horizon, self.device = n, stack, horizon, device
        axis = torch.linspace(-1, 1, size, device=device)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")
        self.frames = torch.zeros(n, 3 * stack, size, size, dtype=torch.uint8, device=device)

    def reset(self):
        self.pos = torch.rand(self.n, 2, device=self.device) * 1.6 - 0.8
        self.vel = torch.zeros(self.n, 2, device=self.device)
        self.goal = torch.rand(self.n, 2, device=self.device) * 1.6 - 0.8
        self.t = 0
        for _ in range(self.stack):
            self._render()
        return self.frames.clone()

    def _blob(self, p, width):
        return torch.exp(-((self.xx - p[:, 0, None, None]) ** 2 + (self.yy - p[:, 1, None, None]) ** 2) / width)

    def _render(self):
        ball, goal = self._blob(self.pos, 0.01), self._blob(self.goal, 0.02)
        frame = torch.stack([ball, goal, 0.5 * (ball + goal)], 1).mul(255).to(torch.uint8)
        self.frames = torch.cat([self.frames[:, 3:], frame], dim=1)

    def step(self, action):
        self.vel = 0.9 * self.vel + 0.05 * action
        self.pos = (self.pos + self.vel).clamp(-1, 1)
        self._render()
        self.t += 1
        reward = torch.exp(-4 * (self.pos - self.goal).square().sum(-1)) - 0.01 * action.square().sum(-1)
        return self.frames.clone(), reward, self.t >= self.horizon


class Replay:
    def __init__(self, capacity, shape, actions, device):
        self.obs = torch.empty(capacity, *shape, dtype=torch.uint8, device=device)
        self.nxt = torch.empty(capacity, *shape, dtype=torch.uint8, device=device)
        self.act = torch.empty(capacity, actions, device=device)
        self.rew = torch.empty(capacity, device=device)
        self.capacity, self.at, self.size = capacity, 0, 0

    def add(self, o, a, r, n):
        idx = (torch.arange(len(o), device=o.device) + self.at) % self.capacity
        self.obs[idx], self.nxt[idx], self.act[idx], self.rew[idx] = o, n, a, r
        self.at = (self.at + len(o)) % self.capacity
        self.size = min(self.capacity, self.size + len(o))

    def sample(self, batch):
        idx = torch.randint(0, self.size, (batch,), device=self.obs.device)
        return self.obs[idx], self.act[idx], self.rew[idx], self.nxt[idx]


def random_shift(x, pad=4):
    """Shift each image by up to `pad` pixels, by bilinear sampling from the replicated border."""
    n, _, h, _ = x.shape
    x = F.pad(x.float(), (pad,) * 4, mode="replicate")
    line = torch.linspace(-1, 1, h + 2 * pad, device=x.device)[:h]
    line = line.unsqueeze(0).repeat(h, 1).unsqueeze(2)
    base = torch.cat([line, line.transpose(1, 0)], dim=2).unsqueeze(0)
    shift = torch.randint(0, 2 * pad + 1, (n, 1, 1, 2), device=x.device).float() * 2.0 / (h + 2 * pad)
    return F.grid_sample(x, base + shift, padding_mode="zeros", align_corners=False)


class Encoder(nn.Module):
    def __init__(self, channels, size, width, out):
        super().__init__()
        convs = [nn.Conv2d(channels, width, 3, stride=2), nn.ReLU()]
        for _ in range(3):
            convs += [nn.Conv2d(width, width, 3), nn.ReLU()]
        self.convs = nn.Sequential(*convs)
        side = (size - 3) // 2 + 1 - 6
        self.head = nn.Sequential(nn.Linear(width * side * side, out), nn.LayerNorm(out), nn.Tanh())

    def forward(self, x):
        return self.head(self.convs(x / 255.0 - 0.5).flatten(1))


def trunk(cin, cout, hidden=1024):
    return nn.Sequential(nn.Linear(cin, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, cout))


class Agent(nn.Module):
    def __init__(self, channels, size, actions, width, feat):
        super().__init__()
        self.encoder = Encoder(channels, size, width, feat)
        self.actor = trunk(feat, 2 * actions)
        self.q1, self.q2 = trunk(feat + actions, 1), trunk(feat + actions, 1)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(0.1)))

    def policy(self, z):
        mu, log_std = self.actor(z).chunk(2, -1)
        std = torch.exp(-4 + 3 * (torch.tanh(log_std) + 1))
        u = mu + std * torch.randn_like(mu)
        logp = (-0.5 * ((u - mu) / std) ** 2 - std.log() - 0.919).sum(-1)
        logp = logp - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
        return torch.tanh(u), logp

    def critics(self, z, a):
        za = torch.cat([z, a], -1)
        return self.q1(za).squeeze(-1), self.q2(za).squeeze(-1)


def update(agent, target, batch, critic_opt, actor_opt, alpha_opt, gamma, target_entropy):
    obs, act, rew, nxt = batch
    with torch.no_grad():
        y = 0
        for _ in range(2):  # average of two shifts of the next frame
            n = random_shift(nxt)
            a, logp = agent.policy(agent.encoder(n))
            y = y + 0.5 * (rew + gamma * (torch.min(*target.critics(target.encoder(n), a)) - agent.log_alpha.exp() * logp))
    views = torch.cat([random_shift(obs), random_shift(obs)])
    z = agent.encoder(views)
    q1, q2 = agent.critics(z, act.repeat(2, 1))
    critic_loss = F.mse_loss(q1, y.repeat(2)) + F.mse_loss(q2, y.repeat(2))
    critic_opt.zero_grad(set_to_none=True)
    critic_loss.backward()
    nn.utils.clip_grad_norm_([p for g in critic_opt.param_groups for p in g["params"]], 10.0)
    critic_opt.step()
    z = agent.encoder(views[: len(obs)]).detach()
    a, logp = agent.policy(z)
    actor_loss = (agent.log_alpha.exp().detach() * logp - torch.min(*agent.critics(z, a))).mean()
    actor_opt.zero_grad(set_to_none=True)
    actor_loss.backward()
    actor_opt.step()
    alpha_opt.zero_grad(set_to_none=True)
    (agent.log_alpha.exp() * (-logp.detach() - target_entropy)).mean().backward()
    alpha_opt.step()
    with torch.no_grad():
        for pt, p in zip(target.parameters(), agent.parameters()):
            pt.lerp_(p, 0.01)
    return critic_loss.item(), actor_loss.item()


@torch.no_grad()
def evaluate(agent, worlds):
    obs, done, total = worlds.reset(), False, 0.0
    while not done:
        action = torch.tanh(agent.actor(agent.encoder(obs.float())).chunk(2, -1)[0])
        obs, reward, done = worlds.step(action)
        total += reward.mean().item()
    return total


def main():
    ap = argparse.ArgumentParser()
    for name, value in dict(worlds=48, size=84, stack=3, horizon=60, capacity=15000, batch=416, width=32, feat=64, episodes=6,
                            warm_up=60).items():
        ap.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    args = ap.parse_args()
    torch.manual_seed(9)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    worlds = PointWorlds(args.worlds, args.size, args.stack, args.horizon, device)
    held_out = PointWorlds(24, args.size, args.stack, args.horizon, device)
    replay = Replay(args.capacity, (3 * args.stack, args.size, args.size), 2, device)
    agent = Agent(3 * args.stack, args.size, 2, args.width, args.feat).to(device)
    target = copy.deepcopy(agent).requires_grad_(False)
    critic_opt = torch.optim.Adam([*agent.encoder.parameters(), *agent.q1.parameters(), *agent.q2.parameters()], lr=5e-4)
    actor_opt = torch.optim.Adam(agent.actor.parameters(), lr=5e-4)
    alpha_opt = torch.optim.Adam([agent.log_alpha], lr=1e-3, betas=(0.5, 0.999))
    t0, ticks, losses = time.time(), 0, []
    for episode in range(args.episodes):
        obs, done = worlds.reset(), False
        while not done:
            with torch.no_grad():
                if ticks < args.warm_up:
                    action = torch.rand(args.worlds, 2, device=device) * 2 - 1
                else:
                    action = agent.policy(agent.encoder(obs.float()))[0]
            nxt, reward, done = worlds.step(action)
            replay.add(obs, action, reward, nxt)
            obs, ticks = nxt, ticks + 1
            if ticks >= args.warm_up:
                losses.append(update(agent, target, replay.sample(args.batch), critic_opt, actor_opt, alpha_opt, 0.98, -2.0))
        note = f"critic {losses[-1][0]:.4f} actor {losses[-1][1]:.3f}, " if losses else ""
        print(f"episode {episode}: {note}return {evaluate(agent, held_out):.3f}, memory {replay.size}, {time.time() - t0:.1f} s", flush=True)
    with tempfile.TemporaryDirectory() as tmp:
        torch.save({"agent": agent.state_dict(), "critic_opt": critic_opt.state_dict()}, os.path.join(tmp, "drq.pt"))


if __name__ == "__main__":
    main()
