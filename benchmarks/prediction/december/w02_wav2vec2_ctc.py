"""Phoneme recognition: Wav2Vec2 encoder with a CTC head, frozen convolutional feature encoder, SpecAugment, bf16 autocast.

Utterances of 2 to 9 seconds, sorted into buckets; tri-stage learning rate; greedy decoding and phoneme error rate at the end.
"""
import argparse
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

RATE = 16000


class ToneSpeech(Dataset):
    """Sequences of 'phonemes', each a short tone of its own pitch in noise."""

    def __init__(self, n, n_phones, low_s, high_s, seed):
        rng = np.random.default_rng(seed)
        self.n_phones, self.items = n_phones, []
        for _ in range(n):
            seconds = rng.uniform(low_s, high_s)
            phones = rng.integers(1, n_phones, max(2, int(seconds * 5)))
            self.items.append((int(seconds * RATE), phones))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        samples, phones = self.items[i]
        per = samples // len(phones)
        freq = torch.from_numpy(120.0 + 45.0 * phones).float().repeat_interleave(per)
        wave = torch.sin(2 * math.pi * torch.cumsum(freq, 0) / RATE) + 0.1 * torch.randn(freq.numel())
        return (wave - wave.mean()) / wave.std(), torch.from_numpy(phones)


def pad_batch(batch):
    longest = max(len(w) for w, _ in batch)
    wave = torch.zeros(len(batch), longest)
    mask = torch.zeros(len(batch), longest, dtype=torch.long)
    labels = torch.full((len(batch), max(len(p) for _, p in batch)), -100, dtype=torch.long)
    for k, (w, p) in enumerate(batch):
        wave[k, : len(w)], mask[k, : len(w)], labels[k, : len(p)] = w, 1, p
    return wave, mask, labels


def bucket_batches(ds, batch_size, seed):
    order = sorted(range(len(ds)), key=lambda i: ds.items[i][0])
    chunks = [order[i: i + batch_size] for i in range(0, len(order), batch_size)]
    np.random.default_rng(seed).shuffle(chunks)
    return chunks


def tri_stage(step, total, warm=0.1, hold=0.4, floor=0.05):
    x = step / total
    if x < warm:
        return max(1e-2, x / warm)
    if x < warm + hold:
        return 1.0
    return math.exp(math.log(floor) * (x - warm - hold) / (1 - warm - hold))


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        prev, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + (x != y))
    return row[-1]


@torch.inference_mode()
def phoneme_error_rate(model, loader, device):
    model.eval()
    errors = total = 0
    for wave, mask, labels in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(wave.to(device), attention_mask=mask.to(device)).logits
        frames = model._get_feat_extract_output_lengths(mask.sum(-1))
        for hyp, n, ref in zip(logits.argmax(-1).cpu(), frames, labels):
            hyp = torch.unique_consecutive(hyp[: int(n)]).tolist()
            ref = ref[ref >= 0].tolist()
            errors += edit_distance([h for h in hyp if h], ref)
            total += len(ref)
    model.train()
    return errors / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--phones", type=int, default=46)
    ap.add_argument("--hidden", type=int, default=768)
    ap.add_argument("--layers", type=int, default=12)
    ap.add_argument("--conv-dim", type=int, default=512)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--utterances", type=int, default=352)
    ap.add_argument("--min-seconds", type=float, default=2.0)
    ap.add_argument("--max-seconds", type=float, default=9.0)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=2e-4)
    args = ap.parse_args()
    torch.manual_seed(7)
    np.random.seed(7)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    device = "cuda"

    config = Wav2Vec2Config(vocab_size=args.phones, hidden_size=args.hidden, num_hidden_layers=args.layers,
                            num_attention_heads=args.hidden // 64, intermediate_size=4 * args.hidden,
                            conv_dim=(args.conv_dim,) * 7, feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True,
                            mask_time_prob=0.06, mask_time_length=8, mask_feature_prob=0.01, mask_feature_length=24,
                            layerdrop=0.0, ctc_loss_reduction="mean", ctc_zero_infinity=True, pad_token_id=0)
    model = Wav2Vec2ForCTC(config).to(device)
    model.freeze_feature_encoder()
    model.train()
    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"trainable {sum(p.numel() for p in trainable) / 1e6:.1f} M of {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M")

    train = ToneSpeech(args.utterances, args.phones, args.min_seconds, args.max_seconds, 0)
    valid = ToneSpeech(args.utterances // 8, args.phones, args.min_seconds, args.max_seconds + 3, 1)
    steps = args.epochs * math.ceil(len(train) / args.batch_size)
    opt = torch.optim.AdamW(trainable, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.005)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: tri_stage(s, steps))

    for epoch in range(args.epochs):
        loader = DataLoader(train, batch_sampler=bucket_batches(train, args.batch_size, epoch), collate_fn=pad_batch,
                            num_workers=2, pin_memory=True)
        running = 0.0
        for k, (wave, mask, labels) in enumerate(loader):
            wave, mask, labels = (t.to(device, non_blocking=True) for t in (wave, mask, labels))
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(wave, attention_mask=mask, labels=labels).loss
            opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(trainable, 5.0)
            opt.step()
            sched.step()
            running += loss.item()
            if k % 5 == 0:
                print(f"epoch {epoch} batch {k} seconds {wave.shape[1] / RATE:.2f} loss {loss.item():.3f} |g| {norm.item():.2f}")
        loader = DataLoader(valid, batch_size=13, collate_fn=pad_batch)
        print(f"epoch {epoch}: mean loss {running / (k + 1):.3f}, PER {phoneme_error_rate(model, loader, device):.3f}")

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        print("saved", sorted(os.listdir(folder)))


if __name__ == "__main__":
    main()
