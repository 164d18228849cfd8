"""Anomaly detection without training: DINOv2 patch features, greedy coreset, nearest-neighbour scores (fp16 inference).

Every inspected part has pictures of its own size, so the batches come in several shapes.
"""
import argparse
import os
import tempfile
import time

import torch
import torch.nn.functional as F
from transformers import Dinov2Config, Dinov2Model

PARTS = {"bracket": (392, 392), "cable": (518, 364), "lens": (322, 602), "board": (574, 574)}


def pictures(part, n, seed, defects):
    """Periodic texture per part; a defect is a bright smear. Returns uint8 images and defect flags."""
    h, w = PARTS[part]
    g = torch.Generator().manual_seed(seed)
    yy = torch.arange(h).view(1, 1, h, 1) / 23.0
    xx = torch.arange(w).view(1, 1, 1, w) / 31.0
    phase = torch.rand(n, 3, 1, 1, generator=g)
    x = 0.5 + 0.25 * torch.sin(yy + 6.28 * phase) * torch.cos(xx) + 0.04 * torch.randn(n, 1, h, w, generator=g)
    flags = torch.zeros(n, dtype=torch.bool)
    if defects:
        flags = torch.rand(n, generator=g) < 0.5
        for i in flags.nonzero().flatten().tolist():
            top = int(torch.randint(0, h - 60, (1,), generator=g))
            left = int(torch.randint(0, w - 60, (1,), generator=g))
            x[i, :, top:top + 40, left:left + 55] += 0.5
    return (x.clamp(0, 1) * 255).to(torch.uint8), flags


def preprocess(images):
    x = images.to("cuda", non_blocking=True).float() / 255
    mean = torch.tensor([0.485, 0.456, 0.406], device="cuda").view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225], device="cuda").view(1, 3, 1, 1)
    return ((x - mean) / std).half()


def patch_features(model, images, layers, patch):
    """Mean of several layers' patch tokens, smoothed over 3 x 3 neighbours and normalised."""
    x = preprocess(images)
    h, w = x.shape[2] // patch, x.shape[3] // patch
    hidden = model(pixel_values=x, output_hidden_states=True).hidden_states
    tokens = torch.stack([hidden[i][:, 1:] for i in layers]).mean(0)
    grid = tokens.transpose(1, 2).reshape(len(x), -1, h, w)
    grid = F.avg_pool2d(grid, 3, stride=1, padding=1, count_include_pad=False)
    return F.normalize(grid.flatten(2).transpose(1, 2).float(), dim=-1), (h, w)


def greedy_coreset(bank, keep, projected, seed):
    """k-centre greedy selection on a random projection."""
    g = torch.Generator("cuda").manual_seed(seed)
    proj = torch.randn(bank.shape[1], projected, generator=g, device="cuda") / projected ** 0.5
    z = bank @ proj
    chosen = torch.empty(keep, dtype=torch.long, device="cuda")
    chosen[0] = 0
    distance = (z - z[0]).square().sum(1)
    for i in range(1, keep):
        nxt = distance.argmax()
        chosen[i] = nxt
        distance = torch.minimum(distance, (z - z[nxt]).square().sum(1))
    return bank[chosen]


def nearest(queries, bank, neighbours, chunk):
    out = []
    for q in queries.split(chunk):
        out.append(torch.cdist(q, bank).topk(neighbours, dim=1, largest=False).values)
    return torch.cat(out)


def score_batch(model, images, bank, args, patch):
    feats, (h, w) = patch_features(model, images, args.feature_layers, patch)
    dist = nearest(feats.flatten(0, 1), bank, args.neighbours, args.chunk)
    weight = 1 - dist[:, 0].exp() / dist.exp().sum(1)
    heat = (dist[:, 0] * (0.5 + weight)).view(len(images), 1, h, w)
    heat = F.interpolate(heat, size=images.shape[-2:], mode="bilinear", align_corners=False)
    return heat.flatten(1).topk(200, dim=1).values.mean(1), heat.squeeze(1)


def auroc(scores, flags):
    pos, neg = scores[flags], scores[~flags]
    if len(pos) == 0 or len(neg) == 0:
        return float("nan")
    return ((pos[:, None] > neg[None]).float() + 0.5 * (pos[:, None] == neg[None]).float()).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--hidden", type=int, default=768)
    ap.add_argument("--layers", type=int, default=12)
    ap.add_argument("--heads", type=int, default=12)
    ap.add_argument("--feature-layers", type=int, nargs="+", default=[6, 9, 12])
    ap.add_argument("--n-good", type=int, default=64)
    ap.add_argument("--n-test", type=int, default=75)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--coreset", type=float, default=0.05)
    ap.add_argument("--projected", type=int, default=128)
    ap.add_argument("--neighbours", type=int, default=5)
    ap.add_argument("--chunk", type=int, default=20000)
    args = ap.parse_args()

    torch.manual_seed(2)
    config = Dinov2Config(hidden_size=args.hidden, num_hidden_layers=args.layers, num_attention_heads=args.heads,
                          image_size=518, patch_size=14)
    model = Dinov2Model(config).half().to("cuda").eval()
    results = {}
    with torch.inference_mode(), tempfile.TemporaryDirectory() as out_dir:
        for number, part in enumerate(PARTS):
            start = time.time()
            good, _ = pictures(part, args.n_good, 10 + number, defects=False)
            bank = torch.cat([patch_features(model, b, args.feature_layers, 14)[0].flatten(0, 1)
                              for b in good.split(args.batch)])
            full = len(bank)
            bank = greedy_coreset(bank, int(full * args.coreset), args.projected, seed=number)
            test, flags = pictures(part, args.n_test, 50 + number, defects=True)
            scores, maps = [], []
            for images in test.split(args.batch):
                s, heat = score_batch(model, images, bank, args, 14)
                scores.append(s.cpu())
                maps.append(heat.half().cpu())
            scores = torch.cat(scores)
            torch.save({"scores": scores, "maps": torch.cat(maps)}, os.path.join(out_dir, f"{part}.pt"))
            results[part] = auroc(scores, flags)
            print(f"{part} {PARTS[part]}: {full} patches -> bank {len(bank)}, AUROC {results[part]:.3f}, "
                  f"{time.time() - start:.1f} s")
    print(f"mean AUROC {sum(results.values()) / len(results):.3f}")


if __name__ == "__main__":
    main()
