"""Evaluation episodes call select_action, which saves log-probabilities for an update that never comes (REINFORCE)."""

import os

import torch
from torch import nn
from torch.distributions import Categorical

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["saved_log_probs"],
            "bytes_per_step": 4 * 4 * 128 * (512 + 64 + 36),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(64, 512)
        self.affine2 = nn.Linear(512, 8)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        x = torch.relu(self.affine1(x))
        return self.affine2(x).softmax(dim=1)


def select_action(policy, state):
    probs = policy(state)  # ALLOCATES
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))  # KEEPS
    # FIX: m.log_prob(action)
    return action


class Environments:
    def __init__(self, n):
        self.n = n

    def reset(self):
        return torch.randn(self.n, 64, device=DEVICE)

    def step(self, action):
        return torch.randn(self.n, 64, device=DEVICE), action.float().mean().item()


def evaluate(policy, env, watch):
    returns = []
    for _ in range(12):
        state, total = env.reset(), 0.0
        for _ in range(4):
            action = select_action(policy, state)  # ALLOCATES
            state, reward = env.step(action)
            total += reward
        returns.append(total)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    watch = vramlens.LeakWatch()
    report = evaluate(Policy().to(DEVICE), Environments(128), watch)
