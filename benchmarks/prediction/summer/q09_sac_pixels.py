"""SAC from pixels (DrQ-like random shift) with the whole replay buffer on the GPU."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Replay:
    def __init__(self, capacity, obs_shape, act_dim, device):
        self.obs = torch.zeros((capacity, *obs_shape), dtype=torch.uint8, device=device)
        self.next_obs = torch.zeros((capacity, *obs_shape), dtype=torch.uint8, device=device)
        self.act = torch.zeros(capacity, act_dim, device=device)
        self.rew = torch.zeros(capacity, 1, device=device)
        self.done = torch.zeros(capacity, 1, device=device)
        self.capacity, self.pos, self.size, self.device = capacity, 0, 0, device

    def add(self, obs, act, rew, next_obs, done):
        n = obs.shape[0]
        idx = (self.pos + torch.arange(n, device=self.device)) % self.capacity
        for buf, val in zip((self.obs, self.act, self.rew, self.next_obs, self.done),
                            (obs, act, rew, next_obs, done)):
            buf[idx] = val
        self.pos = (self.pos + n) % self.capacity
        self.size = min(self.size + n, self.capacity)

    def sample(self, n):
        i = torch.randint(0, self.size, (n,), device=self.device)
        return self.obs[i].float(), self.act[i], self.rew[i], self.next_obs[i].float(), self.done[i]


def random_shift(x, pad=4):
    n, c, h, w = x.shape
    x = F.pad(x, (pad,) * 4, mode="replicate")
    eps = 1.0 / (h + 2 * pad)
    lin = torch.linspace(-1 + eps, 1 - eps, h + 2 * pad, device=x.device)[:h]
    grid = torch.stack([lin[None, :].expand(h, h), lin[:, None].expand(h, h)], dim=-1)
    shift = torch.randint(0, 2 * pad + 1, (n, 1, 1, 2), device=x.device) * (2.0 / (h + 2 * pad))
    return F.grid_sample(x, grid[None] + shift, padding_mode="zeros", align_corners=False)


class Encoder(nn.Module):
    def __init__(self, channels, size, feat):
        super().__init__()
        layers = []
        for i in range(4):
            layers += [nn.Conv2d(channels if i == 0 else 32, 32, 3, stride=2 if i == 0 else 1), nn.ReLU()]
        self.convs = nn.Sequential(*layers)
        side = (size - 3) // 2 + 1 - 6
        self.head = nn.Sequential(nn.Linear(32 * side * side, feat), nn.LayerNorm(feat), nn.Tanh())

    def forward(self, x):
        return self.head(self.convs(x / 255.0 - 0.5).flatten(1))


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class Critic(nn.Module):
    def __init__(self, channels, size, act_dim, feat, hidden):
        super().__init__()
        self.encoder = Encoder(channels, size, feat)
        self.q1, self.q2 = mlp(feat + act_dim, hidden, 1), mlp(feat + act_dim, hidden, 1)

    def heads(self, z, a):
        za = torch.cat([z, a], dim=-1)
        return self.q1(za), self.q2(za)


class Actor(nn.Module):
    def __init__(self, feat, act_dim, hidden):
        super().__init__()
        self.net = mlp(feat, hidden, 2 * act_dim)

    def forward(self, z):
        mu, log_std = self.net(z).chunk(2, dim=-1)
        dist = torch.distributions.Normal(mu, log_std.clamp(-10, 2).exp())
        pre = dist.rsample()
        act = torch.tanh(pre)
        logp = dist.log_prob(pre) - torch.log(1 - act.pow(2) + 1e-6)
        return act, logp.sum(-1, keepdim=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--capacity", type=int, default=50_000)
    p.add_argument("--envs", type=int, default=2048)
    p.add_argument("--size", type=int, default=84)
    p.add_argument("--act-dim", type=int, default=6)
    p.add_argument("--feat", type=int, default=50)
    p.add_argument("--hidden", type=int, default=1024)
    p.add_argument("--batch", type=int, default=1024)
    p.add_argument("--updates", type=int, default=8)
    p.add_argument("--prefill", type=int, default=8)
    args = p.parse_args()

    torch.manual_seed(11)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = (9, args.size, args.size)  # three stacked RGB frames
    critic = Critic(9, args.size, args.act_dim, args.feat, args.hidden).to(device)
    target = copy.deepcopy(critic).requires_grad_(False)
    actor = Actor(args.feat, args.act_dim, args.hidden).to(device)
    log_alpha = torch.tensor(-2.3, device=device, requires_grad=True)
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, foreach=False)
    opt_a = torch.optim.Adam(actor.parameters(), lr=1e-3, foreach=False)
    opt_t = torch.optim.Adam([log_alpha], lr=1e-4)
    buf = Replay(args.capacity, shape, args.act_dim, device)

    obs = torch.randint(0, 256, (args.envs, *shape), dtype=torch.uint8, device=device)
    for _ in range(args.prefill):  # act in the (fake) vectorised environments
        with torch.no_grad():
            act, _ = actor(critic.encoder(obs.float()))
        nxt = torch.randint(0, 256, obs.shape, dtype=torch.uint8, device=device)
        rew = act.mean(-1, keepdim=True) + 0.1 * torch.randn(args.envs, 1, device=device)
        buf.add(obs, act, rew, nxt, (torch.rand(args.envs, 1, device=device) < 0.01).float())
        obs = nxt

    for it in range(args.updates):
        o, a, r, o2, d = buf.sample(args.batch)
        o_aug, o2_aug = random_shift(o), random_shift(o2)
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp2 = actor(critic.encoder(o2_aug))
            q_next = torch.min(*target.heads(target.encoder(o2_aug), a2)) - alpha * logp2
            y = r + 0.99 * (1 - d) * q_next
        z = critic.encoder(o_aug)
        q1, q2 = critic.heads(z, a)
        loss_c = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()

        with torch.no_grad():
            z = critic.encoder(o_aug)
        pi, logp = actor(z)
        loss_a = (alpha * logp - torch.min(*critic.heads(z, pi))).mean()
        opt_a.zero_grad()
        loss_a.backward()
        opt_a.step()
        loss_t = (log_alpha.exp() * (-logp - (-args.act_dim)).detach()).mean()
        opt_t.zero_grad()
        loss_t.backward()
        opt_t.step()
        with torch.no_grad():
            for pt, pc in zip(target.parameters(), critic.parameters()):
                pt.lerp_(pc, 0.01)
        print(f"update {it} critic {loss_c.item():.4f} actor {loss_a.item():.4f} alpha {alpha.item():.4f}")


if __name__ == "__main__":
    main()
