"""Momentum-contrast pre-training of a timm ViT with a negative queue and a side-stream prefetcher."""
import argparse

import timm
import torch
import torch.nn as nn
import torch.nn.functional as F

class Prefetcher:
    """Copies the next pinned batch on its own stream while the current one is being used."""
    def __init__(self, make, n):
        self.make, self.left = make, n
        self.stream = torch.cuda.Stream()
        self._load()
    def _load(self):
        if self.left == 0:
            self.next = None
            return
        self.left -= 1
        host = self.make().pin_memory()
        with torch.cuda.stream(self.stream):
            self.next = host.to("cuda", non_blocking=True).float().div_(255)
    def __iter__(self):
        while self.next is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            batch.record_stream(torch.cuda.current_stream())
            self._load()
            yield batch

def augment(x):
    """Batched crop-resize, flip, colour jitter and random erasing on the device."""
    n, _, h, w = x.shape
    scale = torch.rand(n, device=x.device) * 0.6 + 0.4
    shift = (torch.rand(n, 2, device=x.device) * 2 - 1) * (1 - scale[:, None])
    flip = torch.where(torch.rand(n, device=x.device) < 0.5, -1.0, 1.0)
    theta = torch.zeros(n, 2, 3, device=x.device)
    theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = scale * flip, scale, shift
    x = F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False)
    gain = torch.rand(n, 3, 1, 1, device=x.device) * 0.8 + 0.6
    x = (x * gain).clamp_(0, 1)
    gray = x.mean(1, keepdim=True).expand_as(x)
    x = torch.where(torch.rand(n, 1, 1, 1, device=x.device) < 0.2, gray, x)
    return (x - 0.45) / 0.225

class MoCo(nn.Module):
    def __init__(self, name, dim, queue, m, temp):
        super().__init__()
        self.m, self.t = m, temp
        self.q, self.k = self._branch(name, dim), self._branch(name, dim)
        self.pred = nn.Sequential(nn.Linear(dim, 1024), nn.BatchNorm1d(1024), nn.ReLU(inplace=True), nn.Linear(1024, dim))
        self.k.load_state_dict(self.q.state_dict())
        self.k.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(queue, dim), dim=1))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))
    @staticmethod
    def _branch(name, dim):
        body = timm.create_model(name, pretrained=False, num_classes=0, drop_path_rate=0.1)
        f = body.num_features
        return nn.Sequential(body, nn.Linear(f, 2048), nn.BatchNorm1d(2048), nn.ReLU(inplace=True), nn.Linear(2048, dim))
    @torch.no_grad()
    def momentum_step(self):
        for pk, pq in zip(self.k.parameters(), self.q.parameters()):
            pk.mul_(self.m).add_(pq, alpha=1 - self.m)
    @torch.no_grad()
    def enqueue(self, keys):
        n, i = keys.size(0), int(self.ptr)
        idx = (torch.arange(n, device=keys.device) + i) % self.queue.size(0)
        self.queue[idx] = keys.to(self.queue.dtype)
        self.ptr[0] = (i + n) % self.queue.size(0)
    def forward(self, x1, x2):
        q1, q2 = (F.normalize(self.pred(self.q(x)).float(), dim=1) for x in (x1, x2))
        with torch.no_grad():
            self.momentum_step()
            k1, k2 = (F.normalize(self.k(x).float(), dim=1) for x in (x1, x2))
        loss = self.nce(q1, k2) + self.nce(q2, k1)
        self.enqueue(torch.cat([k1, k2]))
        return loss / 2
    def nce(self, q, k):
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.clone().t()
        logits = torch.cat([pos, neg], 1).float() / self.t
        return F.cross_entropy(logits, torch.zeros(q.size(0), dtype=torch.long, device=q.device))

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="vit_small_patch16_224")
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--size", type=int, default=224)
    p.add_argument("--steps", type=int, default=7)
    p.add_argument("--queue", type=int, default=65536)
    p.add_argument("--dim", type=int, default=256)
    a = p.parse_args()
    torch.manual_seed(31)
    model = MoCo(a.model, a.dim, a.queue, 0.99, 0.2).cuda()
    params = [q for q in model.parameters() if q.requires_grad]
    opt = torch.optim.AdamW(params, lr=1.5e-4, weight_decay=0.1)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    loader = Prefetcher(lambda: torch.randint(0, 256, (a.batch, 3, a.size, a.size), dtype=torch.uint8), a.steps)
    history = []
    for step, x in enumerate(loader):
        with torch.no_grad():
            v1, v2 = augment(x), augment(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(v1, v2)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        history.append(loss.detach())
        print(f"step {step} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")
    print("mean", torch.stack(history).mean().item())
    print(f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")

if __name__ == "__main__":
    main()
