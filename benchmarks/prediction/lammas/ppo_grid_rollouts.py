"""PPO on a vectorised pixel grid world that lives on the GPU: rollout buffer, GAE, minibatch epochs, KL early stop."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class ChaseEnv:
    """n agents, each chasing a moving dot; observations are stacked 84x84 uint8 frames."""

    def __init__(self, n, size, stack, horizon, device):
        self.n, self.size, self.horizon, self.device = n, size, horizon, device
        self.moves = torch.tensor([[0, 0], [3, 0], [-3, 0], [0, 3], [0, -3]], device=device)
        self.frames = torch.zeros(n, stack, size, size, dtype=torch.uint8, device=device)
        self.agent = torch.randint(4, size - 4, (n, 2), device=device)
        self.goal = torch.randint(4, size - 4, (n, 2), device=device)
        self.t = torch.randint(0, horizon, (n,), device=device)
        self.axis = torch.arange(size, device=device)

    def draw(self):
        def disc(c):
            dy, dx = (self.axis[None] - c[:, :1]).abs() <= 3, (self.axis[None] - c[:, 1:]).abs() <= 3
            return dy[:, :, None] & dx[:, None, :]
        frame = disc(self.agent).to(torch.uint8) * 255
        frame[disc(self.goal)] = 128
        self.frames = torch.cat([self.frames[:, 1:], frame[:, None]], 1)
        return self.frames

    def step(self, action):
        before = (self.agent - self.goal).abs().sum(1)
        self.agent = (self.agent + self.moves[action]).clamp(4, self.size - 5)
        self.goal = (self.goal + torch.randint(-1, 2, self.goal.shape, device=self.device)).clamp(4, self.size - 5)
        dist = (self.agent - self.goal).abs().sum(1)
        self.t += 1
        caught = dist < 5
        done = caught | (self.t >= self.horizon)
        reward = (before - dist).float() * 0.05 + caught.float()
        idx = done.nonzero().squeeze(1)
        self.goal[idx] = torch.randint(4, self.size - 4, (len(idx), 2), device=self.device)
        self.t[idx] = 0
        self.frames[idx] = 0
        return self.draw(), reward, done.float()


class ActorCritic(nn.Module):
    def __init__(self, stack, actions, size, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(stack, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            flat = self.net(torch.zeros(1, stack, size, size)).shape[1]
        self.fc = nn.Sequential(nn.Linear(flat, hidden), nn.ReLU())
        self.pi, self.v = nn.Linear(hidden, actions), nn.Linear(hidden, 1)
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.orthogonal_(m.weight, 2 ** 0.5)
                nn.init.zeros_(m.bias)
        nn.init.orthogonal_(self.pi.weight, 0.01)

    def forward(self, obs):
        h = self.fc(self.net(obs.float() / 255.0))
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Rollout:
    def __init__(self, T, n, obs_shape, device):
        self.obs = torch.empty(T, n, *obs_shape, dtype=torch.uint8, device=device)
        self.act = torch.empty(T, n, dtype=torch.long, device=device)
        self.logp, self.rew, self.done, self.val = (torch.empty(T, n, device=device) for _ in range(4))

    def gae(self, last, gamma, lam):
        adv, run = torch.empty_like(self.rew), torch.zeros_like(last)
        for t in reversed(range(len(self.rew))):
            live = 1 - self.done[t]
            delta = self.rew[t] + gamma * last * live - self.val[t]
            run = delta + gamma * lam * live * run
            adv[t], last = run, self.val[t]
        return adv, adv + self.val


@torch.no_grad()
def collect(env, net, buf, obs):
    for t in range(len(buf.rew)):
        dist, v = net(obs)
        a = dist.sample()
        buf.obs[t], buf.act[t], buf.logp[t], buf.val[t] = obs, a, dist.log_prob(a), v
        obs, buf.rew[t], buf.done[t] = env.step(a)
    return obs, net(obs)[1]


def update(net, opt, buf, adv, ret, args):
    flat = [x.flatten(0, 1) for x in (buf.obs, buf.act, buf.logp, buf.val, adv, ret)]
    stats = []
    for epoch in range(args.epochs):
        kls = []
        for idx in torch.randperm(len(flat[1]), device=adv.device).split(args.minibatch):
            obs, act, old, val, a, r = (x[idx] for x in flat)
            dist, v = net(obs)
            logp = dist.log_prob(act)
            ratio = (logp - old).exp()
            a = (a - a.mean()) / (a.std() + 1e-8)
            pg = -torch.minimum(ratio * a, ratio.clamp(1 - args.clip, 1 + args.clip) * a).mean()
            vc = val + (v - val).clamp(-args.clip, args.clip)
            vf = torch.maximum((v - r) ** 2, (vc - r) ** 2).mean()
            loss = pg + 0.5 * vf - 0.01 * dist.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            opt.step()
            kls.append((ratio - 1 - (logp - old)).mean().item())
            stats.append(loss.item())
        if sum(kls) / len(kls) > args.target_kl:
            break
    return sum(stats) / len(stats), epoch + 1


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(envs=256, rollout=128, iters=4, epochs=4, minibatch=6000, size=84, stack=4, hidden=512, horizon=200).items():
        p.add_argument(f"--{name}", type=int, default=default)
    for name, default in dict(lr=2.5e-4, gamma=0.99, lam=0.95, clip=0.2, target_kl=0.02).items():
        p.add_argument(f"--{name}", type=float, default=default)
    args = p.parse_args()
    torch.manual_seed(33)
    device = torch.device("cuda")
    env = ChaseEnv(args.envs, args.size, args.stack, args.horizon, device)
    net = ActorCritic(args.stack, 5, args.size, args.hidden).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr, eps=1e-5)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, args.iters)
    buf = Rollout(args.rollout, args.envs, (args.stack, args.size, args.size), device)
    obs = env.draw()
    for it in range(args.iters):
        obs, last = collect(env, net, buf, obs)
        adv, ret = buf.gae(last, args.gamma, args.lam)
        loss, used = update(net, opt, buf, adv, ret, args)
        sched.step()
        print(f"iter {it} loss {loss:.4f} epochs {used} mean reward {buf.rew.mean().item():.4f} episodes {int(buf.done.sum().item())}")


if __name__ == "__main__":
    main()
