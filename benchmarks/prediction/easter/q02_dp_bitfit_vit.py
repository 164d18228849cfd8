"""Differentially private bias-only tuning of a ViT (DP-BiTFiT).

Per-sample gradients of biases, norms and the head come from torch.func: vmap over grad, in chunks. Batches are drawn by
Poisson sampling, so that no two have the same size.
"""
import argparse
import math

import torch
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap
from transformers import ViTConfig, ViTForImageClassification


def parse_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=16)
    p.add_argument("--records", type=int, default=640)
    p.add_argument("--expected-batch", type=int, default=56)
    p.add_argument("--chunk", type=int, default=22)
    p.add_argument("--height", type=int, default=210)
    p.add_argument("--width", type=int, default=252)
    p.add_argument("--hidden", type=int, default=384)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--classes", type=int, default=37)
    p.add_argument("--clip-norm", type=float, default=0.8)
    p.add_argument("--noise", type=float, default=0.6)
    p.add_argument("--lr", type=float, default=2e-3)
    return p.parse_args()


def build_model(args):
    config = ViTConfig(hidden_size=args.hidden, num_hidden_layers=args.layers, num_attention_heads=args.hidden // 64,
                       intermediate_size=4 * args.hidden, image_size=(args.height, args.width), patch_size=14,
                       num_labels=args.classes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                       attn_implementation="eager")
    return ViTForImageClassification(config)


def split_parameters(model):
    """Bias terms, layer norms and the classifier are tuned; the rest stays as it is."""
    tuned, frozen = {}, {}
    for name, param in model.named_parameters():
        if name.endswith("bias") or "layernorm" in name or name.startswith("classifier"):
            tuned[name] = param.detach().clone()
        else:
            frozen[name] = param.detach()
    return tuned, frozen


class PoissonSampler:
    def __init__(self, n, expected, seed):
        self.n, self.rate = n, expected / n
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self):
        mask = torch.rand(self.n, generator=self.generator) < self.rate
        return mask.nonzero().squeeze(1)


def make_records(args):
    g = torch.Generator().manual_seed(8)
    labels = torch.randint(0, args.classes, (args.records,), generator=g)
    images = torch.randint(0, 256, (args.records, 3, args.height // 6, args.width // 6), generator=g, dtype=torch.uint8)
    shade = (labels * 6).to(torch.uint8)[:, None, None]
    images[:, 0] = images[:, 0] // 4 + shade // 2
    return images, labels


def load(images, index, args):
    x = images[index].to("cuda", non_blocking=True).float().div_(255)
    x = F.interpolate(x, size=(args.height, args.width), mode="bilinear", align_corners=False)
    return (x - 0.5) / 0.5


def main():
    args = parse_args()
    torch.manual_seed(8)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = build_model(args).to("cuda").eval()
    tuned, frozen = split_parameters(model)
    print("tuned %.3fM of %.1fM" % (sum(t.numel() for t in tuned.values()) / 1e6,
                                   sum(q.numel() for q in model.parameters()) / 1e6))

    def sample_loss(tuned, frozen, image, label):
        out = functional_call(model, (tuned, frozen), kwargs={"pixel_values": image[None]})
        return F.cross_entropy(out.logits, label[None])

    per_sample = vmap(grad_and_value(sample_loss), in_dims=(None, None, 0, 0), chunk_size=args.chunk)

    images, labels = make_records(args)
    holdout = torch.arange(args.records - 120, args.records)
    sampler = PoissonSampler(args.records - 120, args.expected_batch, 77)
    first = {k: torch.zeros_like(v) for k, v in tuned.items()}
    second = {k: torch.zeros_like(v) for k, v in tuned.items()}

    for step in range(1, args.steps + 1):
        index = sampler.draw()
        if len(index) == 0:
            continue
        x, y = load(images, index, args), labels[index].to("cuda")
        grads, losses = per_sample(tuned, frozen, x, y)
        norms = torch.stack([g.reshape(len(index), -1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (args.clip_norm / (norms + 1e-6)).clamp(max=1.0)
        lr = args.lr * 0.5 * (1 + math.cos(math.pi * (step - 1) / args.steps))
        for name, g in grads.items():
            total = torch.einsum("b,b...->...", factor, g)
            total += torch.randn_like(total) * args.noise * args.clip_norm
            total /= args.expected_batch
            first[name].mul_(0.9).add_(total, alpha=0.1)
            second[name].mul_(0.99).addcmul_(total, total, value=0.01)
            m, v = first[name] / (1 - 0.9 ** step), second[name] / (1 - 0.99 ** step)
            tuned[name] -= lr * m / (v.sqrt() + 1e-6)
        if step % 4 == 1 or step == args.steps:
            clipped = (factor < 1).float().mean().item()
            print(f"step {step} batch {len(index)} loss {losses.mean().item():.4f} clipped {clipped:.2f} lr {lr:.5f}")

    with torch.no_grad():
        hits = 0
        for part in holdout.split(50):
            out = functional_call(model, (tuned, frozen), kwargs={"pixel_values": load(images, part, args)})
            hits += (out.logits.argmax(-1).cpu() == labels[part]).sum().item()
    print(f"holdout accuracy {hits / len(holdout):.4f}")


if __name__ == "__main__":
    main()
