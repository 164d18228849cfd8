"""Double dueling DQN on pixels: replay on the GPU, prioritised sampling, conv encoder, random shift augmentation."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class DriftEnv:
    """A batch of toy worlds: move a dot onto a target; frames are 84x84 uint8, stacked four deep."""

    def __init__(self, n, device):
        self.device = device
        self.moves = torch.tensor([(0, 0), (4, 0), (-4, 0), (0, 4), (0, -4), (8, 8)], device=device)
        self.pos, self.goal = torch.randint(8, 76, (2, n, 2), device=device).unbind(0)
        self.obs = torch.zeros(n, 4, 84, 84, dtype=torch.uint8, device=device)
        g = torch.arange(84, device=device)
        self.yy, self.xx = g.view(1, 84, 1), g.view(1, 1, 84)

    def dot(self, p, r):
        return (self.yy - p[:, 0].view(-1, 1, 1)).abs() + (self.xx - p[:, 1].view(-1, 1, 1)).abs() < r

    def step(self, act):
        self.pos = (self.pos + self.moves[act]).clamp_(4, 79)
        dist = (self.pos - self.goal).abs().sum(1)
        done = dist < 8
        self.goal[done] = torch.randint(8, 76, (int(done.sum()), 2), device=self.device)
        frame = self.dot(self.pos, 6).to(torch.uint8) * 255 + self.dot(self.goal, 4).to(torch.uint8) * 120
        self.obs = torch.cat([self.obs[:, 1:], frame.unsqueeze(1)], 1)
        return self.obs, done.float() * 2 - dist / 160.0, done


class Replay:
    def __init__(self, cap, device):
        self.cap, self.ptr = cap, 0
        self.obs = torch.zeros(cap, 4, 84, 84, dtype=torch.uint8, device=device)
        self.nxt = torch.zeros_like(self.obs)
        self.act = torch.zeros(cap, dtype=torch.long, device=device)
        self.rew, self.done, self.prio = (torch.zeros(cap, device=device) for _ in range(3))

    def add(self, obs, act, rew, nxt, done):
        i = (self.ptr + torch.arange(len(act), device=act.device)) % self.cap
        self.obs[i], self.nxt[i], self.act[i] = obs, nxt, act
        self.rew[i], self.done[i] = rew, done.float()
        self.prio[i] = self.prio.max().clamp(min=1.0)
        self.ptr = (self.ptr + len(act)) % self.cap

    def sample(self, n, beta=0.4):
        i = torch.multinomial(p := self.prio.pow(0.6), n, replacement=True)
        w = (p[i] / p.sum()).pow(-beta)
        return i, self.obs[i], self.act[i], self.rew[i], self.nxt[i], self.done[i], w / w.max()


def random_shift(x, pad=4):
    n, h = x.size(0), x.size(-1)
    windows = F.pad(x, (pad,) * 4, mode="replicate").unfold(2, h, 1).unfold(3, h, 1)
    i = torch.randint(0, 2 * pad + 1, (2, n), device=x.device)
    return windows[torch.arange(n, device=x.device), :, i[0], i[1]]


class QNet(nn.Module):
    def __init__(self, actions, chans=(32, 64, 64), c=4):
        super().__init__()
        layers = []
        for o in chans:
            layers += [nn.Conv2d(c, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU(),
                       nn.MaxPool2d(3, 2, 1)]
            c = o
        self.enc = nn.Sequential(*layers, nn.Flatten(), nn.Linear(c * 11 * 11, 512), nn.ReLU())
        self.v, self.adv = nn.Linear(512, 1), nn.Linear(512, actions)

    def forward(self, x):
        adv = self.adv(h := self.enc(x))
        return self.v(h) + adv - adv.mean(1, keepdim=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    defaults = dict(envs=128, capacity=30000, warmup=40, updates=16, batch=512)
    for name, value in defaults.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = p.parse_args()
    torch.manual_seed(5)
    env, buf = DriftEnv(a.envs, a.device), Replay(a.capacity, a.device)
    q = QNet(len(env.moves)).to(a.device)
    target = copy.deepcopy(q).requires_grad_(False)
    opt = torch.optim.RMSprop(q.parameters(), lr=2.5e-4, alpha=0.95, eps=1e-3, centered=True)

    @torch.no_grad()
    def collect(eps):
        act = q((obs := env.obs).float() / 255).argmax(1)
        act = torch.where(torch.rand(a.envs, device=a.device) < eps, torch.randint_like(act, len(env.moves)), act)
        nxt, rew, done = env.step(act)
        buf.add(obs, act, rew, nxt, done)
        return rew.mean()

    for _ in range(a.warmup):
        collect(1.0)
    for step in range(a.updates):
        rew = torch.stack([collect(max(0.1, 1 - step / a.updates)) for _ in range(4)]).mean()
        i, obs, act, r, nxt, done, w = buf.sample(a.batch)
        obs, nxt = random_shift(obs.float() / 255), random_shift(nxt.float() / 255)
        with torch.no_grad():
            best = q(nxt).argmax(1, keepdim=True)
            y = r + 0.99 * (1 - done) * target(nxt).gather(1, best).squeeze(1)
        pred = q(obs).gather(1, act.unsqueeze(1)).squeeze(1)
        loss = (w * F.smooth_l1_loss(pred, y, reduction="none")).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        buf.prio[i] = td = (pred - y).detach().abs() + 1e-3
        if step % 4 == 3:
            target.load_state_dict(q.state_dict())
        print(f"update {step} loss {loss.item():.5f} reward {rew.item():.4f} |td| {td.mean().item():.4f}")


if __name__ == "__main__":
    main()
