"""Optical flow with an all-pairs correlation volume and iterative GRU refinement (mixed fp16)."""
import argparse
import logging
from functools import partial

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

LOG = logging.getLogger("flow")


def norm_layer(kind, ch):
    return {"instance": partial(nn.InstanceNorm2d, ch), "batch": partial(nn.BatchNorm2d, ch)}[kind]()


class Res(nn.Module):
    def __init__(self, cin, cout, kind, stride):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(cin, cout, 3, stride, 1), nn.Conv2d(cout, cout, 3, 1, 1)
        self.n1, self.n2 = norm_layer(kind, cout), norm_layer(kind, cout)
        self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, stride), norm_layer(kind, cout)) if stride > 1 else nn.Identity()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.act(self.n1(self.c1(x)))
        y = self.act(self.n2(self.c2(y)))
        return self.act(self.skip(x) + y)


class Encoder(nn.Module):
    def __init__(self, out, kind, widths=(64, 96, 128)):
        super().__init__()
        mods, c = [nn.Conv2d(3, widths[0], 7, 2, 3), norm_layer(kind, widths[0]), nn.ReLU(inplace=True)], widths[0]
        for i, w in enumerate(widths):
            mods += [Res(c, w, kind, 1 if i == 0 else 2), Res(w, w, kind, 1)]
            c = w
        self.body = nn.Sequential(*mods, nn.Conv2d(c, out, 1))

    def forward(self, x):
        return self.body(x)


def coords(b, h, w, device):
    y, x = torch.meshgrid(torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij")
    return torch.stack([x, y]).float().expand(b, -1, -1, -1)


class CorrPyramid:
    def __init__(self, f1, f2, levels=4, radius=4):
        b, c, h, w = f1.shape
        self.r = radius
        corr = torch.matmul(f1.flatten(2).transpose(1, 2), f2.flatten(2)) / c ** 0.5
        corr = corr.view(b * h * w, 1, h, w)
        self.levels = [corr]
        for _ in range(levels - 1):
            corr = F.avg_pool2d(corr, 2, 2)
            self.levels.append(corr)
        d = torch.arange(-radius, radius + 1, device=f1.device, dtype=torch.float32)
        self.window = torch.stack(torch.meshgrid(d, d, indexing="ij"), -1)[None]

    def __call__(self, xy):
        b, _, h, w = xy.shape
        centre = xy.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2)
        out = []
        for i, c in enumerate(self.levels):
            p = centre / 2 ** i + self.window
            H, W = c.shape[-2:]
            g = torch.stack([2 * p[..., 0] / (W - 1) - 1, 2 * p[..., 1] / (H - 1) - 1], -1)
            out.append(F.grid_sample(c, g, align_corners=True).view(b, h, w, -1))
        return torch.cat(out, -1).permute(0, 3, 1, 2).contiguous()


class SepGRU(nn.Module):
    def __init__(self, hid, cin):
        super().__init__()
        conv = lambda k, p: nn.Conv2d(hid + cin, hid, k, padding=p)
        self.horiz = nn.ModuleList(conv((1, 5), (0, 2)) for _ in range(3))
        self.vert = nn.ModuleList(conv((5, 1), (2, 0)) for _ in range(3))

    def forward(self, h, x):
        for z_, r_, q_ in (self.horiz, self.vert):
            hx = torch.cat([h, x], 1)
            z, r = torch.sigmoid(z_(hx)), torch.sigmoid(r_(hx))
            q = torch.tanh(q_(torch.cat([r * h, x], 1)))
            h = (1 - z) * h + z * q
        return h


class Update(nn.Module):
    def __init__(self, hid, ctx, corr_ch):
        super().__init__()
        self.cc = nn.Sequential(nn.Conv2d(corr_ch, 256, 1), nn.ReLU(), nn.Conv2d(256, 192, 3, padding=1), nn.ReLU())
        self.cf = nn.Sequential(nn.Conv2d(2, 128, 7, padding=3), nn.ReLU(), nn.Conv2d(128, 64, 3, padding=1), nn.ReLU())
        self.mix = nn.Sequential(nn.Conv2d(256, 126, 3, padding=1), nn.ReLU())
        self.gru = SepGRU(hid, ctx + 128)
        self.flow = nn.Sequential(nn.Conv2d(hid, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 2, 3, padding=1))
        self.mask = nn.Sequential(nn.Conv2d(hid, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 64 * 9, 1))

    def forward(self, h, ctx, corr, flow):
        m = torch.cat([self.mix(torch.cat([self.cc(corr), self.cf(flow)], 1)), flow], 1)
        h = self.gru(h, torch.cat([ctx, m], 1))
        return h, self.flow(h), 0.25 * self.mask(h)


