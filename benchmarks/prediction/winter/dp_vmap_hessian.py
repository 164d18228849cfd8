"""Differentially private SGD with per-sample gradients (vmap of grad), then the top of the Hessian spectrum by
Lanczos on torch.func Hessian-vector products."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, grad_and_value, jvp, vmap

SCALE = float(os.environ.get("SCALE", "1"))
STEPS = int(os.environ.get("STEPS", "40"))
CLIP, NOISE = 1.0, 0.6


def net(classes=10):
    block = lambda i, o, s: [nn.Conv2d(i, o, 3, s, 1), nn.GroupNorm(8, o), nn.ELU()]
    return nn.Sequential(*block(3, 32, 1), *block(32, 64, 2), *block(64, 128, 2), *block(128, 192, 1), *block(192, 256, 2),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(1024, 128), nn.ELU(), nn.Linear(128, classes))


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (n,), generator=g)
    basis = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    x = 0.35 * basis[y] + torch.randn(n, 3, 32, 32, generator=g)
    return x.to("cuda"), y.to("cuda")


def private_step(params, momentum, per_sample, x, y, expected, lr):
    grads, losses = per_sample(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()], 1).norm(dim=1)
    factor = (CLIP / (norms + 1e-6)).clamp(max=1.0)
    for name, g in grads.items():
        total = torch.einsum("n,n...->...", factor, g)
        total += NOISE * CLIP * torch.randn_like(total)
        momentum[name].mul_(0.9).add_(total / expected)
        params[name] = params[name] - lr * momentum[name]
    return losses.mean().item(), (norms > CLIP).float().mean().item()


def flatten(tree):
    return torch.cat([v.flatten() for v in tree.values()])


def unflatten(vec, like):
    out, i = {}, 0
    for k, v in like.items():
        out[k] = vec[i:i + v.numel()].view_as(v)
        i += v.numel()
    return out


def lanczos(hvp, n, k, device):
    v = torch.randn(n, device=device)
    v /= v.norm()
    basis, alpha, beta = [v], [], []
    for i in range(k):
        w = hvp(basis[-1])
        alpha.append(torch.dot(w, basis[-1]))
        q = torch.stack(basis)
        for _ in range(2):                              # full reorthogonalization
            w = w - q.T @ (q @ w)
        beta.append(w.norm())
        basis.append(w / beta[-1])
    tri = torch.diag(torch.stack(alpha)) + torch.diag(torch.stack(beta[:-1]), 1) + torch.diag(torch.stack(beta[:-1]), -1)
    return torch.linalg.eigvalsh(tri)


def main():
    torch.manual_seed(31)
    model = net().to("cuda")
    params = {k: v.detach().clone() for k, v in model.named_parameters()}
    momentum = {k: torch.zeros_like(v) for k, v in params.items()}
    size = sum(v.numel() for v in params.values())
    expected = max(1, round(256 * SCALE))
    x, y = data(expected * 24, 1)

    def loss_one(p, xi, yi):
        return F.cross_entropy(functional_call(model, p, (xi.unsqueeze(0),)), yi.unsqueeze(0))

    per_sample = vmap(grad_and_value(loss_one), in_dims=(None, 0, 0))
    print(f"{size} parameters, expected batch {expected}")
    order = torch.Generator().manual_seed(2)
    for step in range(STEPS):
        # sampled with replacement, always the same number of rows
        idx = torch.randint(0, len(x), (expected,), generator=order).to("cuda")
        loss, clipped = private_step(params, momentum, per_sample, x[idx], y[idx], expected, lr=0.5)
        if step % 8 == 0:
            print(f"step {step} loss {loss:.4f} clipped {clipped:.2f}", flush=True)

    # gradient noise scale, with bounded memory
    chunked = vmap(grad(loss_one), in_dims=(None, 0, 0), chunk_size=max(1, expected // 4))
    g = chunked(params, x[:expected], y[:expected])
    mean_sq = sum(v.mean(0).pow(2).sum() for v in g.values())
    var = sum(v.var(0).sum() for v in g.values()) if expected > 1 else mean_sq
    print(f"simple noise scale {(var / mean_sq).item():.1f}")
    del g

    xs, ys = x[:4 * expected], y[:4 * expected]
    full = lambda p: F.cross_entropy(functional_call(model, p, (xs,)), ys)

    def hvp(v):
        return flatten(jvp(grad(full), (params,), (unflatten(v, params),))[1]).detach()

    eig = lanczos(hvp, size, int(os.environ.get("LANCZOS", "16")), "cuda")
    print("top eigenvalues", [round(e, 4) for e in eig[-4:].tolist()], "lowest", round(eig[0].item(), 4))
    with torch.no_grad():
        acc = (functional_call(model, params, (xs,)).argmax(1) == ys).float().mean().item()
    print(f"accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
