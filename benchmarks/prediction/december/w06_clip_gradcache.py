"""Contrastive training of CLIP with a large effective batch by gradient caching.

Pass 1 embeds every chunk without a graph; the loss over the whole batch gives gradients for the embeddings;
pass 2 embeds each chunk again with a graph and feeds those gradients in. bf16 autocast, AdamW with foreach=False.
"""
import argparse
import math
import os
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPConfig, CLIPModel


class Captions(Dataset):
    """Images of a texture with a caption whose words tell the texture."""

    def __init__(self, n, size, length, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        self.n, self.size, self.length, self.vocab = n, size, length, vocab
        self.codes = torch.randint(2, vocab - 2, (n, length), generator=g)
        self.words = torch.randint(6, length - 1, (n,), generator=g)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ids = self.codes[i].clone()
        ids[self.words[i]] = self.vocab - 1  # end of text
        ids[self.words[i] + 1:] = 0
        mask = (torch.arange(self.length) <= self.words[i]).long()
        small = torch.frombuffer(bytearray(self.codes[i, :12].numpy().tobytes()), dtype=torch.uint8).float().view(1, 3, 4, 8)
        image = F.interpolate(small, size=(self.size, self.size)).squeeze(0).to(torch.uint8)
        return image, ids, mask


def build(args):
    text = dict(vocab_size=args.vocab, hidden_size=args.text_width, intermediate_size=4 * args.text_width,
                num_hidden_layers=args.text_layers, num_attention_heads=args.text_width // 64,
                max_position_embeddings=args.length, eos_token_id=args.vocab - 1, bos_token_id=1, pad_token_id=0)
    vision = dict(hidden_size=args.vision_width, intermediate_size=4 * args.vision_width, num_hidden_layers=args.vision_layers,
                  num_attention_heads=args.vision_width // 64, image_size=args.image, patch_size=16)
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=args.project))


def embed(model, pixels, ids, mask):
    """Normalised embeddings of both towers in fp32."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        v = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
        t = model.text_projection(model.text_model(input_ids=ids, attention_mask=mask).pooler_output)
    return F.normalize(v.float(), dim=-1), F.normalize(t.float(), dim=-1)


def contrastive(v, t, scale):
    logits = scale.exp() * v @ t.t()
    target = torch.arange(len(v), device=v.device)
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)), logits


def cached_step(model, batch, chunk):
    image, ids, mask = batch
    pixels = image.float().div(127.5).sub(1.0)
    pieces = list(zip(pixels.split(chunk), ids.split(chunk), mask.split(chunk)))
    with torch.no_grad():
        vs, ts = zip(*(embed(model, *p) for p in pieces))
    v, t = torch.cat(vs).requires_grad_(), torch.cat(ts).requires_grad_()
    loss, _ = contrastive(v, t, model.logit_scale)
    loss.backward()  # to v, t and the temperature
    for p, gv, gt in zip(pieces, v.grad.split(chunk), t.grad.split(chunk)):
        ev, et = embed(model, *p)
        torch.autograd.backward([ev, et], [gv, gt])
    return loss.detach()


@torch.no_grad()
def recall_at_5(model, loader, device):
    model.eval()
    vs, ts = zip(*(embed(model, i.to(device).float().div(127.5).sub(1.0), x.to(device), m.to(device)) for i, x, m in loader))
    v, t = torch.cat(vs), torch.cat(ts)
    top = (v @ t.t()).topk(5, dim=-1).indices
    model.train()
    return (top == torch.arange(len(v), device=device).unsqueeze(-1)).any(-1).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--image", type=int, default=208)
    ap.add_argument("--length", type=int, default=48)
    ap.add_argument("--vocab", type=int, default=32000)
    ap.add_argument("--vision-width", type=int, default=640)
    ap.add_argument("--vision-layers", type=int, default=12)
    ap.add_argument("--text-width", type=int, default=512)
    ap.add_argument("--text-layers", type=int, default=8)
    ap.add_argument("--project", type=int, default=384)
    ap.add_argument("--batch", type=int, default=360)
    ap.add_argument("--chunk", type=int, default=56)
    ap.add_argument("--steps", type=int, default=16)
    ap.add_argument("--lr", type=float, default=5e-4)
    args = ap.parse_args()
    torch.manual_seed(5)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda")

    model = build(args).to(device).train()
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.2}, {"params": plain, "weight_decay": 0.0}],
                            lr=args.lr, betas=(0.9, 0.98), eps=1e-6, foreach=False)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=args.lr, total_steps=args.steps, pct_start=0.2)
    train = DataLoader(Captions(args.batch * args.steps, args.image, args.length, args.vocab, 1), args.batch, shuffle=True,
                       num_workers=2, pin_memory=True, drop_last=True)
    valid = DataLoader(Captions(310, args.image, args.length, args.vocab, 2), batch_size=124)

    for step, batch in enumerate(train, 1):
        batch = [b.to(device, non_blocking=True) for b in batch]
        loss = cached_step(model, batch, args.chunk)
        gnorm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        sched.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        if step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f} grad {gnorm.item():.3f} temperature {model.logit_scale.exp().item():.2f}", flush=True)
    print(f"recall@5 {recall_at_5(model, valid, device):.4f}")
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        print("saved", sum(os.path.getsize(os.path.join(tmp, f)) for f in os.listdir(tmp)) // 2 ** 20, "MiB")


if __name__ == "__main__":
    main()
