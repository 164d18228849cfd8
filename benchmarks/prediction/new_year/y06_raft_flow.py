"""Optical flow: RAFT trained with the sequence loss on synthetic warps; endpoint error at a larger size."""
import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models.optical_flow import raft_large, raft_small


class WarpedPairs(Dataset):
    """Smooth random texture and a smooth random flow that carries it."""

    def __init__(self, n, height, width, max_flow, seed):
        self.n, self.h, self.w, self.max_flow, self.seed = n, height, width, max_flow, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 7919 + i)
        coarse = torch.rand(1, 3, self.h // 8, self.w // 8, generator=g)
        first = F.interpolate(coarse, (self.h, self.w), mode="bilinear", align_corners=False)
        flow = F.interpolate((torch.rand(1, 2, 4, 5, generator=g) - 0.5) * 2 * self.max_flow, (self.h, self.w),
                             mode="bilinear", align_corners=True)
        ys, xs = torch.meshgrid(torch.arange(self.h), torch.arange(self.w), indexing="ij")
        gx = 2 * (xs - flow[0, 0]) / (self.w - 1) - 1
        gy = 2 * (ys - flow[0, 1]) / (self.h - 1) - 1
        second = F.grid_sample(first, torch.stack([gx, gy], -1)[None], padding_mode="border", align_corners=True)
        valid = (flow.abs().amax(1) < self.max_flow * 0.98).float()
        return first[0] * 2 - 1, second[0] * 2 - 1, flow[0], valid[0]


def sequence_loss(preds, flow, valid, gamma=0.8, max_flow=400):
    mask = (valid > 0.5) & (flow.norm(dim=1) < max_flow)
    total = 0.0
    for i, pred in enumerate(preds):
        weight = gamma ** (len(preds) - i - 1)
        total = total + weight * ((pred - flow).abs() * mask[:, None]).mean()
    epe = ((preds[-1].detach() - flow).norm(dim=1) * mask).sum() / mask.sum()
    return total, epe


@torch.no_grad()
def evaluate(model, loader, updates):
    model.eval()
    epes = []
    for first, second, flow, _ in loader:
        pred = model(first.cuda(), second.cuda(), num_flow_updates=updates)[-1]
        epes.append((pred - flow.cuda()).norm(dim=1).mean().item())
    model.train()
    return sum(epes) / len(epes)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--small", action="store_true")
    p.add_argument("--size", type=int, nargs=2, default=[280, 368])
    p.add_argument("--eval-size", type=int, nargs=2, default=[384, 512])
    p.add_argument("--batch", type=int, default=5)
    p.add_argument("--updates", type=int, default=10)
    p.add_argument("--steps", type=int, default=28)
    p.add_argument("--lr", type=float, default=2e-4)
    args = p.parse_args()
    torch.manual_seed(1234)
    torch.backends.cudnn.allow_tf32 = False

    build = raft_small if args.small else raft_large
    model = build(weights=None, progress=False).to("cuda").train()
    train = DataLoader(WarpedPairs(args.batch * args.steps, *args.size, 12.0, 1), args.batch, shuffle=True,
                       num_workers=2, pin_memory=True, drop_last=True)
    valid = DataLoader(WarpedPairs(6, *args.eval_size, 16.0, 2), 2)

    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4, eps=1e-8, foreach=False)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=args.lr, total_steps=args.steps + 1, pct_start=0.1,
                                                cycle_momentum=False, anneal_strategy="linear")
    for step, batch in enumerate(train, 1):
        first, second, flow, valid_mask = (x.cuda(non_blocking=True) for x in batch)
        if torch.rand(()) < 0.5:
            noise = torch.rand((), device="cuda") * 0.05
            first = (first + noise * torch.randn_like(first)).clamp(-1, 1)
            second = (second + noise * torch.randn_like(second)).clamp(-1, 1)
        preds = model(first, second, num_flow_updates=args.updates)
        loss, epe = sequence_loss(preds, flow, valid_mask)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 4 == 0:
            print(f"step {step} loss {loss.item():.3f} epe {epe.item():.3f} lr {sched.get_last_lr()[0]:.2e}")
    print(f"epe at {tuple(args.eval_size)}: {evaluate(model, valid, 24):.3f}")
    with tempfile.TemporaryDirectory() as d:
        torch.save(model.state_dict(), os.path.join(d, "raft.pth"))


if __name__ == "__main__":
    main()
