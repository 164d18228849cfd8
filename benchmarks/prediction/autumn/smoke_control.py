# Control of 2D smoke by differentiating through the solver: find the initial velocity which
# carries a blob of smoke onto a target shape after T steps.
# Semi-Lagrangian advection (grid_sample), periodic pressure projection by FFT.
import math
import os

import torch
import torch.nn.functional as F

TINY = os.environ.get("TINY") == "1"
SCALE = float(os.environ.get("SCALE", "1"))
torch.manual_seed(42)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

B = max(1, round((2 if TINY else 24) * SCALE))    # independent control problems
N = 32 if TINY else 256                           # grid
T = 6 if TINY else 40                             # solver steps
ROUNDS = 6 if TINY else 12
DT = 0.5 if TINY else 1.0

ax = torch.linspace(-1, 1, N + 1, device=device)[:-1] + 1.0 / N
gy, gx = torch.meshgrid(ax, ax, indexing="ij")
base = torch.stack([gx, gy], -1)[None]

k = torch.fft.fftfreq(N, d=1.0 / N, device=device) * 2 * math.pi / N
ky, kx = k[:, None], k[None, : N // 2 + 1].abs()
k2 = kx ** 2 + ky ** 2
k2[0, 0] = 1.0


def project(vel):
    """Remove the divergent part of a velocity field [B, 2, N, N]."""
    uh, vh = torch.fft.rfft2(vel[:, 0]), torch.fft.rfft2(vel[:, 1])
    div = (kx * uh + ky * vh) / k2
    u = torch.fft.irfft2(uh - kx * div, s=(N, N))
    v = torch.fft.irfft2(vh - ky * div, s=(N, N))
    return torch.stack([u, v], 1)


def advect(q, vel):
    back = base - DT * vel.permute(0, 2, 3, 1) * (2.0 / N)
    back = torch.remainder(back + 1, 2) - 1
    return F.grid_sample(q, back, mode="bilinear", padding_mode="border", align_corners=False)


def simulate(vel, rho):
    for _ in range(T):
        buoyancy = torch.stack([torch.zeros_like(rho[:, 0]), -0.05 * rho[:, 0]], 1)
        vel = project(advect(vel, vel) + DT * buoyancy)
        rho = advect(rho, vel)
    return vel, rho


def blob(cx, cy, r, p=2):
    d = ((gx - cx).abs() ** p + (gy - cy).abs() ** p) ** (1 / p)
    return torch.sigmoid((r - d) * 40)


start, goal = [], []
for i in range(B):
    a = 2 * math.pi * i / B
    start.append(blob(0.3 * math.cos(a), 0.3 * math.sin(a), 0.25))
    goal.append(blob(-0.2 * math.cos(a), -0.2 * math.sin(a), 0.22, p=4 if i % 2 else 1))
start, goal = torch.stack(start)[:, None], torch.stack(goal)[:, None]

control = torch.zeros(B, 2, N, N, device=device, requires_grad=True)
opt = torch.optim.RMSprop([control], lr=0.15, alpha=0.9, momentum=0.5)
smooth = torch.exp(-0.5 * (kx ** 2 + ky ** 2) / 0.15 ** 2)

for r in range(ROUNDS):
    v0 = project(torch.fft.irfft2(torch.fft.rfft2(control) * smooth, s=(N, N)))
    vT, rhoT = simulate(v0, start)
    miss = (rhoT - goal).pow(2).mean((1, 2, 3))
    loss = (miss + 1e-4 * v0.pow(2).mean((1, 2, 3))).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if r % 3 == 0 or r == ROUNDS - 1:
        print(f"round {r:2d}  mismatch {miss.mean().item():.5f}  |v0| {v0.abs().mean().item():.4f}  worst {miss.max().item():.5f}")

with torch.no_grad():
    _, rho = simulate(project(torch.fft.irfft2(torch.fft.rfft2(control) * smooth, s=(N, N))), start)
    print("mass kept: %.3f" % (rho.sum() / start.sum()).item())
print("done")
