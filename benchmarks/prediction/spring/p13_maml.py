"""Second-order MAML with torch.func: vmap over tasks, grad in the inner loop, 4-conv few-shot learner."""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

device = "cuda"

WAYS, SHOTS, QUERIES = 5, 5, 15
SIZE = 84
WIDTH = 48
TASKS = 8
INNER_STEPS = 3
META_STEPS = 36
EVAL_TASKS = 24
EVAL_INNER = 6
POOL_CLASSES = 64


class ConvNet4(nn.Module):
    def __init__(self):
        super().__init__()
        layers, cin, size = [], 3, SIZE
        for _ in range(4):
            layers += [nn.Conv2d(cin, WIDTH, 3, padding=1), nn.GroupNorm(8, WIDTH), nn.ReLU(), nn.MaxPool2d(2)]
            cin, size = WIDTH, size // 2
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH * size * size, WAYS)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


class TaskSource:
    """Classes are fixed smooth templates in host memory; samples are noisy shifted copies."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        low = torch.randn(POOL_CLASSES, 3, 11, 11, generator=self.g)
        self.templates = F.interpolate(low, size=(SIZE, SIZE), mode="bilinear", align_corners=False)

    def sample(self, tasks):
        per = SHOTS + QUERIES
        xs, xq = [], []
        for _ in range(tasks):
            classes = torch.randperm(POOL_CLASSES, generator=self.g)[:WAYS]
            t = self.templates[classes][:, None].expand(-1, per, -1, -1, -1)
            shift = torch.randint(-8, 9, (2,), generator=self.g).tolist()
            t = t.roll(shift, dims=(-2, -1))
            xs.append(t[:, :SHOTS].reshape(-1, 3, SIZE, SIZE))
            xq.append(t[:, SHOTS:].reshape(-1, 3, SIZE, SIZE))
        xs, xq = torch.stack(xs).to(device), torch.stack(xq).to(device)
        xs, xq = xs + 0.7 * torch.randn_like(xs), xq + 0.7 * torch.randn_like(xq)
        ys = torch.arange(WAYS, device=device).repeat_interleave(SHOTS).expand(tasks, -1)
        yq = torch.arange(WAYS, device=device).repeat_interleave(QUERIES).expand(tasks, -1)
        return xs, ys, xq, yq


def make_adapt(model, steps):
    def inner_loss(params, x, y):
        return F.cross_entropy(functional_call(model, params, (x,)), y)

    def adapt(params, lrs, xs, ys):
        for _ in range(steps):
            grads = grad(inner_loss)(params, xs, ys)
            params = {k: p - lrs[k] * grads[k] for k, p in params.items()}
        return params

    def task_loss(params, lrs, xs, ys, xq, yq):
        fast = adapt(params, lrs, xs, ys)
        logits = functional_call(model, fast, (xq,))
        return F.cross_entropy(logits, yq), (logits.argmax(-1) == yq).float().mean()

    return task_loss


def main():
    torch.manual_seed(0)
    model = ConvNet4().to(device)
    params = dict(model.named_parameters())
    # Meta-SGD: one learnable step size per parameter tensor
    lrs = {k: nn.Parameter(torch.full((), 0.05, device=device)) for k in params}
    optimizer = torch.optim.NAdam([{"params": list(params.values()), "lr": 1e-3},
                                   {"params": list(lrs.values()), "lr": 1e-3}])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 12, 0.5)
    task_loss = make_adapt(model, INNER_STEPS)
    batched = vmap(task_loss, in_dims=(None, None, 0, 0, 0, 0))
    source = TaskSource(42)
    start, history = time.time(), []
    for step in range(META_STEPS):
        batch = source.sample(TASKS)
        losses, accs = batched(params, lrs, *batch)
        loss = losses.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(list(params.values()), 10.0)
        optimizer.step()
        scheduler.step()
        history.append(losses)
        if step % 6 == 0:
            print(f"step {step} loss {loss.item():.4f} acc {accs.mean().item():.3f} {time.time() - start:.1f}s")

    # evaluation: more inner steps, first-order only, chunked over tasks
    frozen = {k: p.detach() for k, p in params.items()}
    frozen_lrs = {k: p.detach() for k, p in lrs.items()}
    evaluate = vmap(make_adapt(model, EVAL_INNER), in_dims=(None, None, 0, 0, 0, 0), chunk_size=8)
    with torch.no_grad():
        _, accs = evaluate(frozen, frozen_lrs, *TaskSource(43).sample(EVAL_TASKS))
    spread = torch.stack([h.detach() for h in history]).std().item()
    print(f"eval acc {accs.mean().item():.3f} loss spread {spread:.3f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
