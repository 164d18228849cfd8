"""Summarization with a gated T5: Adafactor, bf16 autocast, beam search in evaluation."""
import argparse
import collections

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import T5Config, T5ForConditionalGeneration


class Articles(Dataset):
    """An 'article' is a run of tokens around a few keywords; its 'summary' repeats the keywords in order."""

    def __init__(self, size, vocab, max_src, max_tgt, seed):
        self.size, self.vocab, self.max_src, self.max_tgt, self.seed = size, vocab, max_src, max_tgt, seed

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        n = int(torch.randint(self.max_src // 2, self.max_src, (1,), generator=g))
        m = int(torch.randint(self.max_tgt // 3, self.max_tgt, (1,), generator=g))
        src = torch.randint(3, self.vocab, (n,), generator=g)
        where = torch.randperm(n, generator=g)[:m].sort().values
        tgt = src[where]
        end = torch.tensor([1])
        return torch.cat([src, end]), torch.cat([tgt, end])


def collate(rows):
    src = pad_sequence([r[0] for r in rows], batch_first=True, padding_value=0)
    tgt = pad_sequence([r[1] for r in rows], batch_first=True, padding_value=-100)
    return src, (src != 0).long(), tgt


def rouge1(pred, ref):
    a, b = collections.Counter(pred), collections.Counter(ref)
    overlap = sum((a & b).values())
    if not overlap:
        return 0.0
    prec, rec = overlap / sum(a.values()), overlap / sum(b.values())
    return 2 * prec * rec / (prec + rec)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda")
        cfg = T5Config(vocab_size=args.vocab, d_model=args.d_model, d_kv=64, d_ff=args.d_ff, num_layers=args.layers,
                       num_decoder_layers=args.layers, num_heads=args.heads, feed_forward_proj="gated-gelu",
                       tie_word_embeddings=False, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
        self.model = T5ForConditionalGeneration(cfg).to(self.device)
        self.optim = torch.optim.Adafactor(self.model.parameters(), lr=1e-2)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.optim, lambda s: min((s + 1) / 10, (10 / (s + 1)) ** 0.5))
        self.train_loader = DataLoader(Articles(args.steps * args.batch, args.vocab, args.max_src, args.max_tgt, 1),
                                       batch_size=args.batch, collate_fn=collate, num_workers=2)
        self.valid_loader = DataLoader(Articles(2 * args.eval_batch, args.vocab, args.max_src, args.max_tgt, 2),
                                       batch_size=args.eval_batch, collate_fn=collate)
        self.xent = nn.CrossEntropyLoss(ignore_index=-100, label_smoothing=0.1)

    def loss(self, src, mask, tgt):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = self.model(input_ids=src, attention_mask=mask, labels=tgt).logits
        return self.xent(logits.float().flatten(0, 1), tgt.flatten())

    def fit(self):
        self.model.train()
        for step, batch in enumerate(self.train_loader, 1):
            src, mask, tgt = (t.to(self.device, non_blocking=True) for t in batch)
            loss = self.loss(src, mask, tgt)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optim.step()
            self.sched.step()
            self.optim.zero_grad(set_to_none=True)
            if step % 10 == 0:
                print(f"step {step}: src {tuple(src.shape)} tgt {tuple(tgt.shape)} loss {loss.item():.3f}", flush=True)
            if step % self.args.eval_every == 0:
                self.evaluate()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses, scores = [], []
        for batch in self.valid_loader:
            src, mask, tgt = (t.to(self.device) for t in batch)
            losses.append(self.loss(src, mask, tgt).item())
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = self.model.generate(input_ids=src, attention_mask=mask, num_beams=self.args.beams,
                                          max_new_tokens=self.args.gen_tokens, length_penalty=0.8,
                                          no_repeat_ngram_size=3, early_stopping=True)
            for o, t in zip(out.tolist(), tgt.tolist()):
                scores.append(rouge1([x for x in o if x > 1], [x for x in t if x > 1]))
        print(f"  eval loss {sum(losses) / len(losses):.3f}  rouge-1 {sum(scores) / len(scores):.4f}", flush=True)
        self.model.train()


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=24100)
    p.add_argument("--d-model", type=int, default=512)
    p.add_argument("--d-ff", type=int, default=1280)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--heads", type=int, default=7)
    p.add_argument("--batch", type=int, default=14)
    p.add_argument("--eval-batch", type=int, default=10)
    p.add_argument("--max-src", type=int, default=500)
    p.add_argument("--max-tgt", type=int, default=90)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--eval-every", type=int, default=30)
    p.add_argument("--beams", type=int, default=4)
    p.add_argument("--gen-tokens", type=int, default=48)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(2024)
    trainer = Trainer(args)
    print(f"{sum(p.numel() for p in trainer.model.parameters()) / 1e6:.1f}M parameters")
    trainer.fit()


if __name__ == "__main__":
    main()
