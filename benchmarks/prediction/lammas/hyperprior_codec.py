"""Learned image compression with a scale hyperprior (Balle et al. 2018): GDN, factorized entropy model, two optimizers."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LowerBound(torch.autograd.Function):
    """max(x, bound) whose gradient also passes where it would move x back above the bound."""

    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.clamp_min(bound)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * ((x >= ctx.bound) | (g < 0)), None


class GDN(nn.Module):
    def __init__(self, c, inverse=False):
        super().__init__()
        self.inverse = inverse
        self.beta = nn.Parameter(torch.ones(c))
        self.gamma = nn.Parameter(0.1 * torch.eye(c) + 1e-5)

    def forward(self, x):
        beta, gamma = LowerBound.apply(self.beta, 1e-6), LowerBound.apply(self.gamma, 0.0)
        norm = F.conv2d(x * x, gamma[:, :, None, None], beta)
        return x * (norm.sqrt() if self.inverse else norm.rsqrt())


class FactorizedPrior(nn.Module):
    """A learned cumulative per channel, with quantiles trained by an auxiliary loss."""

    def __init__(self, c, widths=(1, 3, 3, 3, 1), scale=10.0):
        super().__init__()
        s = scale ** (1 / (len(widths) - 1))
        self.h, self.b, self.a = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()
        for i, o in zip(widths[:-1], widths[1:]):
            self.h.append(nn.Parameter(torch.full((c, o, i), math.log(math.expm1(1 / s / o)))))
            self.b.append(nn.Parameter(torch.rand(c, o, 1) - 0.5))
            self.a.append(nn.Parameter(torch.zeros(c, o, 1)))
        self.quantiles = nn.Parameter(torch.tensor([-scale, 0.0, scale]).repeat(c, 1, 1))

    def logits(self, x, frozen=False):
        for i, (h, b, a) in enumerate(zip(self.h, self.b, self.a)):
            if frozen:
                h, b, a = h.detach(), b.detach(), a.detach()
            x = F.softplus(h) @ x + b
            if i < len(self.h) - 1:
                x = x + a.tanh() * x.tanh()
        return x

    def forward(self, z):
        flat = z.transpose(0, 1).reshape(z.size(1), 1, -1)
        lo, hi = self.logits(flat - 0.5), self.logits(flat + 0.5)
        sign = -(lo + hi).sign().detach()
        p = ((sign * hi).sigmoid() - (sign * lo).sigmoid()).abs()
        return LowerBound.apply(p, 1e-9)

    def aux(self):
        target = math.log(2 / 1e-9 - 1)
        return (self.logits(self.quantiles, True) - torch.tensor([-target, 0.0, target], device=self.quantiles.device)).abs().sum()


def down(i, o, k=5):
    return nn.Conv2d(i, o, k, 2, k // 2)


def up(i, o, k=5):
    return nn.ConvTranspose2d(i, o, k, 2, k // 2, output_padding=1)


class Codec(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.ga = nn.Sequential(down(3, n), GDN(n), down(n, n), GDN(n), down(n, n), GDN(n), down(n, m))
        self.gs = nn.Sequential(up(m, n), GDN(n, True), up(n, n), GDN(n, True), up(n, n), GDN(n, True), up(n, 3))
        self.ha = nn.Sequential(nn.Conv2d(m, n, 3, 1, 1), nn.ReLU(inplace=True), down(n, n), nn.ReLU(inplace=True), down(n, n))
        self.hs = nn.Sequential(up(n, n), nn.ReLU(inplace=True), up(n, n), nn.ReLU(inplace=True), nn.Conv2d(n, m, 3, 1, 1))
        self.prior = FactorizedPrior(n)

    def quantize(self, x):
        return x + torch.rand_like(x) - 0.5 if self.training else x.round()

    def forward(self, x):
        y = self.ga(x)
        z = self.quantize(self.ha(y.abs()))
        scale = LowerBound.apply(F.softplus(self.hs(z)), 0.11)
        y = self.quantize(y)
        v = y.abs()
        cdf = lambda t: 0.5 * torch.erfc(-t / math.sqrt(2))
        py = LowerBound.apply(cdf((0.5 - v) / scale) - cdf((-0.5 - v) / scale), 1e-9)
        bits = -py.log2().sum() - self.prior(z).log2().sum()
        return self.gs(y), bits


def smooth_images(n, h, w, device):
    x = sum(F.interpolate(torch.rand(n, 3, k, k, device=device), size=(h, w), mode="bicubic") / k for k in (4, 16, 64))
    return (x / x.amax()).clamp(0, 1)


@torch.no_grad()
def evaluate(model, sizes, device):
    model.eval()
    psnr = bpp = 0.0
    for h, w in sizes:
        x = smooth_images(1, h, w, device)
        padded = F.pad(x, (0, -w % 64, 0, -h % 64), mode="replicate")
        rec, bits = model(padded)
        mse = F.mse_loss(rec[..., :h, :w].clamp(0, 1), x)
        psnr += -10 * mse.log10().item() / len(sizes)
        bpp += bits.item() / (h * w) / len(sizes)
    model.train()
    return psnr, bpp


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(n=128, m=192, crop=256, batch=24, steps=14, eval_every=7, scale=1).items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--lmbda", type=float, default=0.013)
    args = p.parse_args()
    torch.manual_seed(4)
    device = torch.device("cuda")
    model = Codec(args.n, args.m).to(device)
    main_params = [q for n, q in model.named_parameters() if not n.endswith("quantiles")]
    opt, aux_opt = torch.optim.Adam(main_params, lr=1e-4), torch.optim.Adam([model.prior.quantiles], lr=1e-3)
    kodak = [(h // args.scale, w // args.scale) for h, w in ((1536, 1023), (1365, 2048), (745, 501))]
    for step in range(1, args.steps + 1):
        x = smooth_images(args.batch, args.crop, args.crop, device)
        rec, bits = model(x)
        rate, dist = bits / (x.numel() / 3), F.mse_loss(rec, x)
        loss = rate + args.lmbda * 255 ** 2 * dist
        opt.zero_grad()
        aux_opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(main_params, 1.0)
        opt.step()
        aux = model.prior.aux()
        aux.backward()
        aux_opt.step()
        print(f"step {step} loss {loss.item():.4f} bpp {rate.item():.3f} mse {dist.item():.5f} aux {aux.item():.1f}")
        if step % args.eval_every == 0:
            print("eval psnr %.2f bpp %.3f" % evaluate(model, kodak, device))


if __name__ == "__main__":
    main()
