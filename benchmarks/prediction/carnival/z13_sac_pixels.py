"""Soft actor-critic from pixels (DrQ style random shifts) with the environment and the replay buffer on the GPU."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PixelReacher:
    """Many point masses that chase a goal; the observation is three stacked RGB frames of 84 x 84, uint8."""

    def __init__(self, n, horizon=50, side=84, device="cuda"):
        self.n, self.horizon, self.side, self.device = n, horizon, side, device
        axis = torch.linspace(-1, 1, side, device=device)
        self.yy, self.xx = axis[:, None], axis[None]

    def draw(self):
        def blob(p, r):
            d = (self.xx[None] - p[:, 0, None, None]) ** 2 + (self.yy[None] - p[:, 1, None, None]) ** 2
            return (d < r * r).float()
        ground = (0.2 + 0.1 * self.xx * self.yy).expand(self.n, -1, -1)
        return (torch.stack([blob(self.pos, 0.10), blob(self.goal, 0.14), ground], dim=1).clamp(0, 1) * 255).to(torch.uint8)

    def reset(self):
        self.pos = torch.rand(self.n, 2, device=self.device) * 1.8 - 0.9
        self.vel = torch.zeros_like(self.pos)
        self.goal = torch.rand(self.n, 2, device=self.device) * 1.6 - 0.8
        self.t = 0
        self.frames = self.draw().repeat(1, 3, 1, 1)
        return self.frames

    def step(self, action):
        self.vel = 0.8 * self.vel + 0.06 * action
        self.pos = (self.pos + self.vel).clamp(-1, 1)
        self.t += 1
        self.frames = torch.cat([self.frames[:, 3:], self.draw()], dim=1)
        return self.frames, torch.exp(-4 * (self.pos - self.goal).norm(dim=-1)), self.t >= self.horizon


class ReplayBuffer:
    def __init__(self, capacity, obs_shape, action_dim, device):
        self.obs = torch.empty(capacity, *obs_shape, dtype=torch.uint8, device=device)
        self.next_obs = torch.empty_like(self.obs)
        self.action = torch.empty(capacity, action_dim, device=device)
        self.reward = torch.empty(capacity, device=device)
        self.capacity, self.ptr, self.size, self.device = capacity, 0, 0, device

    def add(self, obs, action, reward, next_obs):
        idx = (self.ptr + torch.arange(len(obs), device=self.device)) % self.capacity
        self.obs[idx], self.action[idx], self.reward[idx], self.next_obs[idx] = obs, action, reward, next_obs
        self.ptr = (self.ptr + len(obs)) % self.capacity
        self.size = min(self.size + len(obs), self.capacity)

    def sample(self, batch):
        idx = torch.randint(0, self.size, (batch,), device=self.device)
        return self.obs[idx], self.action[idx], self.reward[idx], self.next_obs[idx]


def random_shift(x, pad=4):
    n, _, h, _ = x.shape
    x = F.pad(x.float(), (pad,) * 4, "replicate")
    eps = 1.0 / (h + 2 * pad)
    line = torch.linspace(-1 + eps, 1 - eps, h + 2 * pad, device=x.device)[:h]
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1)[None].expand(n, -1, -1, -1)
    shift = torch.randint(0, 2 * pad + 1, (n, 1, 1, 2), device=x.device).float() * 2 * eps
    return F.grid_sample(x, grid + shift, padding_mode="zeros", align_corners=False)


class Encoder(nn.Module):
    def __init__(self, channels, width=48):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(channels, width, 3, stride=2), nn.ReLU(),
                                  nn.Conv2d(width, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(),
                                  nn.Conv2d(width, width, 3), nn.ReLU(), nn.Flatten())
        self.out_dim = width * 35 * 35

    def forward(self, obs):
        return self.conv(obs.float() / 255 - 0.5)


def trunk(cin, feature):
    return nn.Sequential(nn.Linear(cin, feature), nn.LayerNorm(feature), nn.Tanh())


def head(cin, hidden, out):
    return nn.Sequential(nn.Linear(cin, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out))


class Actor(nn.Module):
    def __init__(self, repr_dim, action_dim, feature, hidden):
        super().__init__()
        self.trunk, self.net = trunk(repr_dim, feature), head(feature, hidden, 2 * action_dim)

    def forward(self, h, deterministic=False):
        mu, log_std = self.net(self.trunk(h)).chunk(2, dim=-1)
        if deterministic:
            return torch.tanh(mu), None
        std = torch.exp(-5 + 3.5 * (torch.tanh(log_std) + 1))
        u = mu + std * torch.randn_like(mu)
        logp = (-0.5 * ((u - mu) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
        logp = logp - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
        return torch.tanh(u), logp


class Critic(nn.Module):
    def __init__(self, repr_dim, action_dim, feature, hidden):
        super().__init__()
        self.trunk = trunk(repr_dim, feature)
        self.q1, self.q2 = head(feature + action_dim, hidden, 1), head(feature + action_dim, hidden, 1)

    def forward(self, h, action):
        z = torch.cat([self.trunk(h), action], dim=-1)
        return self.q1(z).squeeze(-1), self.q2(z).squeeze(-1)


class SAC:
    def __init__(self, args, channels, action_dim, device):
        self.encoder = Encoder(channels).to(device)
        dims = (self.encoder.out_dim, action_dim, 50, args.hidden)
        self.actor, self.critic = Actor(*dims).to(device), Critic(*dims).to(device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.tensor(math.log(0.1), device=device, requires_grad=True)
        self.opt_critic = torch.optim.Adam([*self.encoder.parameters(), *self.critic.parameters()], lr=args.lr)
        self.opt_actor = torch.optim.Adam(self.actor.parameters(), lr=args.lr)
        self.opt_alpha = torch.optim.Adam([self.log_alpha], lr=args.lr, betas=(0.5, 0.999))
        self.gamma, self.tau, self.entropy = 0.97, 0.01, -float(action_dim)

    @torch.no_grad()
    def act(self, obs, deterministic=False):
        return self.actor(self.encoder(obs), deterministic)[0]

    def update(self, buffer, batch):
        obs, action, reward, next_obs = buffer.sample(batch)
        obs, next_obs = random_shift(obs), random_shift(next_obs)
        with torch.no_grad():
            h_next = self.encoder(next_obs)
            a_next, logp = self.actor(h_next)
            q = torch.min(*self.target(h_next, a_next)) - self.log_alpha.exp() * logp
            backup = reward + self.gamma * q  # time-outs are not terminal
        h = self.encoder(obs)
        q1, q2 = self.critic(h, action)
        critic_loss = F.mse_loss(q1, backup) + F.mse_loss(q2, backup)
        self.opt_critic.zero_grad()
        critic_loss.backward()
        self.opt_critic.step()
        h = h.detach()
        a, logp = self.actor(h)
        actor_loss = (self.log_alpha.exp().detach() * logp - torch.min(*self.critic(h, a))).mean()
        self.opt_actor.zero_grad()
        actor_loss.backward()
        nn.utils.clip_grad_norm_(self.actor.parameters(), 10.0)
        self.opt_actor.step()
        alpha_loss = -(self.log_alpha * (logp.detach() + self.entropy)).mean()
        self.opt_alpha.zero_grad()
        alpha_loss.backward()
        self.opt_alpha.step()
        with torch.no_grad():
            for p, t in zip(self.critic.parameters(), self.target.parameters()):
                t.lerp_(p, self.tau)
        return critic_loss.item(), actor_loss.item()


def evaluate(agent, env):
    obs, total, done = env.reset(), 0.0, False
    while not done:
        obs, reward, done = env.step(agent.act(obs, deterministic=True))
        total += reward.mean().item()
    return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--envs", type=int, default=20)
    ap.add_argument("--capacity", type=int, default=13000)
    ap.add_argument("--iterations", type=int, default=350)
    ap.add_argument("--warmup", type=int, default=30)
    ap.add_argument("--batch", type=int, default=230)
    ap.add_argument("--hidden", type=int, default=768)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()

    torch.manual_seed(1234)
    env, test_env = PixelReacher(args.envs), PixelReacher(args.envs + 12)
    obs = env.reset()
    buffer = ReplayBuffer(args.capacity, obs.shape[1:], 2, "cuda")
    agent = SAC(args, obs.shape[1], 2, "cuda")
    print(f"buffer {(buffer.obs.nbytes + buffer.next_obs.nbytes) / 2**30:.2f} GiB")
    for it in range(args.iterations):
        action = torch.rand(args.envs, 2, device="cuda") * 2 - 1 if it < args.warmup else agent.act(obs)
        next_obs, reward, done = env.step(action)
        buffer.add(obs, action, reward, next_obs)
        obs = env.reset() if done else next_obs
        if it >= args.warmup:
            critic_loss, actor_loss = agent.update(buffer, args.batch)
            if it % 25 == 0:
                print(f"iteration {it} filled {buffer.size} critic {critic_loss:.4f} actor {actor_loss:.4f} "
                      f"alpha {agent.log_alpha.exp().item():.4f}")
        if (it + 1) % 100 == 0:
            print(f"iteration {it + 1}: return {evaluate(agent, test_env):.2f}")


if __name__ == "__main__":
    main()
