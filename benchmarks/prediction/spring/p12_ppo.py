"""PPO with an IMPALA-style convolutional policy on a GPU-side vectorised pixel gridworld."""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

device = "cuda"

ENVS = 768
HORIZON = 64
STACK = 4
SCREEN = 84
GRID = 12
ITERATIONS = 3
EPOCHS = 2
MINIBATCH = 6144
GAMMA, LAMBDA = 0.99, 0.95
CLIP, ENTROPY, VALUE = 0.2, 0.01, 0.5


class PixelGrid:
    """Agent (bright) must reach a goal (grey) on a grid; observations are stacked uint8 frames."""

    moves = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))

    def __init__(self, n, seed):
        self.n = n
        self.g = torch.Generator(device=device).manual_seed(seed)
        self.delta = torch.tensor(self.moves, device=device)
        self.agent = self.random_cells(n)
        self.goal = self.random_cells(n)
        self.clock = torch.zeros(n, device=device)
        self.frames = torch.zeros(n, STACK, SCREEN, SCREEN, dtype=torch.uint8, device=device)
        self.push()

    def random_cells(self, n):
        return torch.randint(GRID, (n, 2), device=device, generator=self.g)

    def draw(self):
        small = torch.zeros(self.n, GRID, GRID, device=device)
        rows = torch.arange(self.n, device=device)
        small[rows, self.goal[:, 0], self.goal[:, 1]] = 120.0
        small[rows, self.agent[:, 0], self.agent[:, 1]] = 255.0
        return F.interpolate(small[:, None], size=(SCREEN, SCREEN)).to(torch.uint8)

    def push(self):
        self.frames = torch.cat([self.frames[:, 1:], self.draw()], dim=1)

    def step(self, action):
        self.agent = (self.agent + self.delta[action]).clamp(0, GRID - 1)
        self.clock += 1
        reached = (self.agent == self.goal).all(1)
        done = reached | (self.clock >= 50)
        reward = reached.float() - 0.01
        if done.any():
            idx = done.nonzero().squeeze(1)
            self.agent[idx] = self.random_cells(len(idx))
            self.goal[idx] = self.random_cells(len(idx))
            self.clock[idx] = 0
            self.frames = self.frames.masked_fill(done[:, None, None, None], 0)
        self.push()
        return self.frames, reward, done.float()


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


class Policy(nn.Module):
    def __init__(self, actions, widths=(16, 32, 32)):
        super().__init__()
        layers, cin, size = [], STACK, SCREEN
        for w in widths:
            layers += [nn.Conv2d(cin, w, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(w), Residual(w)]
            cin, size = w, (size + 1) // 2
        self.body = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(cin * size * size, 512), nn.ReLU())
        self.pi, self.v = nn.Linear(512, actions), nn.Linear(512, 1)
        nn.init.orthogonal_(self.pi.weight, 0.01)

    def forward(self, obs):
        h = self.body(obs.float() / 255.0)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


@torch.no_grad()
def rollout(env, policy):
    buf = {k: [] for k in ("obs", "action", "logp", "value", "reward", "done")}
    obs = env.frames
    for _ in range(HORIZON):
        dist, value = policy(obs)
        action = dist.sample()
        nxt, reward, done = env.step(action)
        for k, v in zip(buf, (obs, action, dist.log_prob(action), value, reward, done)):
            buf[k].append(v)
        obs = nxt
    data = {k: torch.stack(v) for k, v in buf.items()}
    last = policy(obs)[1]
    adv, gae = torch.zeros_like(data["reward"]), torch.zeros(ENVS, device=device)
    for t in reversed(range(HORIZON)):
        nonterminal = 1 - data["done"][t]
        nxt_value = last if t == HORIZON - 1 else data["value"][t + 1]
        delta = data["reward"][t] + GAMMA * nxt_value * nonterminal - data["value"][t]
        gae = delta + GAMMA * LAMBDA * nonterminal * gae
        adv[t] = gae
    data["adv"], data["ret"] = adv, adv + data["value"]
    return {k: v.flatten(0, 1) for k, v in data.items()}


def update(policy, optimizer, data):
    n = ENVS * HORIZON
    stats = []
    for _ in range(EPOCHS):
        for idx in torch.randperm(n, device=device).split(MINIBATCH):
            mb = {k: v[idx] for k, v in data.items()}
            dist, value = policy(mb["obs"])
            ratio = (dist.log_prob(mb["action"]) - mb["logp"]).exp()
            adv = (mb["adv"] - mb["adv"].mean()) / (mb["adv"].std() + 1e-8)
            pg = -torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv).mean()
            clipped = mb["value"] + (value - mb["value"]).clamp(-CLIP, CLIP)
            vf = torch.max((value - mb["ret"]).square(), (clipped - mb["ret"]).square()).mean() / 2
            loss = pg + VALUE * vf - ENTROPY * dist.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
            stats.append(torch.stack([pg.detach(), vf.detach(), dist.entropy().mean().detach()]))
    return torch.stack(stats).mean(0).tolist()


def main():
    torch.manual_seed(0)
    env = PixelGrid(ENVS, 1)
    policy = Policy(len(PixelGrid.moves)).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2.5e-4, eps=1e-5)
    start = time.time()
    for it in range(ITERATIONS):
        for group in optimizer.param_groups:
            group["lr"] = 2.5e-4 * (1 - it / ITERATIONS)
        data = rollout(env, policy)
        pg, vf, ent = update(policy, optimizer, data)
        print(f"iteration {it} reward {data['reward'].mean().item():.4f} pg {pg:.4f} vf {vf:.4f} "
              f"entropy {ent:.3f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
