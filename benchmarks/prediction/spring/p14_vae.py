"""Convolutional VAE at 128x128 with gradient accumulation, OneCycle schedule and KL warm-up."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"

p = argparse.ArgumentParser()
p.add_argument("--size", type=int, default=128)
p.add_argument("--ch", type=int, default=128)
p.add_argument("--mult", type=int, nargs="+", default=[1, 2, 4, 4])
p.add_argument("--latent", type=int, default=16)
p.add_argument("--micro", type=int, default=24)
p.add_argument("--accum", type=int, default=4)
p.add_argument("--updates", type=int, default=13)
p.add_argument("--lr", type=float, default=4e-4)
p.add_argument("--val-batches", type=int, default=4)
args = p.parse_args()


def norm(c):
    return nn.GroupNorm(32, c, eps=1e-6)


class Res(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.body = nn.Sequential(norm(cin), nn.SiLU(), nn.Conv2d(cin, cout, 3, padding=1),
                                  norm(cout), nn.SiLU(), nn.Conv2d(cout, cout, 3, padding=1))
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        return self.skip(x) + self.body(x)


class Attn(nn.Module):
    """Single head attention written out, as in older autoencoder code."""

    def __init__(self, c):
        super().__init__()
        self.norm = norm(c)
        self.q, self.k, self.v, self.o = (nn.Conv2d(c, c, 1) for _ in range(4))

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x)
        q, k, v = (f(y).flatten(2) for f in (self.q, self.k, self.v))
        weight = torch.softmax(torch.bmm(q.transpose(1, 2), k) * c ** -0.5, dim=-1)
        return x + self.o(torch.bmm(v, weight.transpose(1, 2)).view(b, c, h, w))


class Encoder(nn.Module):
    def __init__(self, ch, mult, latent):
        super().__init__()
        layers, c = [nn.Conv2d(3, ch, 3, padding=1)], ch
        for i, m in enumerate(mult):
            layers += [Res(c, ch * m), Res(ch * m, ch * m)]
            c = ch * m
            if i < len(mult) - 1:
                layers.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
        layers += [Res(c, c), Attn(c), Res(c, c), norm(c), nn.SiLU(), nn.Conv2d(c, 2 * latent, 3, padding=1)]
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        mean, logvar = self.net(x).chunk(2, dim=1)
        return mean, logvar.clamp(-20, 10)


class Decoder(nn.Module):
    def __init__(self, ch, mult, latent):
        super().__init__()
        c = ch * mult[-1]
        layers = [nn.Conv2d(latent, c, 3, padding=1), Res(c, c), Attn(c), Res(c, c)]
        for i, m in reversed(list(enumerate(mult))):
            layers += [Res(c, ch * m), Res(ch * m, ch * m)]
            c = ch * m
            if i > 0:
                layers += [nn.Upsample(scale_factor=2), nn.Conv2d(c, c, 3, padding=1)]
        layers += [norm(c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1)]
        self.net = nn.Sequential(*layers)

    def forward(self, z):
        return self.net(z)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder(args.ch, args.mult, args.latent)
        self.decoder = Decoder(args.ch, args.mult, args.latent)

    def forward(self, x):
        mean, logvar = self.encoder(x)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).flatten(1).sum(1).mean()
        return self.decoder(z), kl


def sobel_loss(a, b):
    kernel = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]], device=a.device)
    kernel = torch.stack([kernel, kernel.T])[:, None].repeat(3, 1, 1, 1)
    return F.l1_loss(F.conv2d(a, kernel, groups=3), F.conv2d(b, kernel, groups=3))


def batch_of_images(g):
    low = torch.randn(args.micro, 3, 6, 6, generator=g)
    edge = (torch.rand(args.micro, 1, 1, args.size, generator=g) < 0.03).float().cumsum(-1) % 2
    x = F.interpolate(low, size=(args.size, args.size), mode="bicubic", align_corners=False)
    return (x * 0.5 + edge - 0.5).clamp(-1, 1)


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(31)
    model = VAE().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.5, 0.9), foreach=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.updates, pct_start=0.3)
    best, checkpoint, gallery = float("inf"), None, []
    start = time.time()
    for update in range(args.updates):
        beta = 1e-6 * min(1.0, (update + 1) / 5)
        total = 0.0
        for _ in range(args.accum):
            x = batch_of_images(g).to(device)
            recon, kl = model(x)
            loss = F.l1_loss(recon, x) + 0.2 * sobel_loss(recon, x) + beta * kl
            (loss / args.accum).backward()
            total += loss.item() / args.accum
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=False)
        gallery.append(recon[:8].detach())
        if total < best:
            best = total
            checkpoint = {k: v.cpu().clone() for k, v in model.state_dict().items()}
        if update % 3 == 0:
            print(f"update {update} loss {total:.4f} kl {kl.item():.1f} {time.time() - start:.1f}s")

    model.load_state_dict(checkpoint)
    model.eval()
    with torch.no_grad():
        errors = []
        for _ in range(args.val_batches):
            x = batch_of_images(g).to(device)
            mean, _ = model.encoder(x)
            errors.append(F.mse_loss(model.decoder(mean), x))
    change = (gallery[-1] - gallery[0]).abs().mean()
    print(f"best {best:.4f} mse {torch.stack(errors).mean().item():.5f} change {change.item():.4f} "
          f"{time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
