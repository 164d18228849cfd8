"""CTC fine-tuning of wav2vec 2.0 with gradient checkpointing and a frozen convolutional front end.

Utterances of 2 to 9 seconds are padded to the longest of the batch; evaluation is greedy decoding with a token error rate.
"""
import argparse
import os
import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

RATE = 16000


class Utterances(Dataset):
    """Every character is a tone of its own; an utterance is a run of tones and noise."""

    def __init__(self, n, vocab, seconds, seed):
        self.n, self.vocab, self.seconds, self.seed = n, vocab, seconds, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng((self.seed, i))
        length = int(rng.uniform(*self.seconds) * RATE)
        chars = rng.integers(1, self.vocab, size=max(3, length // (RATE // 9)))
        freq = np.repeat(180.0 + 55.0 * chars, length // len(chars) + 1)[:length]
        wave = np.sin(2 * np.pi * np.cumsum(freq) / RATE) + 0.1 * rng.standard_normal(length)
        wave = (wave - wave.mean()) / (wave.std() + 1e-7)
        return torch.from_numpy(wave.astype(np.float32)), torch.from_numpy(chars)


def collate(batch):
    waves, chars = zip(*batch)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(w), dtype=torch.long) for w in waves], batch_first=True)
    values = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence(chars, batch_first=True, padding_value=-100)
    return {"input_values": values, "attention_mask": mask, "labels": labels}


def edit_distance(a, b):
    row = np.arange(len(b) + 1)
    for i, x in enumerate(a, 1):
        prev, row = row, np.empty_like(row)
        row[0] = i
        for j, y in enumerate(b, 1):
            row[j] = min(prev[j] + 1, row[j - 1] + 1, prev[j - 1] + (x != y))
    return int(row[-1])


def greedy(logits, lengths):
    out = []
    for ids, n in zip(logits.argmax(-1).cpu(), lengths.tolist()):
        ids = torch.unique_consecutive(ids[:n])
        out.append(ids[ids != 0].tolist())
    return out


def tri_stage(step, total, warm=0.1, hold=0.4, final=0.05):
    t = step / total
    if t < warm:
        return max(0.05, t / warm)
    if t < warm + hold:
        return 1.0
    return final ** ((t - warm - hold) / (1 - warm - hold))


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    errors = total = 0
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(input_values=batch["input_values"], attention_mask=batch["attention_mask"]).logits
        lengths = model._get_feat_extract_output_lengths(batch["attention_mask"].sum(-1))
        for hyp, ref in zip(greedy(logits, lengths), batch["labels"].cpu()):
            ref = ref[ref >= 0].tolist()
            errors += edit_distance(hyp[:120], ref)
            total += len(ref)
    model.train()
    return errors / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--layers", type=int, default=12)
    ap.add_argument("--hidden", type=int, default=768)
    ap.add_argument("--heads", type=int, default=12)
    ap.add_argument("--vocab", type=int, default=32)
    ap.add_argument("--batch", type=int, default=14)
    ap.add_argument("--n-train", type=int, default=490)
    ap.add_argument("--n-val", type=int, default=28)
    ap.add_argument("--seconds", type=float, nargs=2, default=[2.0, 9.0])
    ap.add_argument("--lr", type=float, default=1e-4)
    ap.add_argument("--freeze-encoder-steps", type=int, default=8, help="train only the head for so many steps")
    args = ap.parse_args()

    torch.manual_seed(404)
    np.random.seed(404)
    torch.backends.cudnn.allow_tf32 = True
    device = torch.device("cuda")
    config = Wav2Vec2Config(
        hidden_size=args.hidden, num_hidden_layers=args.layers, num_attention_heads=args.heads,
        intermediate_size=4 * args.hidden, vocab_size=args.vocab, pad_token_id=0, feat_extract_norm="layer",
        do_stable_layer_norm=True, conv_bias=True, ctc_loss_reduction="mean", ctc_zero_infinity=True,
        mask_time_prob=0.065, layerdrop=0.0)
    model = Wav2Vec2ForCTC(config)
    model.freeze_feature_encoder()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.to(device).train()

    train = DataLoader(Utterances(args.n_train, args.vocab, args.seconds, 1), batch_size=args.batch, shuffle=True,
                       collate_fn=collate, num_workers=2, drop_last=True, pin_memory=True)
    val = DataLoader(Utterances(args.n_val, args.vocab, args.seconds, 2), batch_size=args.batch, collate_fn=collate)
    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in trainable) / 1e6:.1f} M trainable parameters")
    optimizer = torch.optim.AdamW(trainable, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.005)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: tri_stage(s, len(train)))

    for p in model.wav2vec2.encoder.parameters():
        p.requires_grad_(False)
    for step, batch in enumerate(train):
        if step == args.freeze_encoder_steps:
            for p in model.wav2vec2.encoder.parameters():
                p.requires_grad_(True)
        batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trainable, 2.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 5 == 0:
            print(f"step {step:3d} samples {batch['input_values'].shape[1]} loss {loss.item():.3f} norm {norm.item():.2f}")
    print(f"token error rate {evaluate(model, val, device):.3f}")

    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        print("saved:", sorted(os.listdir(d)))


if __name__ == "__main__":
    main()
