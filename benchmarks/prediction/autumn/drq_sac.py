"""SAC from pixels with DrQ random shifts.  Replay buffer and (batched) environment live on the GPU.

The environment is a small navigation task: an agent, a goal and two moving obstacles drawn
as blobs in an 84x84 RGB picture, three frames are stacked.
"""
import copy
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

TINY = os.environ.get("TINY") == "1"
SCALE = float(os.environ.get("SCALE", "1"))


@dataclass
class Cfg:
    n_envs: int = 4 if TINY else 64
    capacity: int = 64 if TINY else 16384
    warmup: int = 4 if TINY else 40
    env_steps: int = 8 if TINY else 24        # after warm-up, one update per env step
    batch: int = max(1, round((8 if TINY else 512) * SCALE))
    size: int = 84
    frames: int = 3
    act_dim: int = 2
    hidden: int = 32 if TINY else 1024
    filters: int = 8 if TINY else 32
    gamma: float = 0.97
    tau: float = 0.01
    lr: float = 3e-4
    log_every: int = 4


class Nav:
    def __init__(self, cfg, device):
        self.c, self.dev = cfg, device
        t = torch.linspace(-1, 1, cfg.size, device=device)
        self.yy, self.xx = torch.meshgrid(t, t, indexing="ij")
        self.t = torch.zeros(cfg.n_envs, device=device)
        self.reset(torch.ones(cfg.n_envs, dtype=torch.bool, device=device))
        self.stack = self.draw().repeat(1, cfg.frames, 1, 1)

    def reset(self, which):
        fresh = torch.rand(self.c.n_envs, 4, 2, device=self.dev) * 1.6 - 0.8
        self.pos = torch.where(which[:, None, None], fresh, getattr(self, "pos", fresh))
        self.vel = torch.randn(self.c.n_envs, 2, 2, device=self.dev) * 0.03
        self.t = torch.where(which, torch.zeros_like(self.t), self.t)

    def draw(self):
        d = (self.xx - self.pos[..., 0, None, None]) ** 2 + (self.yy - self.pos[..., 1, None, None]) ** 2
        b = torch.exp(-d / 0.02)
        return (torch.stack([b[:, 0], b[:, 1], b[:, 2] + b[:, 3]], 1).clamp(0, 1) * 255).to(torch.uint8)

    def step(self, act):
        self.pos[:, 0] = (self.pos[:, 0] + 0.12 * act).clamp(-1, 1)
        self.pos[:, 2:] = (self.pos[:, 2:] + self.vel).clamp(-1, 1)
        dist = (self.pos[:, 0] - self.pos[:, 1]).norm(dim=-1)
        hit = (self.pos[:, :1] - self.pos[:, 2:]).norm(dim=-1).min(1).values < 0.15
        reward = -dist - hit.float()
        self.t += 1
        done = (dist < 0.1) | (self.t >= 50)
        nxt = torch.cat([self.stack[:, 3:], self.draw()], 1)
        self.reset(done)
        self.stack = torch.where(done[:, None, None, None], self.draw().repeat(1, self.c.frames, 1, 1), nxt)
        return nxt, reward, (dist < 0.1).float()


class Replay:
    def __init__(self, cfg, device):
        shape = (cfg.capacity, 3 * cfg.frames, cfg.size, cfg.size)
        self.obs = torch.empty(shape, dtype=torch.uint8, device=device)
        self.nxt = torch.empty(shape, dtype=torch.uint8, device=device)
        self.act = torch.empty(cfg.capacity, cfg.act_dim, device=device)
        self.rew = torch.empty(cfg.capacity, 1, device=device)
        self.term = torch.empty(cfg.capacity, 1, device=device)
        self.i, self.full, self.cap = 0, False, cfg.capacity

    def add(self, obs, act, rew, nxt, term):
        n = obs.shape[0]
        idx = torch.arange(self.i, self.i + n, device=obs.device) % self.cap
        self.obs[idx], self.nxt[idx], self.act[idx] = obs, nxt, act
        self.rew[idx, 0], self.term[idx, 0] = rew, term
        self.full |= self.i + n >= self.cap
        self.i = (self.i + n) % self.cap

    def sample(self, n):
        idx = torch.randint(0, self.cap if self.full else self.i, (n,), device=self.obs.device)
        return self.obs[idx], self.act[idx], self.rew[idx], self.nxt[idx], self.term[idx]


