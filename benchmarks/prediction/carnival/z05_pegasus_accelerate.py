"""Summarisation fine-tuning of a PEGASUS model with accelerate (bf16, accumulation) and Adafactor."""
import argparse
import math
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import PegasusConfig, PegasusForConditionalGeneration
from transformers.optimization import Adafactor, get_inverse_sqrt_schedule

PAD, EOS = 0, 1


class Articles(Dataset):
    """The "summary" repeats every k-th word of the article."""

    def __init__(self, n, vocab, source_len, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            length = int(torch.randint(source_len[0], source_len[1] + 1, (1,), generator=g))
            src = 100 + (torch.rand(length, generator=g).square() * (vocab - 100)).long()
            tgt = src[::7].clone()
            src[-1], tgt[-1] = EOS, EOS
            self.rows.append((src, tgt))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Collator:
    def __init__(self, multiple=16):
        self.multiple = multiple

    def pad(self, seqs, value):
        longest = max(len(s) for s in seqs)
        longest = math.ceil(longest / self.multiple) * self.multiple
        out = torch.full((len(seqs), longest), value, dtype=torch.long)
        for i, s in enumerate(seqs):
            out[i, :len(s)] = s
        return out

    def __call__(self, rows):
        src, tgt = zip(*rows)
        ids = self.pad(src, PAD)
        return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": self.pad(tgt, -100)}


def overlap_f1(pred, ref):
    pred, ref = set(pred), set(ref)
    hit = len(pred & ref)
    return 0.0 if hit == 0 else 2 * hit / (len(pred) + len(ref))


def evaluate(accelerator, model, loader, beams, new_tokens):
    model.eval()
    scores, losses = [], []
    for batch in loader:
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(model(**batch).loss.detach().reshape(1)))
            out = accelerator.unwrap_model(model).generate(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=beams,
                min_new_tokens=new_tokens, max_new_tokens=new_tokens, no_repeat_ngram_size=3, length_penalty=0.8)
        for p, r in zip(out.tolist(), batch["labels"].tolist()):
            scores.append(overlap_f1([t for t in p if t > EOS], [t for t in r if t > EOS]))
    model.train()
    return torch.cat(losses).float().mean().item(), sum(scores) / len(scores)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--d-model", type=int, default=896)
    ap.add_argument("--layers", type=int, default=7)
    ap.add_argument("--heads", type=int, default=14)
    ap.add_argument("--ffn", type=int, default=3584)
    ap.add_argument("--vocab", type=int, default=48064)
    ap.add_argument("--batch", type=int, default=7)
    ap.add_argument("--accum", type=int, default=3)
    ap.add_argument("--n-train", type=int, default=231)
    ap.add_argument("--n-val", type=int, default=15)
    ap.add_argument("--source", type=int, nargs=2, default=[180, 490])
    ap.add_argument("--beams", type=int, default=4)
    ap.add_argument("--new-tokens", type=int, default=24)
    ap.add_argument("--epochs", type=int, default=1)
    ap.add_argument("--lr", type=float, default=5e-4)
    args = ap.parse_args()

    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=args.accum)
    set_seed(9)
    config = PegasusConfig(
        vocab_size=args.vocab, d_model=args.d_model, encoder_layers=args.layers, decoder_layers=args.layers,
        encoder_attention_heads=args.heads, decoder_attention_heads=args.heads, encoder_ffn_dim=args.ffn,
        decoder_ffn_dim=args.ffn, max_position_embeddings=512, scale_embedding=True, pad_token_id=PAD,
        eos_token_id=EOS, decoder_start_token_id=PAD, forced_eos_token_id=None)
    model = PegasusForConditionalGeneration(config)
    accelerator.print(f"{model.num_parameters() / 1e6:.1f} M parameters on {accelerator.device}")

    train = DataLoader(Articles(args.n_train, args.vocab, args.source, 3), batch_size=args.batch, shuffle=True,
                       collate_fn=Collator(), drop_last=True)
    val = DataLoader(Articles(args.n_val, args.vocab, args.source, 4), batch_size=5, collate_fn=Collator())
    optimizer = Adafactor(model.parameters(), lr=args.lr, scale_parameter=False, relative_step=False,
                          warmup_init=False, clip_threshold=1.0, weight_decay=0.0)
    schedule = get_inverse_sqrt_schedule(optimizer, num_warmup_steps=3)
    model, optimizer, train, val, schedule = accelerator.prepare(model, optimizer, train, val, schedule)

    model.train()
    updates = 0
    for epoch in range(args.epochs):
        for step, batch in enumerate(train):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                updates += 1
                accelerator.print(f"epoch {epoch} update {updates} source {tuple(batch['input_ids'].shape)} "
                                  f"target {tuple(batch['labels'].shape)} loss {loss.item():.4f}")
        val_loss, f1 = evaluate(accelerator, model, val, args.beams, args.new_tokens)
        accelerator.print(f"epoch {epoch}: validation loss {val_loss:.4f}, overlap F1 {f1:.4f}")

    with tempfile.TemporaryDirectory() as d:
        accelerator.unwrap_model(model).save_pretrained(d, state_dict=accelerator.get_state_dict(model))
    accelerator.end_training()


if __name__ == "__main__":
    main()
