"""2-D Fourier neural operator for vorticity, trained through an unrolled trajectory."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class SpectralConv2d(nn.Module):
    def __init__(self, cin, cout, m1, m2):
        super().__init__()
        scale = 1 / (cin * cout)
        self.m1, self.m2, self.cout = m1, m2, cout
        self.w_pos = nn.Parameter(scale * torch.randn(cin, cout, m1, m2, dtype=torch.cfloat))
        self.w_neg = nn.Parameter(scale * torch.randn(cin, cout, m1, m2, dtype=torch.cfloat))

    def forward(self, x):
        b, _, h, w = x.shape
        xf = torch.fft.rfft2(x, norm="ortho")
        out = torch.zeros(b, self.cout, h, w // 2 + 1, dtype=torch.cfloat, device=x.device)
        out[:, :, :self.m1, :self.m2] = torch.einsum("bixy,ioxy->boxy", xf[:, :, :self.m1, :self.m2], self.w_pos)
        out[:, :, -self.m1:, :self.m2] = torch.einsum("bixy,ioxy->boxy", xf[:, :, -self.m1:, :self.m2], self.w_neg)
        return torch.fft.irfft2(out, s=(h, w), norm="ortho")


class FNOLayer(nn.Module):
    def __init__(self, width, modes, last):
        super().__init__()
        self.spec = SpectralConv2d(width, width, modes, modes)
        self.local = nn.Conv2d(width, width, 1)
        self.norm = nn.InstanceNorm2d(width)
        self.last = last

    def forward(self, x):
        y = self.norm(self.spec(x)) + self.local(x)
        return y if self.last else F.gelu(y)


class FNO2d(nn.Module):
    def __init__(self, history, width, modes, layers):
        super().__init__()
        self.lift = nn.Conv2d(history + 2, width, 1)
        self.layers = nn.ModuleList([FNOLayer(width, modes, i == layers - 1) for i in range(layers)])
        self.proj = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, 1, 1))

    def forward(self, x, grid):
        x = self.lift(torch.cat([x, grid.expand(x.shape[0], -1, -1, -1)], dim=1))
        for layer in self.layers:
            x = layer(x)
        return self.proj(x)


def gaussian_field(n, frames, size, device, alpha=2.5, tau=7.0):
    """Smooth random fields with power-law spectrum."""
    k = torch.fft.fftfreq(size, 1 / size, device=device)
    k2 = k[:, None] ** 2 + torch.arange(size // 2 + 1, device=device)[None] ** 2
    amp = tau ** (alpha - 1) * (4 * torch.pi ** 2 * k2 + tau ** 2) ** (-alpha / 2) * size
    noise = torch.randn(n, frames, size, size // 2 + 1, dtype=torch.cfloat, device=device)
    field = torch.fft.irfft2(noise * amp, s=(size, size))
    return field / field.std(dim=(-2, -1), keepdim=True)


def sobolev_loss(pred, target):
    """Relative H1 loss evaluated in Fourier space."""
    size = pred.shape[-1]
    k = torch.fft.fftfreq(size, 1 / size, device=pred.device)
    weight = 1 + k[:, None] ** 2 + torch.arange(size // 2 + 1, device=pred.device)[None] ** 2
    diff = torch.fft.rfft2(pred - target, norm="ortho")
    ref = torch.fft.rfft2(target, norm="ortho")
    num = (weight * diff.abs() ** 2).sum((-2, -1)).sqrt()
    return (num / (weight * ref.abs() ** 2).sum((-2, -1)).sqrt()).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=256)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--modes", type=int, default=32)
    ap.add_argument("--layers", type=int, default=4)
    ap.add_argument("--history", type=int, default=10)
    ap.add_argument("--unroll", type=int, default=3)
    ap.add_argument("--horizon", type=int, default=20)
    ap.add_argument("--steps", type=int, default=6)
    args = ap.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = FNO2d(args.history, args.width, args.modes, args.layers).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    lin = torch.linspace(0, 1, args.size, device=device)
    grid = torch.stack(torch.meshgrid(lin, lin, indexing="ij"))[None]

    for step in range(args.steps):
        traj = gaussian_field(args.batch, args.history + args.unroll, args.size, device)
        window = traj[:, :args.history]
        loss = 0.0
        for t in range(args.unroll):
            pred = model(window, grid)
            loss = loss + sobolev_loss(pred, traj[:, args.history + t:args.history + t + 1])
            window = torch.cat([window[:, 1:], pred], dim=1)
        loss = loss / args.unroll
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} relative H1 {loss.item():.4f}")

    # long rollout without gradients
    model.eval()
    with torch.no_grad():
        traj = gaussian_field(2 * args.batch, args.history + args.horizon, args.size, device)
        window, frames = traj[:, :args.history], []
        for t in range(args.horizon):
            pred = model(window, grid)
            frames.append(pred)
            window = torch.cat([window[:, 1:], pred], dim=1)
        roll = torch.cat(frames, dim=1)
        err = (roll - traj[:, args.history:]).flatten(2).norm(dim=-1) / traj[:, args.history:].flatten(2).norm(dim=-1)
    print("rollout error:", " ".join(f"{e:.3f}" for e in err.mean(0)[::5].tolist()))


if __name__ == "__main__":
    main()
