"""A DETR: residual backbone with frozen batch norm, encoder-decoder with object queries, Hungarian matching with scipy."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment


class FrozenBN(nn.Module):
    def __init__(self, c):
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("mean", 0.0), ("var", 1.0)):
            self.register_buffer(name, torch.full((c,), value))

    def forward(self, x):
        scale = self.weight * (self.var + 1e-5).rsqrt()
        return x * scale.view(1, -1, 1, 1) + (self.bias - self.mean * scale).view(1, -1, 1, 1)


class Bottleneck(nn.Module):
    def __init__(self, cin, mid, stride):
        super().__init__()
        cout = 4 * mid
        self.conv1, self.bn1 = nn.Conv2d(cin, mid, 1, bias=False), FrozenBN(mid)
        self.conv2, self.bn2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), FrozenBN(mid)
        self.conv3, self.bn3 = nn.Conv2d(mid, cout, 1, bias=False), FrozenBN(cout)
        self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), FrozenBN(cout)) if stride != 1 or cin != cout else None

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.down is None else self.down(x)
        return F.relu(y, inplace=True)


class Backbone(nn.Module):
    def __init__(self, width, depths):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), FrozenBN(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        stages, cin = [], width
        for i, n in enumerate(depths):
            mid = width * 2 ** i
            for j in range(n):
                stages.append(Bottleneck(cin, mid, 2 if j == 0 and i > 0 else 1))
                cin = 4 * mid
        self.stages, self.out = nn.Sequential(*stages), cin
        for q in list(self.stem.parameters()) + list(self.stages[:depths[0]].parameters()):
            q.requires_grad_(False)  # stem and first stage stay fixed, as in DETR

    def forward(self, x):
        return self.stages(self.stem(x))


class DETR(nn.Module):
    def __init__(self, classes, width, depths, d, layers, queries):
        super().__init__()
        self.backbone = Backbone(width, depths)
        self.proj = nn.Conv2d(self.backbone.out, d, 1)
        enc = nn.TransformerEncoderLayer(d, 8, 8 * d, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(enc, layers, enable_nested_tensor=False)
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(d, 8, 8 * d, 0.1, batch_first=True) for _ in range(layers))
        self.norm, self.query, self.d = nn.LayerNorm(d), nn.Embedding(queries, d), d
        self.cls = nn.Linear(d, classes + 1)
        self.box = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 4))

    def positions(self, mask):
        keep = (~mask).float()
        y, x = keep.cumsum(1), keep.cumsum(2)
        freq = 10000 ** (-torch.arange(0, self.d // 2, 2, device=mask.device) / (self.d // 2))
        parts = [torch.stack([(t[..., None] * freq).sin(), (t[..., None] * freq).cos()], -1).flatten(3) for t in (y, x)]
        return torch.cat(parts, -1).flatten(1, 2)

    def forward(self, images, mask):
        f = self.proj(self.backbone(images))
        small = F.interpolate(mask[:, None].float(), size=f.shape[-2:]).bool()[:, 0]
        pad = small.flatten(1)
        memory = self.encoder(f.flatten(2).transpose(1, 2) + self.positions(small), src_key_padding_mask=pad)
        h = self.query.weight.expand(images.size(0), -1, -1)
        outs = []
        for layer in self.decoder:
            h = layer(h, memory, memory_key_padding_mask=pad)
            outs.append(self.norm(h))
        h_all = torch.stack(outs)
        return self.cls(h_all), self.box(h_all).sigmoid()


def corners(b):
    return torch.cat([b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2], -1)


def giou(a, b):
    lt, rb = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    union = (a[:, 2:] - a[:, :2]).prod(-1)[:, None] + (b[:, 2:] - b[:, :2]).prod(-1)[None] - inter
    hull = (torch.maximum(a[:, None, 2:], b[None, :, 2:]) - torch.minimum(a[:, None, :2], b[None, :, :2])).clamp(min=0).prod(-1)
    return inter / (union + 1e-6) - (hull - union) / (hull + 1e-6)


@torch.no_grad()
def match(logits, boxes, targets):
    prob, flat = logits.flatten(0, 1).softmax(-1), boxes.flatten(0, 1)
    ids, tgt = torch.cat([t["labels"] for t in targets]), torch.cat([t["boxes"] for t in targets])
    cost = 5 * torch.cdist(flat, tgt, p=1) - prob[:, ids] - 2 * giou(corners(flat), corners(tgt))
    cost = cost.view(*logits.shape[:2], -1).cpu()
    sizes = [len(t["labels"]) for t in targets]
    return [linear_sum_assignment(c[i].numpy()) for i, c in enumerate(cost.split(sizes, -1))]


def set_loss(logits, boxes, targets, empty_weight):
    pairs = match(logits, boxes, targets)
    dev = logits.device
    b = torch.cat([torch.full((len(s),), i) for i, (s, _) in enumerate(pairs)]).to(dev)
    src = torch.cat([torch.as_tensor(s) for s, _ in pairs]).to(dev)
    lab = torch.cat([t["labels"][torch.as_tensor(j).to(dev)] for t, (_, j) in zip(targets, pairs)])
    tgt = torch.cat([t["boxes"][torch.as_tensor(j).to(dev)] for t, (_, j) in zip(targets, pairs)])
    classes = torch.full(logits.shape[:2], logits.size(-1) - 1, device=dev)
    classes[b, src] = lab
    picked = boxes[b, src]
    l1 = F.l1_loss(picked, tgt, reduction="sum") / len(tgt)
    gi = (1 - giou(corners(picked), corners(tgt)).diag()).mean()
    return F.cross_entropy(logits.transpose(1, 2), classes, empty_weight) + 5 * l1 + 2 * gi


def sample_batch(n, long_side, classes, device):
    sizes = [(int(torch.randint(long_side * 5 // 8, long_side * 3 // 4 + 1, (1,))), int(torch.randint(long_side * 3 // 4, long_side + 1, (1,)))) for _ in range(n)]
    H, W = max(s[0] for s in sizes), max(s[1] for s in sizes)
    images, mask = torch.zeros(n, 3, H, W), torch.ones(n, H, W, dtype=torch.bool)
    targets = []
    for i, (h, w) in enumerate(sizes):
        images[i, :, :h, :w] = torch.randn(3, h, w)
        mask[i, :h, :w] = False
        k = int(torch.randint(1, 21, (1,)))
        boxes = torch.cat([0.2 + 0.6 * torch.rand(k, 2), 0.05 + 0.3 * torch.rand(k, 2)], 1)
        targets.append({"labels": torch.randint(0, classes, (k,)).to(device), "boxes": boxes.to(device)})
    return images.to(device), mask.to(device), targets


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(batch=4, steps=12, long_side=1088, classes=80, width=64, d=256, layers=6, queries=100).items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--depths", type=int, nargs=4, default=[3, 4, 6, 3])
    args = p.parse_args()
    torch.manual_seed(5)
    device = torch.device("cuda")
    model = DETR(args.classes, args.width, args.depths, args.d, args.layers, args.queries).to(device)
    back = [q for n, q in model.named_parameters() if n.startswith("backbone") and q.requires_grad]
    head = [q for n, q in model.named_parameters() if not n.startswith("backbone")]
    opt = torch.optim.AdamW([{"params": back, "lr": 1e-5}, {"params": head}], lr=1e-4, weight_decay=1e-4)
    weight = torch.ones(args.classes + 1, device=device)
    weight[-1] = 0.1
    for step in range(args.steps):
        images, mask, targets = sample_batch(args.batch, args.long_side, args.classes, device)
        logits, boxes = model(images, mask)
        losses = [set_loss(l, b, targets, weight) for l, b in zip(logits, boxes)]
        opt.zero_grad()
        sum(losses).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        print(f"step {step} loss {losses[-1].item():.4f} aux {sum(losses[:-1]).item():.4f} image {tuple(images.shape[-2:])}")


if __name__ == "__main__":
    main()
