"""ResNet-50 on two GPUs with DistributedDataParallel, fp32, synchronised batch norm unless --no-sync-bn.

torchrun --nproc-per-node 2 t02_ddp_resnet50.py
"""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision.models import resnet50


class FakeImages(Dataset):
    def __init__(self, length, size, classes, seed):
        g = torch.Generator().manual_seed(seed)
        self.bank = torch.randint(0, 256, (64, 3, size, size), dtype=torch.uint8, generator=g)
        self.labels = torch.randint(0, classes, (length,), generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        label = self.labels[i]
        return self.bank[(i * 7 + int(label)) % len(self.bank)], label


def normalise(x, device):
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1)
    return (x.to(device, non_blocking=True).float() / 255 - mean) / std


def param_groups(model, weight_decay):
    decay, plain = [], []
    for p in model.parameters():
        (plain if p.ndim <= 1 else decay).append(p)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def train_one_epoch(model, loader, criterion, optimizer, scheduler, device, epoch, rank):
    model.train()
    for step, (x, y) in enumerate(loader):
        x, y = normalise(x, device), y.to(device, non_blocking=True)
        output = model(x)
        loss = criterion(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if rank == 0 and step % 8 == 0:
            print(f"epoch {epoch} step {step}/{len(loader)} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.4f}", flush=True)


@torch.inference_mode()
def evaluate(model, loader, criterion, device):
    model.eval()
    stats = torch.zeros(4, dtype=torch.float64, device=device)
    for x, y in loader:
        y = y.to(device)
        logits = model(normalise(x, device))
        top5 = logits.topk(5, dim=1).indices.eq(y[:, None])
        stats += torch.stack([criterion(logits, y).double() * len(y), top5[:, 0].sum().double(),
                              top5.any(1).sum().double(), torch.tensor(len(y), device=device).double()])
    dist.all_reduce(stats)
    loss, top1, top5, n = stats.tolist()
    return loss / n, 100 * top1 / n, 100 * top5 / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--image-size", type=int, default=208)
    ap.add_argument("--batch-size", type=int, default=60, help="for each GPU")
    ap.add_argument("--eval-batch-size", type=int, default=100)
    ap.add_argument("--classes", type=int, default=365)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--steps", type=int, default=18)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--no-sync-bn", action="store_true")
    args = ap.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group(backend="nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(100 + rank)

    train_set = FakeImages(world * args.batch_size * args.steps, args.image_size, args.classes, seed=1)
    test_set = FakeImages(world * args.eval_batch_size * 3 - 31, args.image_size, args.classes, seed=2)
    train_sampler = DistributedSampler(train_set, shuffle=True)
    train_loader = DataLoader(train_set, args.batch_size, sampler=train_sampler, num_workers=2, pin_memory=True, drop_last=True)
    test_loader = DataLoader(test_set, args.eval_batch_size, sampler=DistributedSampler(test_set, shuffle=False))

    model = resnet50(weights=None, num_classes=args.classes, zero_init_residual=True)
    if not args.no_sync_bn:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DistributedDataParallel(model.to(device), device_ids=[local_rank])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(param_groups(model, 5e-5), lr=args.lr, momentum=0.9, nesterov=True)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * args.steps - 6)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[6])

    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        train_one_epoch(model, train_loader, criterion, optimizer, scheduler, device, epoch, rank)
        loss, top1, top5 = evaluate(model, test_loader, criterion, device)
        if rank == 0:
            print(f"epoch {epoch}: test loss {loss:.4f} top-1 {top1:.2f} top-5 {top5:.2f}", flush=True)
    if rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, os.path.join(folder, "last.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
