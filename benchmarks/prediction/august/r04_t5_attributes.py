"""T5 seq2seq in fp32 with Adafactor: normalise synthetic product descriptions into attribute strings."""
import argparse
import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor


class Descriptions(Dataset):
    """Source: noise with key tokens strewn in. Target: the key tokens in sorted order."""

    KEY_LOW, KEY_HIGH = 200, 1200

    def __init__(self, size, vocab, src_max, tgt_max, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.size, self.vocab = size, vocab
        self.src_len = torch.randint(src_max // 2, src_max, (size,), generator=self.g)
        self.tgt_len = torch.randint(tgt_max // 3, tgt_max, (size,), generator=self.g)
        self.examples = [self._make(int(s), int(t)) for s, t in zip(self.src_len, self.tgt_len)]

    def _make(self, s, t):
        src = torch.randint(1200, self.vocab - 100, (s,), generator=self.g)
        keys = torch.randint(self.KEY_LOW, self.KEY_HIGH, (t,), generator=self.g)
        where = torch.randperm(s, generator=self.g)[:t]
        src[where] = keys[: len(where)]
        src[-1] = 1
        tgt = torch.cat([keys.sort().values, torch.tensor([1])])
        return src, tgt

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return self.examples[i]


def collate(batch):
    src = torch.nn.utils.rnn.pad_sequence([s for s, _ in batch], batch_first=True, padding_value=0)
    tgt = torch.nn.utils.rnn.pad_sequence([t for _, t in batch], batch_first=True, padding_value=-100)
    return {"input_ids": src, "attention_mask": src.ne(0).long(), "labels": tgt}


def run_epoch(model, loader, optimizer, clip, log_every):
    model.train()
    seen = 0.0
    for i, batch in enumerate(loader):
        batch = {k: v.to("cuda") for k, v in batch.items()}
        loss = model(**batch).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        seen += loss.item()
        if i % log_every == 0:
            s, t = batch["input_ids"].shape[1], batch["labels"].shape[1]
            print(f"  batch {i:3d} src {s} tgt {t} loss {loss.item():.4f}")
    return seen / len(loader)


@torch.no_grad()
def evaluate(model, loader, gen_tokens):
    model.eval()
    loss, hits, total = 0.0, 0, 0
    for j, batch in enumerate(loader):
        batch = {k: v.to("cuda") for k, v in batch.items()}
        loss += model(**batch).loss.item()
        if j == 0:
            out = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
                                 min_new_tokens=gen_tokens, max_new_tokens=gen_tokens, num_beams=2)
            width = min(out.shape[1] - 1, batch["labels"].shape[1])
            ref = batch["labels"][:, :width]
            valid = ref.ne(-100)
            hits += (out[:, 1:width + 1].eq(ref) & valid).sum().item()
            total += valid.sum().item()
    return loss / len(loader), hits / max(total, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=18)
    ap.add_argument("--train-size", type=int, default=324)
    ap.add_argument("--src-max", type=int, default=300)
    ap.add_argument("--tgt-max", type=int, default=110)
    ap.add_argument("--d-model", type=int, default=512)
    ap.add_argument("--layers", type=int, default=6)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--gen-tokens", type=int, default=20)
    args = ap.parse_args()
    torch.manual_seed(2024)

    cfg = T5Config(vocab_size=32128, d_model=args.d_model, d_kv=64, d_ff=4 * args.d_model,
                   num_layers=args.layers, num_decoder_layers=args.layers, num_heads=8,
                   dropout_rate=0.1, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(cfg).to("cuda")
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

    train_dl = DataLoader(Descriptions(args.train_size, 32128, args.src_max, args.tgt_max, 1),
                          batch_size=args.batch_size, shuffle=True, collate_fn=collate)
    valid_dl = DataLoader(Descriptions(60, 32128, args.src_max, args.tgt_max, 2),
                          batch_size=args.batch_size, collate_fn=collate)

    optimizer = Adafactor(model.parameters(), lr=args.lr, scale_parameter=False, relative_step=False,
                          warmup_init=False, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)

    with tempfile.TemporaryDirectory() as tmp:
        for epoch in range(args.epochs):
            train_loss = run_epoch(model, train_dl, optimizer, args.clip, log_every=6)
            scheduler.step()
            val_loss, acc = evaluate(model, valid_dl, args.gen_tokens)
            print(f"epoch {epoch} train {train_loss:.4f} valid {val_loss:.4f} token acc {acc:.4f}")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                       os.path.join(tmp, "last.pt"))


if __name__ == "__main__":
    main()
