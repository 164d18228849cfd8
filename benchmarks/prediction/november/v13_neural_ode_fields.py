# Convolutional neural ODE that learns a reaction-diffusion field from snapshots at irregular times.
import argparse
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdiffeq import odeint, odeint_adjoint


def laplacian(u):
    p = nn.functional.pad(u, (1, 1, 1, 1), mode="circular")
    return p[..., 2:, 1:-1] + p[..., :-2, 1:-1] + p[..., 1:-1, 2:] + p[..., 1:-1, :-2] - 4 * u


@torch.no_grad()
def simulate(n, height, width, times, dt, device, seed):
    """FitzHugh-Nagumo on a periodic grid with explicit Euler."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(n, 2, height // 8, width // 8, generator=g).to(device)
    s = nn.functional.interpolate(coarse, size=(height, width), mode="bicubic") * 0.6
    frames, t = [s.clone()], 0.0
    for target in times[1:].tolist():
        while t < target - 1e-6:
            u, v = s[:, :1], s[:, 1:]
            du = 0.2 * laplacian(u) + u - u**3 - v
            dv = 0.1 * laplacian(v) + 0.3 * (u - 0.8 * v)
            s = s + dt * torch.cat([du, dv], 1)
            t += dt
        frames.append(s.clone())
    return torch.stack(frames, 1)


class Dynamics(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        conv = dict(kernel_size=3, padding=1, padding_mode="circular")
        self.net = nn.Sequential(
            nn.Conv2d(channels, width, **conv), nn.SiLU(),
            nn.Conv2d(width, width, **conv), nn.SiLU(),
            nn.Conv2d(width, width, **conv), nn.SiLU(),
            nn.Conv2d(width, channels, **conv),
        )
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)
        self.nfe = 0

    def forward(self, t, y):
        self.nfe += 1
        return self.net(y)


def train(func, loader, times, opt, sched, args, device):
    for epoch in range(args.epochs):
        total = 0.0
        for (traj,) in loader:
            traj = traj.to(device)
            horizon = min(len(times), 4 + 2 * epoch)  # curriculum on the rollout length
            t = times[:horizon].to(device)
            pred = odeint(func, traj[:, 0], t, method="rk4", options={"step_size": args.step})
            loss = nn.functional.huber_loss(pred.transpose(0, 1), traj[:, :horizon], delta=0.5)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(func.parameters(), 1.0)
            opt.step()
            sched.step()
            total += loss.item()
        print(f"epoch {epoch} horizon {horizon} loss {total / len(loader):.5f} nfe {func.nfe}")


def finetune_adjoint(func, loader, times, opt, args, device):
    """A last pass over the full window with the adjoint method."""
    t = times.to(device)
    for (traj,) in loader:
        traj = traj.to(device)
        pred = odeint_adjoint(func, traj[:, 0], t, method="midpoint", options={"step_size": args.step})
        loss = (pred.transpose(0, 1) - traj).square().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(func.parameters(), 1.0)
        opt.step()
    print(f"adjoint pass, last loss {loss.item():.5f}")


@torch.no_grad()
def evaluate(func, loader, times, device):
    func.nfe, err, base = 0, 0.0, 0.0
    t = times.to(device)
    for (traj,) in loader:
        traj = traj.to(device)
        pred = odeint(func, traj[:, 0], t, rtol=1e-3, atol=1e-3, method="dopri5").transpose(0, 1)
        err += (pred - traj).square().mean().item()
        base += (traj[:, :1] - traj).square().mean().item()
    print(f"val mse {err / len(loader):.5f} (persistence {base / len(loader):.5f}) nfe {func.nfe}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--height", type=int, default=88)
    ap.add_argument("--grid-width", type=int, default=120)
    ap.add_argument("--width", type=int, default=44)
    ap.add_argument("--batch", type=int, default=10)
    ap.add_argument("--items", type=int, default=80)
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--step", type=float, default=0.2)
    ap.add_argument("--frames", type=int, default=11)
    args = ap.parse_args()

    torch.manual_seed(13)
    device = torch.device("cuda")
    gaps = torch.tensor([0.2, 0.4, 0.2, 0.2, 0.4]).repeat(args.frames // 5 + 1)[: args.frames - 1]
    times = torch.cat([torch.zeros(1), gaps.cumsum(0)])
    data = simulate(args.items + args.items // 4, args.height, args.grid_width, times, 0.02, device, 1).cpu()
    train_loader = DataLoader(TensorDataset(data[: args.items]), batch_size=args.batch, shuffle=True, drop_last=True)
    val_loader = DataLoader(TensorDataset(data[args.items:]), batch_size=args.batch)

    func = Dynamics(2, args.width).to(device)
    opt = torch.optim.Adamax(func.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.985)
    evaluate(func, val_loader, times, device)
    train(func, train_loader, times, opt, sched, args, device)
    finetune_adjoint(func, train_loader, times, opt, args, device)
    evaluate(func, val_loader, times, device)
    with tempfile.TemporaryDirectory() as tmp:
        torch.save(func.state_dict(), os.path.join(tmp, "dynamics.pt"))


if __name__ == "__main__":
    main()
