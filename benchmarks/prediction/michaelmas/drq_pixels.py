"""DrQ-style soft actor-critic from pixels: uint8 replay ring on the GPU, random shifts, twin critics, EMA targets."""
import argparse
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

class Replay:
    def __init__(self, capacity, obs_shape, act_dim, device):
        self.obs = torch.empty(capacity, *obs_shape, dtype=torch.uint8, device=device)
        self.act = torch.empty(capacity, act_dim, device=device)
        self.rew = torch.empty(capacity, 1, device=device)
        self.done = torch.zeros(capacity, 1, device=device)
        self.cap, self.ptr, self.full = capacity, 0, False
    def add(self, obs, act, rew, done):
        n = obs.shape[0]
        idx = (self.ptr + torch.arange(n, device=self.obs.device)) % self.cap
        self.obs[idx], self.act[idx], self.rew[idx], self.done[idx] = obs, act, rew, done
        self.full |= self.ptr + n >= self.cap
        self.ptr = (self.ptr + n) % self.cap
    def sample(self, batch, n_envs):
        hi = self.cap if self.full else self.ptr
        i = torch.randint(0, hi - n_envs, (batch,), device=self.obs.device)
        return self.obs[i], self.act[i], self.rew[i], self.obs[(i + n_envs) % self.cap], self.done[i]

def random_shift(x, pad=4):
    n, c, h, w = x.shape
    x = F.pad(x, (pad,) * 4, mode="replicate")
    base = torch.linspace(-1 + 1 / (h + 2 * pad), 1 - 1 / (h + 2 * pad), h + 2 * pad, device=x.device)[:h]
    gx = base.repeat(h, 1).unsqueeze(-1)
    grid = torch.cat([gx, gx.transpose(0, 1)], -1).unsqueeze(0).repeat(n, 1, 1, 1)
    shift = torch.randint(0, 2 * pad + 1, (n, 1, 1, 2), device=x.device) * (2.0 / (h + 2 * pad))
    return F.grid_sample(x, grid + shift, align_corners=False)

class Encoder(nn.Module):
    def __init__(self, ch, dim=64):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(ch, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(),
                                 nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten())
        self.proj = nn.Sequential(nn.Linear(32 * 35 * 35, dim), nn.LayerNorm(dim), nn.Tanh())
    def forward(self, x):
        return self.proj(self.net(x / 255.0 - 0.5))

def mlp(i, o, h=1024):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))

class Critic(nn.Module):
    def __init__(self, ch, act):
        super().__init__()
        self.enc = Encoder(ch)
        self.q1, self.q2 = mlp(64 + act, 1), mlp(64 + act, 1)
    def forward(self, obs, act):
        z = torch.cat([self.enc(obs), act], -1)
        return self.q1(z), self.q2(z)

class Actor(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.net = mlp(64, 2 * act)
    def forward(self, z):
        mu, log_std = self.net(z).chunk(2, -1)
        dist = torch.distributions.Normal(mu, log_std.clamp(-5, 2).exp())
        u = dist.rsample()
        logp = dist.log_prob(u) - 2 * (0.6931 - u - F.softplus(-2 * u))
        return u.tanh(), logp.sum(-1, keepdim=True)

def update(opt, loss):
    opt.zero_grad()
    loss.backward()
    opt.step()

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--capacity", type=int, default=100_000)
    ap.add_argument("--envs", type=int, default=64)
    ap.add_argument("--warmup", type=int, default=40)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--steps", type=int, default=15)
    a = ap.parse_args()
    torch.manual_seed(1)
    dev, act_dim, shape = torch.device("cuda"), 6, (9, 84, 84)
    buf = Replay(a.capacity, shape, act_dim, dev)
    critic, actor = Critic(shape[0], act_dim).to(dev), Actor(act_dim).to(dev)
    target = copy.deepcopy(critic).requires_grad_(False)
    log_alpha = torch.tensor(-2.3, device=dev, requires_grad=True)
    c_opt = torch.optim.Adam(critic.parameters(), 1e-4)
    a_opt = torch.optim.Adam(actor.parameters(), 1e-4)
    t_opt = torch.optim.Adam([log_alpha], 1e-4)
    def env_step(obs, act):
        nxt = torch.randint(0, 256, (a.envs, *shape), dtype=torch.uint8, device=dev)
        buf.add(obs, act, -act.pow(2).sum(-1, keepdim=True), (torch.rand(a.envs, 1, device=dev) < 0.01).float())
        return nxt

    obs = torch.randint(0, 256, (a.envs, *shape), dtype=torch.uint8, device=dev)
    for _ in range(a.warmup):
        obs = env_step(obs, torch.rand(a.envs, act_dim, device=dev) * 2 - 1)
    for step in range(a.steps):
        with torch.no_grad():
            obs = env_step(obs, actor(critic.enc(obs.float()))[0])
        o, act, r, o2, d = buf.sample(a.batch, a.envs)
        o, o2 = random_shift(o.float()), random_shift(o2.float())
        with torch.no_grad():
            na, nlogp = actor(critic.enc(o2))
            tgt = r + 0.99 * (1 - d) * (torch.min(*target(o2, na)) - log_alpha.exp() * nlogp)
        q1, q2 = critic(o, act)
        c_loss = F.mse_loss(q1, tgt) + F.mse_loss(q2, tgt)
        update(c_opt, c_loss)
        if step % 2 == 0:
            z = critic.enc(o).detach()
            pa, logp = actor(z)
            q = torch.min(critic.q1(torch.cat([z, pa], -1)), critic.q2(torch.cat([z, pa], -1)))
            a_loss = (log_alpha.exp().detach() * logp - q).mean()
            update(a_opt, a_loss)
            update(t_opt, (log_alpha.exp() * (-logp.detach() + act_dim)).mean())
        with torch.no_grad():  # EMA
            torch._foreach_lerp_(list(target.parameters()), list(critic.parameters()), 0.01)
        print(f"step {step} critic {c_loss.item():.4f} actor {a_loss.item():.4f} alpha {log_alpha.exp().item():.4f}")

if __name__ == "__main__":
    main()
