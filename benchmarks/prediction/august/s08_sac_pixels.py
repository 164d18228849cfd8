"""Soft actor-critic from pixels with random-shift augmentation; simulator and replay buffer both live on the GPU."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class PixelReacher:
    """Many point masses chasing targets, drawn as 84x84 frames; three frames make an observation."""

    def __init__(self, n, size, device, horizon=50):
        self.n, self.size, self.device, self.horizon = n, size, device, horizon
        axis = torch.linspace(-1, 1, size, device=device)
        self.gy, self.gx = torch.meshgrid(axis, axis, indexing="ij")
        self.reset()

    def reset(self):
        self.pos = torch.rand(self.n, 2, device=self.device) * 1.6 - 0.8
        self.vel = torch.zeros(self.n, 2, device=self.device)
        self.goal = torch.rand(self.n, 2, device=self.device) * 1.6 - 0.8
        self.t = 0
        self.frames = self.render().repeat(1, 3, 1, 1)
        return self.frames

    def _disc(self, xy, r):
        d2 = (self.gx - xy[:, 0, None, None]) ** 2 + (self.gy - xy[:, 1, None, None]) ** 2
        return torch.exp(-d2 / r ** 2)

    def render(self):
        img = torch.stack([self._disc(self.pos, 0.12), self._disc(self.goal, 0.15),
                           self._disc(self.pos - 0.2 * self.vel, 0.1)], dim=1)
        return (img * 255).to(torch.uint8)

    def step(self, action):
        self.vel = 0.8 * self.vel + 0.1 * action
        self.pos = (self.pos + self.vel).clamp(-1, 1)
        self.t += 1
        self.frames = torch.cat([self.frames[:, 3:], self.render()], dim=1)
        reward = 1.0 - (self.pos - self.goal).norm(dim=1)
        return self.frames, reward, self.t >= self.horizon


class Replay:
    def __init__(self, capacity, shape, action_dim, device):
        self.obs = torch.empty((capacity, *shape), dtype=torch.uint8, device=device)
        self.next_obs = torch.empty((capacity, *shape), dtype=torch.uint8, device=device)
        self.action = torch.empty((capacity, action_dim), device=device)
        self.reward = torch.empty((capacity, 1), device=device)
        self.capacity, self.device, self.ptr, self.size = capacity, device, 0, 0

    def add(self, obs, action, reward, next_obs):
        idx = (torch.arange(len(obs), device=self.device) + self.ptr) % self.capacity
        self.obs[idx], self.next_obs[idx] = obs, next_obs
        self.action[idx], self.reward[idx] = action, reward[:, None]
        self.ptr = (self.ptr + len(obs)) % self.capacity
        self.size = min(self.capacity, self.size + len(obs))

    def sample(self, batch):
        idx = torch.randint(self.size, (batch,), device=self.device)
        return self.obs[idx], self.action[idx], self.reward[idx], self.next_obs[idx]


def random_shift(x, pad=4):
    n, _, h, w = x.shape
    x = F.pad(x.float(), (pad,) * 4, mode="replicate")
    eps = 1.0 / (h + 2 * pad)
    axis = torch.linspace(-1 + eps, 1 - eps, h + 2 * pad, device=x.device)[:h]
    base = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1).expand(n, h, w, 2)
    shift = torch.randint(0, 2 * pad + 1, (n, 1, 1, 2), device=x.device) * (2.0 / (h + 2 * pad))
    return F.grid_sample(x, base + shift, padding_mode="zeros", align_corners=False)


class Encoder(nn.Module):
    def __init__(self, cin, size, feature=64):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(cin, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(),
                                  nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            flat = self.conv(torch.zeros(1, cin, size, size)).shape[1]
        self.fc = nn.Sequential(nn.Linear(flat, feature), nn.LayerNorm(feature), nn.Tanh())

    def forward(self, x):
        return self.fc(self.conv(x.float() / 255.0 - 0.5))


class Actor(nn.Module):
    def __init__(self, feature, action_dim, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(feature, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2 * action_dim))

    def forward(self, z):
        mu, log_std = self.net(z).chunk(2, dim=-1)
        std = (-4 + 3 * (torch.tanh(log_std) + 1)).exp()
        dist = torch.distributions.Normal(mu, std)
        raw = dist.rsample()
        log_prob = (dist.log_prob(raw) - 2 * (0.6931 - raw - F.softplus(-2 * raw))).sum(-1, keepdim=True)
        return torch.tanh(raw), log_prob, torch.tanh(mu)


class Critic(nn.Module):
    def __init__(self, feature, action_dim, hidden, cin, size):
        super().__init__()
        self.encoder = Encoder(cin, size, feature)
        def head():
            return nn.Sequential(nn.Linear(feature + action_dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.q1, self.q2 = head(), head()

    def q(self, z, a):
        za = torch.cat([z, a], dim=-1)
        return self.q1(za), self.q2(za)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--envs", type=int, default=100)
    ap.add_argument("--capacity", type=int, default=36_000)
    ap.add_argument("--size", type=int, default=84)
    ap.add_argument("--batch", type=int, default=320)
    ap.add_argument("--iterations", type=int, default=400)
    ap.add_argument("--warmup", type=int, default=40)
    ap.add_argument("--hidden", type=int, default=1024)
    ap.add_argument("--gamma", type=float, default=0.97)
    args = ap.parse_args()

    torch.manual_seed(3)
    device = torch.device("cuda")
    env, test_env = PixelReacher(args.envs, args.size, device), PixelReacher(args.envs, args.size, device)
    buffer = Replay(args.capacity, (9, args.size, args.size), 2, device)
    critic = Critic(64, 2, args.hidden, 9, args.size).to(device)
    target = copy.deepcopy(critic).requires_grad_(False)
    actor = Actor(64, 2, args.hidden).to(device)
    log_alpha = torch.tensor(-2.3, device=device, requires_grad=True)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=5e-4)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=5e-4)
    alpha_opt = torch.optim.Adam([log_alpha], lr=1e-3)

    @torch.no_grad()
    def evaluate():
        obs, total, done = test_env.reset(), 0.0, False
        while not done:
            obs, reward, done = test_env.step(actor(critic.encoder(obs))[2])
            total += reward.mean().item()
        return total

    def update():
        obs, action, reward, next_obs = buffer.sample(args.batch)
        obs, next_obs = random_shift(obs), random_shift(next_obs)
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_logp, _ = actor(critic.encoder(next_obs))
            tq = torch.min(*target.q(target.encoder(next_obs), next_action))
            y = reward + args.gamma * (tq - alpha * next_logp)
        z = critic.encoder(obs)
        q1, q2 = critic.q(z, action)
        critic_loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        critic_opt.zero_grad(set_to_none=True)
        critic_loss.backward()
        nn.utils.clip_grad_norm_(critic.parameters(), 10.0)
        critic_opt.step()

        new_action, logp, _ = actor(z.detach())
        actor_loss = (alpha * logp - torch.min(*critic.q(z.detach(), new_action))).mean()
        actor_opt.zero_grad(set_to_none=True)
        actor_loss.backward()
        actor_opt.step()
        alpha_loss = -(log_alpha.exp() * (logp.detach() - 2.0)).mean()
        alpha_opt.zero_grad()
        alpha_loss.backward()
        alpha_opt.step()
        with torch.no_grad():
            for t, p in zip(target.parameters(), critic.parameters()):
                t.lerp_(p, 0.01)
        return critic_loss.item(), actor_loss.item()

    obs = env.reset()
    for it in range(1, args.iterations + 1):
        with torch.no_grad():
            action = torch.rand(args.envs, 2, device=device) * 2 - 1 if it <= args.warmup else actor(critic.encoder(obs))[0]
        next_obs, reward, done = env.step(action)
        buffer.add(obs, action, reward, next_obs)
        obs = env.reset() if done else next_obs
        if it > args.warmup:
            closs, aloss = update()
        if it > args.warmup and it % 50 == 0:
            print(f"iteration {it}: critic {closs:.4f} actor {aloss:.4f} alpha {log_alpha.exp().item():.3f} buffer {buffer.size}")
        if it % 200 == 0:
            print(f"iteration {it}: return {evaluate():.2f}")


if __name__ == "__main__":
    main()
