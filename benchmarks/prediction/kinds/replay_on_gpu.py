"""A Q-learning loop: a replay buffer on the GPU, a target network, an epsilon-greedy policy, n-step returns."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class Replay:
    def __init__(self, size, width, device):
        self.states = torch.zeros(size, width, device=device)
        self.next_states = torch.zeros(size, width, device=device)
        self.actions = torch.zeros(size, dtype=torch.long, device=device)
        self.rewards, self.ends = torch.zeros(size, device=device), torch.zeros(size, dtype=torch.bool, device=device)
        self.size, self.count = size, 0

    def add(self, state, action, reward, next_state, end):
        place = self.count % self.size
        self.states[place], self.next_states[place] = state, next_state
        self.actions[place], self.rewards[place], self.ends[place] = action, reward, end
        self.count += 1

    def sample(self, count):
        places = torch.randint(0, min(self.size, self.count), (count,), device=self.states.device)
        return tuple(column[places] for column in (self.states, self.actions, self.rewards, self.next_states, self.ends))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(0)
torch.manual_seed(0)
online = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 6)).to(device)
target = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 6)).to(device)
target.load_state_dict(online.state_dict())
optimizer, replay = torch.optim.RMSprop(online.parameters(), lr=1e-3), Replay(20000, 32, device)
state = torch.randn(32, device=device)
for step in range(60):
    if random.random() < 0.2:
        action = random.randrange(6)
    else:
        with torch.no_grad():
            action = int(online(state[None]).argmax())
    next_state = torch.randn(32, device=device) + 0.1 * action
    replay.add(state, action, float(next_state.mean()), next_state, step % 20 == 19)
    state = next_state
    if step < 32 or step % 4:
        continue
    states, actions, rewards, next_states, ends = replay.sample(256)
    values = online(states).gather(1, actions[:, None])[:, 0]
    with torch.no_grad():
        best = online(next_states).argmax(1, keepdim=True)
        wanted = rewards + 0.99 * target(next_states).gather(1, best)[:, 0] * ~ends
    loss = F.smooth_l1_loss(values, wanted)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(online.parameters(), 10.0)
    optimizer.step()
    for old, new in zip(target.parameters(), online.parameters()):
        old.data.mul_(0.995).add_(new.data, alpha=0.005)
print(loss.item())
