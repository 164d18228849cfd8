"""Soft actor-critic with a replay buffer on the GPU: pixels in uint8, two critics and their targets."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"
torch.manual_seed(16)
CAPACITY, BATCH, ACTIONS = 20_000, 256, 6


class Encoder(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(50), nn.LayerNorm(50), nn.Tanh())


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.q1, self.q2 = (nn.Sequential(nn.Linear(50 + ACTIONS, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)) for _ in range(2))

    def forward(self, o, a):
        h = torch.cat([self.encoder(o), a], dim=1)
        return self.q1(h), self.q2(h)


states = torch.empty(CAPACITY, 3, 64, 64, dtype=torch.uint8, device=device)
following = torch.empty_like(states)
actions = torch.empty(CAPACITY, ACTIONS, device=device)
rewards = torch.empty(CAPACITY, 1, device=device)
filled = 0
critic, policy = Critic().to(device), nn.Sequential(Encoder(), nn.Linear(50, 1024), nn.ReLU(), nn.Linear(1024, 2 * ACTIONS)).to(device)
with torch.no_grad():
    critic(torch.zeros(1, 3, 64, 64, device=device), torch.zeros(1, ACTIONS, device=device))
    policy(torch.zeros(1, 3, 64, 64, device=device))
target = copy.deepcopy(critic)
alpha = torch.zeros(1, device=device, requires_grad=True)
opt_c, opt_p, opt_a = torch.optim.Adam(critic.parameters(), 1e-3), torch.optim.Adam(policy.parameters(), 1e-3), torch.optim.Adam([alpha], 1e-4)


def act(o):
    mean, spread = policy(o).chunk(2, dim=1)
    normal = torch.distributions.Normal(mean, spread.clamp(-10, 2).exp())
    raw = normal.rsample()
    a = raw.tanh()
    return a, (normal.log_prob(raw) - torch.log(1 - a.square() + 1e-6)).sum(1, keepdim=True)


for step in range(40):
    o = torch.randint(0, 256, (64, 3, 64, 64), dtype=torch.uint8, device=device)
    with torch.no_grad():
        a, _ = act(o.float() / 255)
    rows = slice(filled, filled + 64)
    states[rows], following[rows], actions[rows], rewards[rows] = o, o.flip(-1), a, torch.randn(64, 1, device=device)
    filled += 64
    if filled < 4 * BATCH:
        continue
    index = torch.randint(0, filled, (BATCH,), device=device)
    o, n, a, r = states[index].float() / 255, following[index].float() / 255, actions[index], rewards[index]
    with torch.no_grad():
        a2, log2 = act(n)
        q = torch.min(*target(n, a2)) - alpha.exp() * log2
        goal = r + 0.99 * q
    q1, q2 = critic(o, a)
    loss = F.mse_loss(q1, goal) + F.mse_loss(q2, goal)
    opt_c.zero_grad()
    loss.backward()
    opt_c.step()
    new, log = act(o)
    policy_loss = (alpha.exp().detach() * log - torch.min(*critic(o, new))).mean()
    opt_p.zero_grad()
    policy_loss.backward()
    opt_p.step()
    alpha_loss = -(alpha.exp() * (log + ACTIONS).detach()).mean()
    opt_a.zero_grad()
    alpha_loss.backward()
    opt_a.step()
    for x, y in zip(target.parameters(), critic.parameters()):
        x.data.lerp_(y.data, 0.01)
print(loss.item(), policy_loss.item())
