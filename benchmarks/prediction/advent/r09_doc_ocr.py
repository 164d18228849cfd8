"""OCR-free document parsing: Swin encoder + BART-style decoder, trained with Accelerate, evaluated by beam search."""
import argparse
import logging

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import DonutSwinConfig, DonutSwinModel, MBartConfig, MBartForCausalLM, VisionEncoderDecoderModel, get_cosine_schedule_with_warmup

logger = logging.getLogger("docparse")
PAD, BOS, EOS, BASE = 1, 0, 2, 4


class Receipts(Dataset):
    """Pages whose stripes encode a token sequence, with variable numbers of lines."""

    def __init__(self, n, size, vocab, max_len, seed):
        self.n, self.size, self.vocab, self.max_len, self.seed = n, size, vocab, max_len, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng([self.seed, i])
        L = int(rng.integers(self.max_len // 3, self.max_len - 2))
        toks = rng.integers(BASE, self.vocab, L)
        h, w = self.size
        page = np.full((h, w), 0.95, np.float32)
        per_row, cell = 16, w // 16
        for j, t in enumerate(toks):
            y, x = (j // per_row) * 12 + 6, (j % per_row) * cell
            if y + 10 >= h:
                break
            bits = np.array([(int(t) >> b) & 1 for b in range(cell)], np.float32)
            page[y:y + 10, x:x + cell] -= 0.8 * bits
        page += rng.normal(0, 0.02, page.shape)
        return {"pixel": torch.from_numpy(page.astype(np.float32)).expand(3, -1, -1), "tokens": torch.from_numpy(toks)}


def collate(items):
    L = max(len(i["tokens"]) for i in items) + 1
    labels = torch.full((len(items), L), -100)
    for r, it in enumerate(items):
        n = len(it["tokens"])
        labels[r, :n] = it["tokens"]
        labels[r, n] = EOS
    return {"pixel_values": torch.stack([i["pixel"] for i in items]), "labels": labels}


def build(args):
    enc = DonutSwinModel(DonutSwinConfig(image_size=list(args.image), patch_size=4, embed_dim=args.embed, depths=args.depths,
                                         num_heads=[args.embed // 32 * 2 ** k for k in range(4)], window_size=args.window))
    dec = MBartForCausalLM(MBartConfig(
        vocab_size=args.vocab, d_model=args.embed * 8, decoder_layers=args.dec_layers, decoder_attention_heads=8, decoder_ffn_dim=args.embed * 24,
        max_position_embeddings=args.max_len + 8, is_decoder=True, add_cross_attention=True, add_final_layer_norm=True, scale_embedding=True,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, forced_eos_token_id=None))
    model = VisionEncoderDecoderModel(encoder=enc, decoder=dec)
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = BOS
    model.config.pad_token_id = model.generation_config.pad_token_id = PAD
    model.config.eos_token_id = model.generation_config.eos_token_id = EOS
    if args.freeze_stages:
        enc.embeddings.requires_grad_(False)
        for s in enc.encoder.layers[: args.freeze_stages]:
            s.requires_grad_(False)
    return model


def edit_distance(a, b):
    prev = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        cur = [i]
        for j, y in enumerate(b, 1):
            cur.append(min(prev[j] + 1, cur[-1] + 1, prev[j - 1] + (x != y)))
        prev = cur
    return prev[-1]


def evaluate(acc, model, loader, args):
    model.eval()
    dist, total = 0, 0
    for batch in loader:
        with torch.no_grad(), acc.autocast():
            out = acc.unwrap_model(model).generate(pixel_values=batch["pixel_values"], num_beams=args.beams, max_new_tokens=args.gen_len,
                                                   min_new_tokens=args.gen_len, do_sample=False)
        for hyp, ref in zip(out.tolist(), batch["labels"].tolist()):
            ref = [t for t in ref if t >= BASE]
            hyp = [t for t in hyp if t >= BASE]
            dist, total = dist + edit_distance(hyp, ref), total + len(ref)
    model.train()
    return dist / max(total, 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    p.add_argument("--image", type=int, nargs=2, default=(640, 480))
    p.add_argument("--window", type=int, default=5)
    p.add_argument("--embed", type=int, default=96)
    p.add_argument("--depths", type=int, nargs=4, default=(2, 2, 10, 2))
    p.add_argument("--dec-layers", type=int, default=4)
    p.add_argument("--vocab", type=int, default=21001)
    p.add_argument("--max-len", type=int, default=384)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--pages", type=int, default=1200)
    p.add_argument("--eval-pages", type=int, default=24)
    p.add_argument("--beams", type=int, default=4)
    p.add_argument("--gen-len", type=int, default=120)
    p.add_argument("--freeze-stages", type=int, default=0)
    p.add_argument("--workers", type=int, default=6)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    set_seed(31)
    acc = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=args.accum, cpu=args.device == "cpu")
    model = build(args)
    logger.info("%.1fM parameters", sum(q.numel() for q in model.parameters()) / 1e6)
    train = DataLoader(Receipts(args.pages, args.image, args.vocab, args.max_len, 1), args.batch, shuffle=True, collate_fn=collate,
                       num_workers=args.workers, drop_last=True, generator=torch.Generator().manual_seed(2))
    test = DataLoader(Receipts(args.eval_pages, args.image, args.vocab, args.max_len, 2), args.batch, collate_fn=collate)
    opt = torch.optim.AdamW([q for q in model.parameters() if q.requires_grad], lr=2e-4, weight_decay=0.01)
    sched = get_cosine_schedule_with_warmup(opt, 10, len(train) // args.accum)
    model, opt, train, test, sched = acc.prepare(model, opt, train, test, sched)
    model.train()
    for step, batch in enumerate(train):
        with acc.accumulate(model):
            loss = model(**batch).loss
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
        if step % 20 == 0:
            logger.info("step %d loss %.3f target length %d", step, loss.item(), batch["labels"].shape[1])
    logger.info("normalised edit distance %.3f", evaluate(acc, model, test, args))


if __name__ == "__main__":
    main()
