"""PPO on a vectorized toy environment, after CleanRL."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributions.categorical import Categorical


class Envs:
    """Reaches a target in 16 dimensions."""

    def __init__(self, count):
        self.count = count
        self.state = np.random.randn(count, 16).astype(np.float32)

    def reset(self):
        self.state = np.random.randn(self.count, 16).astype(np.float32)
        return self.state

    def step(self, actions):
        self.state[np.arange(self.count), actions % 16] -= 0.1
        reward = -np.abs(self.state).mean(1)
        done = np.random.rand(self.count) < 0.01
        self.state[done] = np.random.randn(done.sum(), 16)
        return self.state, reward, done


def layer_init(layer, std=np.sqrt(2)):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(layer_init(nn.Linear(16, 1024)), nn.Tanh(), layer_init(nn.Linear(1024, 1024)), nn.Tanh())
        self.actor = layer_init(nn.Linear(1024, 16), std=0.01)
        self.critic = layer_init(nn.Linear(1024, 1), std=1.0)

    def get_value(self, x):
        return self.critic(self.body(x))

    def act(self, x, action=None):
        hidden = self.body(x)
        probs = Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, default=512)
    parser.add_argument("--num-steps", type=int, default=32)
    parser.add_argument("--updates", type=int, default=2)
    args = parser.parse_args()
    np.random.seed(1)
    torch.manual_seed(1)
    torch.backends.cudnn.deterministic = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    envs, agent = Envs(args.num_envs), Agent().to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    T, N = args.num_steps, args.num_envs
    obs = torch.zeros((T, N, 16)).to(device)
    actions = torch.zeros((T, N)).to(device)
    logprobs, rewards, dones, values = (torch.zeros((T, N)).to(device) for _ in range(4))
    next_obs, next_done = torch.Tensor(envs.reset()).to(device), torch.zeros(N).to(device)
    start = time.time()
    for update in range(args.updates):
        for step in range(T):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.act(next_obs)
                values[step] = value.flatten()
            actions[step], logprobs[step] = action, logprob
            state, reward, done = envs.step(action.cpu().numpy())
            rewards[step] = torch.tensor(reward).to(device).view(-1)
            next_obs, next_done = torch.Tensor(state).to(device), torch.Tensor(done).to(device)
        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages, last = torch.zeros_like(rewards).to(device), 0
            for t in reversed(range(T)):
                live = 1.0 - (next_done if t == T - 1 else dones[t + 1])
                following = next_value if t == T - 1 else values[t + 1]
                delta = rewards[t] + 0.99 * following * live - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * live * last
            returns = advantages + values
        b_obs, b_actions = obs.reshape(-1, 16), actions.reshape(-1)
        b_logprobs, b_advantages, b_returns = logprobs.reshape(-1), advantages.reshape(-1), returns.reshape(-1)
        indices = np.arange(T * N)
        clipfracs = []
        for epoch in range(2):
            np.random.shuffle(indices)
            for begin in range(0, T * N, 4096):
                mb = indices[begin : begin + 4096]
                _, newlogprob, entropy, newvalue = agent.act(b_obs[mb], b_actions.long()[mb])
                logratio = newlogprob - b_logprobs[mb]
                ratio = logratio.exp()
                with torch.no_grad():
                    approx_kl = ((ratio - 1) - logratio).mean()
                    clipfracs += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
                adv = b_advantages[mb]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg_loss = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 0.8, 1.2)).mean()
                v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb]) ** 2).mean()
                loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
            if approx_kl > 100:
                break
        print(update, "SPS:", int((update + 1) * T * N / (time.time() - start)), loss.item(), np.mean(clipfracs))
