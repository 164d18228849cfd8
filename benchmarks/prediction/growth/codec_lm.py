"""Causal convolutional language model over codec tokens, with samples after each epoch. Needs a GPU."""

import argparse
import copy
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

V, D, EOS, PAD = 8192, 512, 1, 0


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.depthwise = nn.Conv1d(D, D, 7, groups=D, padding=6)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        t = x.size(1)
        y = self.depthwise(self.norm(x).transpose(1, 2))[..., :t].transpose(1, 2)
        gain = torch.tensor(0.7071, device=x.device)
        return x + gain * self.down(F.gelu(self.up(y)))


class CodecLM(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.tokens = nn.Embedding(V, D)
        self.stem = nn.Conv1d(D, D, 5, padding=4)
        self.blocks = nn.ModuleList(Mixer() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.tokens(ids)
        x = self.stem(x.transpose(1, 2))[..., : ids.size(1)].transpose(1, 2)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.head(self.norm(x))


@torch.no_grad()
def sample(model, n, shortest, longest):
    """Draws n sequences; each goes on until its end token, none ends before `shortest` tokens."""
    model.eval()
    ids = torch.randint(2, V, (n, 16), device="cuda")
    ended = torch.zeros(n, dtype=torch.bool, device="cuda")
    for step in range(longest):
        logits = model(ids)
        last = logits[:, -1].float()
        if step < shortest:
            last[:, EOS] = float("-inf")
        new = torch.multinomial(last.softmax(-1), 1).squeeze(1)
        new = torch.where(ended, torch.full_like(new, PAD), new)
        ended |= new == EOS
        ids = torch.cat((ids, new[:, None]), 1)
        if ended.all():
            break
    model.train()
    return ids


def batches(n, batch, length):
    g = torch.Generator().manual_seed(5)
    for _ in range(n):
        ids = torch.randint(2, V, (batch, length + 1), generator=g)
        yield ids[:, :-1], ids[:, 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--samples", type=int, default=96)
    args = ap.parse_args()
    torch.manual_seed(0)
    model = CodecLM().cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    best, best_loss = None, float("inf")
    for epoch in range(args.epochs):
        total = 0.0
        for ids, want in batches(4, args.batch, 256):
            ids, want = ids.cuda(non_blocking=True), want.cuda(non_blocking=True)
            logits = model(ids)
            loss = F.cross_entropy(logits.flatten(0, 1), want.flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            total += loss.item()
        hits = (logits.argmax(-1) == want).float().mean().item()
        print(f"epoch {epoch}: loss {total / 4:.3f}, norm {norm.item():.2f}, hits {hits:.4f}")
        if total < best_loss:
            best, best_loss = copy.deepcopy(model), total
        if args.samples:
            out = sample(model, args.samples, shortest=200, longest=320)
            print("sampled", tuple(out.shape))
    torch.save(best.state_dict(), os.path.join(tempfile.mkdtemp(), "best.pt"))


if __name__ == "__main__":
    main()
