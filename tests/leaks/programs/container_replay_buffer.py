"""A replay buffer without a capacity (DQN)."""

import os
import random
from collections import namedtuple

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [{"class": ["container"], "owner": ["memory", "ReplayMemory"], "bytes_per_step": 8 * 4 * 84 * 84 + 8 * 8}]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")
Transition = namedtuple("Transition", "state action reward")


class ReplayMemory:
    def __init__(self):
        self.memory = []
        self.rewards = []

    def push(self, state, action, reward):
        self.rewards.append(reward)
        self.memory.append(Transition(state, action, reward))  # KEEPS
        # FIX: self.memory[:] = [Transition(state, action, reward)] * 4

    def sample(self, n):
        return random.sample(self.memory, n)

    def __len__(self):
        return len(self.memory)


class Game:
    def observe(self):
        return torch.rand(84, 84, device=DEVICE)  # ALLOCATES

    def act(self, action):
        return float(action) * 0.5


class Agent:
    def __init__(self):
        self.q = nn.Sequential(nn.Flatten(), nn.Linear(84 * 84, 32), nn.ReLU(), nn.Linear(32, 4)).to(DEVICE)
        self.optimizer = torch.optim.RMSprop(self.q.parameters(), lr=1e-4)

    def choose(self, state):
        with torch.no_grad():
            return self.q(state[None]).argmax(1)

    def learn(self, batch):
        states = torch.stack([each.state for each in batch])
        actions = torch.stack([each.action for each in batch])
        rewards = torch.tensor([each.reward for each in batch], device=DEVICE)
        loss = nn.functional.smooth_l1_loss(self.q(states).gather(1, actions)[:, 0], rewards)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def play(watch, steps=16, moves=8):
    game, agent, memory = Game(), Agent(), ReplayMemory()
    for _ in range(steps):
        for _ in range(moves):
            state = game.observe()  # ALLOCATES
            action = agent.choose(state)
            memory.push(state, action, game.act(action))
        agent.learn(memory.sample(4))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = play(vramlens.LeakWatch())
