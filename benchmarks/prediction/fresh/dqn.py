"""DQN with a replay memory and a target network, after PyTorch's tutorial."""

import math
import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.optim as optim

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, size):
        return random.sample(self.memory, size)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, observations, actions):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(observations, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, actions)
        )

    def forward(self, x):
        return self.layers(x)


policy_net, target_net = DQN(512, 8).to(device), DQN(512, 8).to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-4, amsgrad=True)
memory = ReplayMemory(10000)
steps_done = 0
BATCH, GAMMA, TAU = 256, 0.99, 0.005


def select_action(state):
    global steps_done
    threshold = 0.05 + 0.85 * math.exp(-steps_done / 100)
    steps_done += 1
    if random.random() > threshold:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(8)]], device=device, dtype=torch.long)


def optimize_model():
    if len(memory) < BATCH:
        return
    batch = Transition(*zip(*memory.sample(BATCH)))
    mask = torch.tensor([s is not None for s in batch.next_state], device=device, dtype=torch.bool)
    non_final = torch.cat([s for s in batch.next_state if s is not None])
    state, action, reward = torch.cat(batch.state), torch.cat(batch.action), torch.cat(batch.reward)
    values = policy_net(state).gather(1, action)
    next_values = torch.zeros(BATCH, device=device)
    with torch.no_grad():
        next_values[mask] = target_net(non_final).max(1).values
    loss = nn.SmoothL1Loss()(values, (next_values * GAMMA + reward).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


random.seed(0)
torch.manual_seed(0)
state = torch.randn(1, 512, device=device)
for step in range(300):
    action = select_action(state)
    done = random.random() < 0.02
    next_state = None if done else torch.randn(1, 512, device=device)
    reward = torch.tensor([random.random()], device=device)
    memory.push(state, action, next_state, reward)
    state = torch.randn(1, 512, device=device) if done else next_state
    optimize_model()
    target_state, policy_state = target_net.state_dict(), policy_net.state_dict()
    for key in policy_state:
        target_state[key] = policy_state[key] * TAU + target_state[key] * (1 - TAU)
    target_net.load_state_dict(target_state)
print("Complete")
