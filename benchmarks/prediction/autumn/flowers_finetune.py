"""Fine-tune a ResNet-50 on a small flower dataset with gradual unfreezing.

The stem and the first two stages start frozen; at `unfreeze_at` stages 2 and 1 are
released with a smaller learning rate.  Mixup, label smoothing, EMA weights, bf16
autocast and channels_last.  When training is over the EMA weights are exported to fp16
and timed with a captured CUDA graph.
"""
import copy
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

TINY = os.environ.get("TINY") == "1"
SCALE = float(os.environ.get("SCALE", "1"))
SEED = 1234

CFG = dict(
    classes=102,
    image=64 if TINY else 224,
    batch=max(1, round((4 if TINY else 96) * SCALE)),
    steps=6 if TINY else 24,
    unfreeze_at=3 if TINY else 12,
    lr=0.02,
    mixup=0.2,
    images=32 if TINY else 768,
)
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)


def fake_flowers(n, size, classes):
    g = torch.Generator().manual_seed(SEED)
    y = torch.randint(0, classes, (n,), generator=g)
    x = torch.randint(0, 200, (n, 3, size, size), generator=g, dtype=torch.uint8)
    # a class dependent colour cast, so that there is something to learn
    x += (y % 50).to(torch.uint8).view(-1, 1, 1, 1)
    return TensorDataset(x, y)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        net = torchvision.models.resnet50(weights=None)
        net.fc = nn.Sequential(nn.Dropout(0.2), nn.Linear(net.fc.in_features, cfg["classes"]))
        self.net = net.to(self.device, memory_format=torch.channels_last)
        self.frozen = [net.conv1, net.bn1, net.layer1, net.layer2]
        for m in self.frozen:
            m.requires_grad_(False)

        self.opt = torch.optim.SGD(
            [p for p in net.parameters() if p.requires_grad],
            lr=cfg["lr"], momentum=0.9, nesterov=True, weight_decay=1e-4,
        )
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg["steps"])
        self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
        self.mean, self.std = MEAN.to(self.device) * 255, STD.to(self.device) * 255

        data = fake_flowers(cfg["images"], cfg["image"], cfg["classes"])
        sampler = RandomSampler(data, replacement=True, num_samples=cfg["batch"] * cfg["steps"])
        self.loader = DataLoader(data, batch_size=cfg["batch"], sampler=sampler, pin_memory=self.device.type == "cuda")

    def set_train(self):
        self.net.train()
        for m in self.frozen:      # keep the running stats of frozen stages as they are
            m.eval()

    def unfreeze(self):
        layers = [self.net.layer2, self.net.layer1]
        self.frozen = [self.net.conv1, self.net.bn1]
        for m in layers:
            m.requires_grad_(True)
            self.opt.add_param_group({"params": list(m.parameters()), "lr": self.cfg["lr"] * 0.1})
        # scheduler has to know about the new groups
        left = self.cfg["steps"] - self.sched.last_epoch
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, left)
        self.set_train()

    def prepare(self, x):
        x = x.to(self.device, non_blocking=True).float().sub_(self.mean).div_(self.std)
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        return x.contiguous(memory_format=torch.channels_last)

    def mixup(self, x, y):
        lam = float(torch.distributions.Beta(self.cfg["mixup"], self.cfg["mixup"]).sample())
        perm = torch.randperm(x.size(0), device=x.device)
        target = F.one_hot(y, self.cfg["classes"]).float()
        target = lam * target + (1 - lam) * target[perm]
        return torch.lerp(x[perm], x, lam), target

    def fit(self):
        self.set_train()
        for step, (x, y) in enumerate(self.loader):
            if step == self.cfg["unfreeze_at"]:
                print(f"step {step}: unfreezing layer1 and layer2")
                self.unfreeze()
            x, y = self.prepare(x), y.to(self.device, non_blocking=True)
            x, target = self.mixup(x, y)
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                logits = self.net(x)
                loss = F.cross_entropy(logits, target, label_smoothing=0.1)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
            self.opt.step()
            self.sched.step()
            self.ema.update_parameters(self.net)
            if step % 4 == 0:
                print(f"step {step:3d} loss {loss.item():.4f}")

    @torch.inference_mode()
    def benchmark(self, batch):
        net = copy.deepcopy(self.ema.module).eval()
        size = self.cfg["image"]
        if self.device.type != "cuda":
            out = net(torch.randn(batch, 3, size, size))
            print("cpu logits", tuple(out.shape))
            return
        net = net.half()
        static = torch.randn(batch, 3, size, size, device=self.device, dtype=torch.half)
        static = static.contiguous(memory_format=torch.channels_last)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                net(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = net(static)
        torch.cuda.synchronize()
        t0 = time.time()
        for _ in range(20):
            static.copy_(torch.randn_like(static))
            graph.replay()
        torch.cuda.synchronize()
        print(f"graphed inference, batch {batch}: {(time.time() - t0) / 20 * 1e3:.2f} ms, max logit {out.max().item():.3f}")


if __name__ == "__main__":
    torch.manual_seed(SEED)
    torch.backends.cudnn.benchmark = True
    trainer = Trainer(CFG)
    trainer.fit()
    trainer.benchmark(2 if TINY else 16)
    print("done")