def random_shift(x, pad=4):
    n, _, h, w = x.shape
    x = F.pad(x.float(), (pad,) * 4, mode="replicate")
    eps = 1.0 / (h + 2 * pad)
    arange = torch.linspace(-1 + eps, 1 - eps, h + 2 * pad, device=x.device)[:h]
    grid = torch.stack(torch.meshgrid(arange, arange, indexing="xy"), -1).expand(n, -1, -1, -1)
    shift = torch.randint(0, 2 * pad + 1, (n, 1, 1, 2), device=x.device).float() * (2.0 / (h + 2 * pad))
    return F.grid_sample(x, grid + shift, padding_mode="zeros", align_corners=False)


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        f = cfg.filters
        self.net = nn.Sequential(
            nn.Conv2d(3 * cfg.frames, f, 3, 2), nn.ReLU(), nn.Conv2d(f, f, 3), nn.ReLU(),
            nn.Conv2d(f, f, 3), nn.ReLU(), nn.Conv2d(f, f, 3), nn.ReLU(), nn.Flatten())
        self.dim = f * 35 * 35

    def forward(self, x):
        return self.net(x / 255.0 - 0.5)


def trunk(dim):
    return nn.Sequential(nn.Linear(dim, 50), nn.LayerNorm(50), nn.Tanh())


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class Actor(nn.Module):
    def __init__(self, cfg, dim):
        super().__init__()
        self.trunk, self.pi = trunk(dim), mlp(50, cfg.hidden, 2 * cfg.act_dim)

    def forward(self, h):
        mu, log_std = self.pi(self.trunk(h)).chunk(2, -1)
        std = (-3 + 2.5 * (torch.tanh(log_std) + 1)).exp()
        return Independent(TransformedDistribution(Normal(mu, std), [TanhTransform(cache_size=1)]), 1)


class Critic(nn.Module):
    def __init__(self, cfg, dim):
        super().__init__()
        self.trunk = trunk(dim)
        self.q1, self.q2 = (mlp(50 + cfg.act_dim, cfg.hidden, 1) for _ in range(2))

    def forward(self, h, a):
        x = torch.cat([self.trunk(h), a], -1)
        return self.q1(x), self.q2(x)


class Agent:
    def __init__(self, cfg, device):
        self.c = cfg
        self.enc = Encoder(cfg).to(device)
        self.actor, self.critic = Actor(cfg, self.enc.dim).to(device), Critic(cfg, self.enc.dim).to(device)
        self.enc_t, self.critic_t = copy.deepcopy(self.enc), copy.deepcopy(self.critic)
        self.log_alpha = torch.tensor(-2.3, device=device, requires_grad=True)
        self.opt_c = torch.optim.Adam([*self.enc.parameters(), *self.critic.parameters()], lr=cfg.lr)
        self.opt_a = torch.optim.Adam(self.actor.parameters(), lr=cfg.lr)
        self.opt_alpha = torch.optim.Adam([self.log_alpha], lr=1e-3, betas=(0.5, 0.999))

    @torch.no_grad()
    def act(self, obs):
        return self.actor(self.enc(obs.float())).sample()

    def update(self, batch):
        c = self.c
        obs, act, rew, nxt, term = batch
        obs, nxt = random_shift(obs), random_shift(nxt)
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            dist = self.actor(self.enc(nxt))
            a2 = dist.rsample()
            q = torch.min(*self.critic_t(self.enc_t(nxt), a2))
            target = rew + c.gamma * (1 - term) * (q - alpha * dist.log_prob(a2).unsqueeze(-1))
        h = self.enc(obs)
        q1, q2 = self.critic(h, act)
        loss_c = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.opt_c.zero_grad(set_to_none=True)
        loss_c.backward()
        self.opt_c.step()

        h = h.detach()
        dist = self.actor(h)
        a = dist.rsample()
        logp = dist.log_prob(a)
        loss_a = (alpha * logp - torch.min(*self.critic(h, a)).squeeze(-1)).mean()
        self.opt_a.zero_grad(set_to_none=True)
        loss_a.backward()
        self.opt_a.step()

        loss_alpha = -(self.log_alpha.exp() * (logp.detach() - c.act_dim)).mean()
        self.opt_alpha.zero_grad(set_to_none=True)
        loss_alpha.backward()
        self.opt_alpha.step()

        with torch.no_grad():
            for net, tgt in ((self.enc, self.enc_t), (self.critic, self.critic_t)):
                torch._foreach_lerp_(list(tgt.parameters()), list(net.parameters()), c.tau)
        return loss_c.item(), loss_a.item(), -logp.mean().item()


def main():
    cfg = Cfg()
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    env, buf, agent = Nav(cfg, device), Replay(cfg, device), Agent(cfg, device)
    for t in range(cfg.warmup + cfg.env_steps):
        obs = env.stack
        act = torch.rand(cfg.n_envs, cfg.act_dim, device=device) * 2 - 1 if t < cfg.warmup else agent.act(obs)
        nxt, rew, term = env.step(act)
        buf.add(obs, act, rew, nxt, term)
        if t >= cfg.warmup:
            lc, la, ent = agent.update(buf.sample(cfg.batch))
            if (t - cfg.warmup) % cfg.log_every == 0:
                print(f"step {t:3d} return/step {rew.mean().item():+.3f} critic {lc:.4f} actor {la:+.4f} entropy {ent:.3f}")
    print("done")


if __name__ == "__main__":
    main()
