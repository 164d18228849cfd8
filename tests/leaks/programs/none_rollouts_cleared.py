"""PPO collects six steps of experience, learns from them and begins anew."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "the rollout is cleared after each update"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Rollout:
    def __init__(self):
        self.states, self.log_probs, self.rewards = [], [], []

    def add(self, state, log_prob, reward):
        self.states.append(state)
        self.log_probs.append(log_prob)
        self.rewards.append(reward)

    def clear(self):
        for each in (self.states, self.log_probs, self.rewards):
            each.clear()


def play(updates, horizon, watch):
    policy = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 6)).to(DEVICE)
    optimizer, rollout = torch.optim.Adam(policy.parameters()), Rollout()
    for step in range(updates * horizon + 3):
        state = torch.randn(512, 128, device=DEVICE)
        distribution = torch.distributions.Categorical(logits=policy(state))
        action = distribution.sample()
        rollout.add(state, distribution.log_prob(action), action.float().mean().item())
        if step % horizon == horizon - 1:
            loss = -(torch.stack(rollout.log_probs).mean(1) * torch.tensor(rollout.rewards, device=DEVICE)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rollout.clear()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = play(4, 6, vramlens.LeakWatch())
