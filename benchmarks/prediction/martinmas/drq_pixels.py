"""DrQ-style actor-critic from pixels; the replay buffer lives on the GPU as uint8 frames."""
import argparse
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
class FrameReplay:
    """Stores single frames; stacks of k frames are gathered by index when a batch is drawn."""
    def __init__(self, capacity, size, act_dim, stack, device):
        self.frames = torch.empty(capacity, 3, size, size, dtype=torch.uint8, device=device)
        self.act = torch.zeros(capacity, act_dim, device=device)
        self.rew = torch.zeros(capacity, device=device)
        self.prio = torch.zeros(capacity, device=device)
        self.stack, self.pos, self.full, self.cap = stack, 0, False, capacity
    def add(self, frames, act, rew):
        n = frames.size(0)
        idx = (torch.arange(n, device=frames.device) + self.pos) % self.cap
        self.frames[idx] = frames
        self.act[idx], self.rew[idx] = act, rew
        self.prio[idx] = self.prio.max().clamp(min=1.0)
        self.full |= self.pos + n >= self.cap
        self.pos = (self.pos + n) % self.cap
    def sample(self, n, alpha=0.6, beta=0.4):
        top = self.cap if self.full else self.pos
        p = self.prio[self.stack: top - 1] ** alpha
        idx = torch.multinomial(p, n, replacement=True)
        w = (p[idx] / p.sum() * p.numel()) ** -beta
        idx = idx + self.stack
        span = idx[:, None] + torch.arange(1 - self.stack, 1, device=idx.device)
        obs, nxt = self.frames[span].flatten(1, 2), self.frames[span + 1].flatten(1, 2)
        return idx, obs, self.act[idx], self.rew[idx], nxt, w / w.max()
def random_shift(x, pad=4):
    n, c, h, w = x.shape
    x = F.pad(x.float().div_(255.0), (pad,) * 4, mode="replicate")
    eps = 1.0 / (h + 2 * pad)
    ar = torch.linspace(-1.0 + eps, 1.0 - eps, h + 2 * pad, device=x.device)[:h]
    base = torch.stack(torch.meshgrid(ar, ar, indexing="xy"), -1)[None]
    shift = torch.randint(0, 2 * pad + 1, (n, 1, 1, 2), device=x.device) * (2.0 / (h + 2 * pad))
    return F.grid_sample(x, base + shift, padding_mode="zeros", align_corners=False)
class Encoder(nn.Module):
    def __init__(self, in_ch, size, width, feat):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(in_ch, width, 3, stride=2), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(),
                                  nn.Conv2d(width, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU())
        with torch.no_grad():
            flat = self.conv(torch.zeros(1, in_ch, size, size)).numel()
        self.fc = nn.Sequential(nn.Linear(flat, feat), nn.LayerNorm(feat), nn.Tanh())
    def forward(self, x):
        return self.fc(self.conv(x - 0.5).flatten(1))
def mlp(i, o, h):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(inplace=True), nn.Linear(h, h), nn.ReLU(inplace=True), nn.Linear(h, o))
class Critic(nn.Module):
    def __init__(self, enc, feat, act, hidden):
        super().__init__()
        self.enc, self.q1, self.q2 = enc, mlp(feat + act, 1, hidden), mlp(feat + act, 1, hidden)
    def forward(self, obs, act):
        z = torch.cat([self.enc(obs), act], -1)
        return self.q1(z).squeeze(-1), self.q2(z).squeeze(-1)
def act_sample(pi, feat):
    mu, logstd = pi(feat).chunk(2, -1)
    d = torch.distributions.Normal(mu, logstd.tanh().mul(3).sub(2).exp())
    u = d.rsample()
    a = u.tanh()
    return a, (d.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(-1)

def main():
    p = argparse.ArgumentParser()
    for k, v in dict(capacity=60000, size=84, batch=512, width=32, feat=64, hidden=1024, act=6, stack=3, updates=12, collect=500).items():
        p.add_argument(f"--{k}", type=int, default=v)
    a = p.parse_args()
    dev = torch.device("cuda")
    torch.manual_seed(9)
    buf = FrameReplay(a.capacity, a.size, a.act, a.stack, dev)
    critic = Critic(Encoder(3 * a.stack, a.size, a.width, a.feat), a.feat, a.act, a.hidden).to(dev)
    target = copy.deepcopy(critic).requires_grad_(False)
    pi = mlp(a.feat, 2 * a.act, a.hidden).to(dev)
    log_alpha = torch.tensor(-2.0, device=dev, requires_grad=True)
    opt_c = torch.optim.Adam(critic.parameters(), lr=3e-4)
    opt_p = torch.optim.Adam(pi.parameters(), lr=3e-4)
    opt_a = torch.optim.Adam([log_alpha], lr=1e-3)
    def collect(n):
        frames = torch.randint(0, 256, (n, 3, a.size, a.size), dtype=torch.uint8, device=dev)
        act = torch.rand(n, a.act, device=dev) * 2 - 1
        buf.add(frames, act, frames.float().mean((1, 2, 3)) / 255 - act.pow(2).mean(-1))
    while not buf.full:
        collect(a.collect * 4)
    for it in range(a.updates):
        collect(a.collect)
        idx, obs, act, rew, nxt, w = buf.sample(a.batch)
        obs_aug, obs_aug2, nxt_aug = random_shift(obs), random_shift(obs), random_shift(nxt)
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            na, nlp = act_sample(pi, critic.enc(nxt_aug))
            y = rew + 0.99 * (torch.min(*target(nxt_aug, na)) - alpha * nlp)
        td, loss_c = 0.0, 0.0
        for view in (obs_aug, obs_aug2):
            q1, q2 = critic(view, act)
            loss_c = loss_c + (w * (F.huber_loss(q1, y, reduction="none") + F.huber_loss(q2, y, reduction="none"))).mean()
            td = td + (q1 - y).abs().detach()
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
        buf.prio[idx] = td + 1e-3
        if it % 2 == 0:
            feat = critic.enc(obs_aug).detach()
            new, lp = act_sample(pi, feat)
            z = torch.cat([feat, new], -1)
            loss_p = (alpha * lp - torch.min(critic.q1(z), critic.q2(z)).squeeze(-1)).mean()
            opt_p.zero_grad()
            loss_p.backward()
            opt_p.step()
            opt_a.zero_grad()
            (-log_alpha * (lp.detach() - a.act)).mean().backward()
            opt_a.step()
        with torch.no_grad():
            for tp, cp in zip(target.parameters(), critic.parameters()):
                tp.lerp_(cp, 0.01)
        print(f"update {it} critic {loss_c.item():.4f} actor {loss_p.item():.4f} alpha {log_alpha.exp().item():.4f}")
if __name__ == "__main__":
    main()
