"""WGAN-GP with residual generator and critic on 80 x 80 pictures; the gradient penalty needs a double backward."""
import argparse
import copy
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


class UpBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(cin), nn.BatchNorm2d(cout)
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.short = nn.Conv2d(cin, cout, 1)

    def forward(self, x):
        h = F.interpolate(F.relu(self.bn1(x)), scale_factor=2, mode="nearest")
        h = self.conv2(F.relu(self.bn2(self.conv1(h))))
        return h + self.short(F.interpolate(x, scale_factor=2, mode="nearest"))


class DownBlock(nn.Module):
    def __init__(self, cin, cout, down=True, first=False):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
        self.short = nn.Conv2d(cin, cout, 1)
        self.down, self.first = down, first

    def pool(self, x):
        return F.avg_pool2d(x, 2) if self.down else x

    def forward(self, x):
        h = self.conv1(x if self.first else F.leaky_relu(x, 0.2))
        h = self.pool(self.conv2(F.leaky_relu(h, 0.2)))
        return h + self.pool(self.short(x))


class Generator(nn.Module):
    def __init__(self, latent, widths, start=5):
        super().__init__()
        self.start, self.first = start, widths[0]
        self.fc = nn.Linear(latent, widths[0] * start * start)
        self.blocks = nn.Sequential(*[UpBlock(a, b) for a, b in zip(widths[:-1], widths[1:])])
        self.out = nn.Sequential(nn.BatchNorm2d(widths[-1]), nn.ReLU(), nn.Conv2d(widths[-1], 3, 3, padding=1), nn.Tanh())

    def forward(self, z):
        return self.out(self.blocks(self.fc(z).view(-1, self.first, self.start, self.start)))


class Critic(nn.Module):
    def __init__(self, widths):
        super().__init__()
        blocks = [DownBlock(3, widths[0], first=True)]
        blocks += [DownBlock(a, b) for a, b in zip(widths[:-1], widths[1:])]
        blocks += [DownBlock(widths[-1], widths[-1], down=False)]
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(widths[-1], 1)

    def forward(self, x):
        h = F.leaky_relu(self.blocks(x), 0.2).mean(dim=(2, 3))
        return self.fc(h).squeeze(1)


def gradient_penalty(critic, real, fake):
    eps = torch.rand(len(real), 1, 1, 1, device=real.device)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
    grad, = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return (grad.flatten(1).norm(dim=1) - 1).pow(2).mean()


def real_batches(n, side, batch, seed):
    """Stripes and blobs in random colours, all made beforehand in uint8."""
    g = torch.Generator().manual_seed(seed)
    low = torch.rand(n, 3, 5, 5, generator=g)
    smooth = F.interpolate(low, size=side, mode="bicubic", align_corners=False).clamp(0, 1)
    phase = torch.rand(n, 1, 1, 1, generator=g) * 6.28 + torch.arange(side).view(1, 1, 1, -1) * 0.3
    data = ((0.75 * smooth + 0.25 * (0.5 + 0.5 * torch.sin(phase))) * 255).to(torch.uint8).pin_memory()
    while True:
        for idx in torch.randperm(n, generator=g).split(batch):
            if len(idx) == batch:
                x = data[idx].to("cuda").float() / 127.5 - 1
                yield x.flip(-1) if torch.rand(1, generator=g) < 0.5 else x


@torch.no_grad()
def update_ema(ema, net, decay):
    torch._foreach_lerp_(list(ema.parameters()), list(net.parameters()), 1 - decay)
    for a, b in zip(ema.buffers(), net.buffers()):
        a.copy_(b)


@torch.no_grad()
def sample(gen, n, latent, batch, seed):
    gen.eval()
    z = torch.randn(n, latent, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
    out = torch.cat([gen(part).cpu() for part in z.split(batch)])
    gen.train()
    return out


def sliced_wasserstein(a, b, projections=128):
    d = torch.randn(a[0].numel(), projections, generator=torch.Generator().manual_seed(0))
    d = d / d.norm(dim=0)
    return ((a.flatten(1) @ d).sort(0).values - (b.flatten(1) @ d).sort(0).values).abs().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--latent", type=int, default=128)
    ap.add_argument("--gen-widths", type=int, nargs="+", default=[384, 320, 224, 128, 96])
    ap.add_argument("--critic-widths", type=int, nargs="+", default=[96, 144, 224, 352])
    ap.add_argument("--batch", type=int, default=50)
    ap.add_argument("--iterations", type=int, default=30)
    ap.add_argument("--n-critic", type=int, default=3)
    ap.add_argument("--gp", type=float, default=10.0)
    ap.add_argument("--drift", type=float, default=1e-3)
    ap.add_argument("--lr", type=float, default=2e-4)
    ap.add_argument("--ema", type=float, default=0.95)
    ap.add_argument("--n-sample", type=int, default=240)
    args = ap.parse_args()

    torch.manual_seed(64)
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True
    gen = Generator(args.latent, args.gen_widths).to("cuda")
    critic = Critic(args.critic_widths).to("cuda")
    ema = copy.deepcopy(gen).requires_grad_(False)
    side = 5 * 2 ** (len(args.gen_widths) - 1)
    data = real_batches(1000, side, args.batch, 1)
    opt_g = torch.optim.Adam(gen.parameters(), lr=args.lr, betas=(0.0, 0.9))
    opt_d = torch.optim.Adam(critic.parameters(), lr=args.lr, betas=(0.0, 0.9))
    decay = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.2, total_iters=args.iterations) for o in (opt_g, opt_d)]
    print(f"{side} x {side}; generator {sum(p.numel() for p in gen.parameters()) / 1e6:.1f} M, "
          f"critic {sum(p.numel() for p in critic.parameters()) / 1e6:.1f} M")

    for it in range(1, args.iterations + 1):
        for _ in range(args.n_critic):
            real = next(data)
            with torch.no_grad():
                fake = gen(torch.randn(args.batch, args.latent, device="cuda"))
            d_real, d_fake = critic(real), critic(fake)
            gap = d_real.mean() - d_fake.mean()
            loss_d = -gap + args.gp * gradient_penalty(critic, real, fake) + args.drift * d_real.square().mean()
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()
        critic.requires_grad_(False)
        loss_g = -critic(gen(torch.randn(2 * args.batch, args.latent, device="cuda"))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        critic.requires_grad_(True)
        update_ema(ema, gen, args.ema)
        for s in decay:
            s.step()
        if it % 5 == 0:
            print(f"iteration {it} gap {gap.item():.4f} critic {loss_d.item():.4f} generator {loss_g.item():.4f}")

    fakes = sample(ema, args.n_sample, args.latent, 80, seed=5)
    reals = torch.cat([next(data).cpu() for _ in range(-(-args.n_sample // args.batch))])[:args.n_sample]
    print(f"sliced Wasserstein distance {sliced_wasserstein(fakes, reals):.4f}")
    with tempfile.TemporaryDirectory() as d:
        torch.save({"gen": gen.state_dict(), "ema": ema.state_dict(), "opt_g": opt_g.state_dict()},
                   os.path.join(d, "wgan.pt"))


if __name__ == "__main__":
    main()
