"""Meta-train a coordinate-wise LSTM optimizer by unrolling it on small classifiers (full second-order by default)."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


class Optimizee(nn.Module):
    def __init__(self, d_in=256, hidden=192, classes=10):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                                 nn.Linear(hidden, classes))

    def forward(self, x):
        return self.net(x)


class LSTMOptimizer(nn.Module):
    def __init__(self, hidden=20, p=10.0):
        super().__init__()
        self.p = p
        self.c1, self.c2 = nn.LSTMCell(2, hidden), nn.LSTMCell(hidden, hidden)
        self.out = nn.Linear(hidden, 1)
        nn.init.normal_(self.out.weight, std=1e-2)
        nn.init.zeros_(self.out.bias)
        self.hidden = hidden

    def features(self, g):
        big = g.abs() >= math.exp(-self.p)
        logs = torch.where(big, (g.abs() + 1e-12).log() / self.p, torch.full_like(g, -1.0))
        signs = torch.where(big, g.sign(), g * math.exp(self.p))
        return torch.stack([logs, signs], -1)

    def init_state(self, n, device):
        z = torch.zeros(n, self.hidden, device=device)
        return (z, z), (z, z)

    def forward(self, g, state):
        s1 = self.c1(self.features(g), state[0])
        s2 = self.c2(s1[0], state[1])
        return self.out(s2[0]).squeeze(-1) * 0.1, (s1, s2)


class Task:
    def __init__(self, classes, d_in, device):
        self.centres = torch.randn(classes, d_in, device=device)
        self.classes, self.device = classes, device

    def batch(self, n):
        y = torch.randint(self.classes, (n,), device=self.device)
        return self.centres[y] + 1.5 * torch.randn(n, self.centres.shape[1], device=self.device), y


def flatten(params):
    return torch.cat([p.reshape(-1) for p in params.values()])


def unflatten(vec, like):
    out, i = {}, 0
    for k, p in like.items():
        out[k] = vec[i:i + p.numel()].view_as(p)
        i += p.numel()
    return out


def inner_loop(lopt, task, args, train):
    module = Optimizee(args.d_in, args.hidden).to(task.device)
    like = {k: v.detach() for k, v in module.named_parameters()}
    theta = flatten(like).requires_grad_()
    state = lopt.init_state(theta.numel(), theta.device)
    losses = []
    for _ in range(args.unroll):
        x, y = task.batch(args.batch)
        loss = F.cross_entropy(functional_call(module, unflatten(theta, like), (x,)), y)
        losses.append(loss)
        (g,) = torch.autograd.grad(loss, theta, create_graph=train and args.second_order)
        upd, state = lopt(g, state)
        theta = theta + upd
        if not train:
            theta = theta.detach().requires_grad_()
            state = tuple(tuple(t.detach() for t in s) for s in state)
    return losses


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--unroll", type=int, default=20)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--d_in", type=int, default=256)
    ap.add_argument("--hidden", type=int, default=320)
    ap.add_argument("--meta-steps", type=int, default=5)
    ap.add_argument("--first-order", dest="second_order", action="store_false")
    args = ap.parse_args()
    torch.manual_seed(17)
    device = torch.device("cuda")
    lopt = LSTMOptimizer().to(device)
    meta = torch.optim.Adam(lopt.parameters(), lr=5e-3)
    ema = torch.optim.swa_utils.AveragedModel(lopt, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for step in range(args.meta_steps):
        losses = inner_loop(lopt, Task(10, args.d_in, device), args, train=True)
        weights = torch.linspace(0.1, 1.0, len(losses), device=device)
        meta_loss = (torch.stack(losses) * weights).sum() / weights.sum()
        meta.zero_grad()
        meta_loss.backward()
        nn.utils.clip_grad_norm_(lopt.parameters(), 1.0)
        meta.step()
        ema.update_parameters(lopt)
        print(f"meta {step} loss {meta_loss.item():.4f} final {losses[-1].item():.4f}")
        del losses, meta_loss
        if step % 2 == 1:
            ev = inner_loop(ema.module, Task(10, args.d_in, device), args, train=False)
            print(f"  eval first {ev[0].item():.4f} last {ev[-1].item():.4f}")


if __name__ == "__main__":
    main()