class FlowNet(nn.Module):
    def __init__(self, amp_dtype, hid=128, ctx=128, levels=4, radius=4):
        super().__init__()
        self.fnet, self.cnet = Encoder(256, "instance"), Encoder(hid + ctx, "batch")
        self.update = Update(hid, ctx, levels * (2 * radius + 1) ** 2)
        self.split, self.amp_dtype, self.levels = (hid, ctx), amp_dtype, levels

    @staticmethod
    def upsample(flow, mask):
        b, _, h, w = flow.shape
        m = mask.view(b, 1, 9, 8, 8, h, w).softmax(2)
        f = F.unfold(8 * flow, 3, padding=1).view(b, 2, 9, 1, 1, h, w)
        return (m * f).sum(2).permute(0, 1, 4, 2, 5, 3).reshape(b, 2, 8 * h, 8 * w)

    def forward(self, a, b, iters):
        amp = partial(torch.autocast, a.device.type, dtype=self.amp_dtype)
        with amp():
            f1, f2 = self.fnet(torch.cat([a, b])).chunk(2)
            h, ctx = self.cnet(a).split(self.split, 1)
            h, ctx = torch.tanh(h), torch.relu(ctx)
        corr = CorrPyramid(f1.float(), f2.float(), self.levels)
        c0 = coords(len(a), *f1.shape[-2:], a.device)
        c1, preds = c0.clone(), []
        for _ in range(iters):
            c1 = c1.detach()
            look = corr(c1)
            with amp():
                h, delta, mask = self.update(h, ctx, look, c1 - c0)
            c1 = c1 + delta.float()
            preds.append(self.upsample(c1 - c0, mask.float()))
            if not self.training:
                preds = preds[-1:]
        return preds


class WarpedTextures(Dataset):
    def __init__(self, n, size, seed):
        self.n, self.size, self.seed = n, size, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        h, w = self.size
        img = F.interpolate(torch.rand(1, 3, h // 6, w // 6, generator=g), (h, w), mode="bicubic")
        flow = F.interpolate(torch.randn(1, 2, 4, 6, generator=g) * 8, (h, w), mode="bilinear", align_corners=True)
        p = coords(1, h, w, "cpu") + flow
        grid = torch.stack([2 * p[:, 0] / (w - 1) - 1, 2 * p[:, 1] / (h - 1) - 1], -1)
        return img[0], F.grid_sample(img, grid, align_corners=True)[0], flow[0]


def pad8(*ims):
    h, w = ims[0].shape[-2:]
    ph, pw = -h % 8, -w % 8
    box = [pw // 2, pw - pw // 2, ph // 2, ph - ph // 2]
    return [F.pad(i, box, mode="replicate") for i in ims], box


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--crop", type=int, nargs=2, default=(368, 776))
    ap.add_argument("--full", type=int, nargs=2, default=(436, 1021))
    ap.add_argument("--batch", type=int, default=3)
    ap.add_argument("--iters", type=int, default=10)
    ap.add_argument("--val-iters", type=int, default=24)
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--val-every", type=int, default=45)
    ap.add_argument("--workers", type=int, default=6)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(1234)
    cuda = args.device == "cuda"
    torch.backends.cudnn.benchmark = True
    net = FlowNet(torch.float16 if cuda else torch.bfloat16).to(args.device)
    opt = torch.optim.AdamW(net.parameters(), lr=4e-4, weight_decay=1e-5, eps=1e-8)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-4, args.steps + 100, pct_start=0.05, cycle_momentum=False)
    scaler = torch.amp.GradScaler(args.device, enabled=cuda)
    train = DataLoader(WarpedTextures(args.batch * args.steps, args.crop, 0), args.batch, num_workers=args.workers, pin_memory=cuda)
    val = DataLoader(WarpedTextures(6, args.full, 10 ** 6), 1)
    for step, (a, b, gt) in enumerate(train, 1):
        net.train()
        a, b, gt = (t.to(args.device, non_blocking=True) for t in (2 * a - 1, 2 * b - 1, gt))
        preds = net(a, b, args.iters)
        loss = sum(0.8 ** (len(preds) - i - 1) * (p - gt).abs().mean() for i, p in enumerate(preds))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        sched.step()
        if step % 10 == 0:
            LOG.info("step %d loss %.3f epe %.3f", step, loss.item(), (preds[-1] - gt).norm(dim=1).mean().item())
        if step % args.val_every == 0:
            net.eval()
            epe = []
            with torch.no_grad():
                for a, b, gt in val:
                    (a, b), box = pad8(2 * a.to(args.device) - 1, 2 * b.to(args.device) - 1)
                    f = net(a, b, args.val_iters)[-1]
                    H, W = f.shape[-2:]
                    f = f[..., box[2]: H - box[3], box[0]: W - box[1]]
                    epe.append((f.cpu() - gt).norm(dim=1).mean().item())
            LOG.info("validation epe %.3f over %d pairs", sum(epe) / len(epe), len(epe))


if __name__ == "__main__":
    main()
