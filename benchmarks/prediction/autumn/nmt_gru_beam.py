#!/usr/bin/env python
# Attention seq2seq (Bahdanau et al.) trained on a toy "translation" task: reverse + shift the vocabulary.
import argparse
import os
import random

import torch
from torch import nn, optim
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

PAD, SOS, EOS = 0, 1, 2


def parse_args():
    tiny = os.environ.get("TINY") == "1"
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=4 if tiny else 128)
    p.add_argument("--steps", type=int, default=4 if tiny else 14)
    p.add_argument("--vocab", type=int, default=60 if tiny else 16000)
    p.add_argument("--emb", type=int, default=16 if tiny else 256)
    p.add_argument("--hidden", type=int, default=24 if tiny else 512)
    p.add_argument("--max-len", type=int, default=10 if tiny else 52)
    p.add_argument("--beam", type=int, default=5)
    p.add_argument("--lr", type=float, default=0.3)
    p.add_argument("--momentum", type=float, default=0.9)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--tf-start", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=7)
    args = p.parse_args()
    args.batch_size = max(1, round(args.batch_size * float(os.environ.get("SCALE", "1"))))
    return args


class Encoder(nn.Module):
    def __init__(self, vocab, emb, hidden, layers=2, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.rnn = nn.GRU(emb, hidden, layers, bidirectional=True, batch_first=True, dropout=dropout)
        self.fc = nn.Linear(2 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, lengths):
        e = self.dropout(self.embedding(src))
        packed = pack_padded_sequence(e, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, h = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        h = torch.tanh(self.fc(torch.cat([h[-2], h[-1]], dim=1)))
        return out, h


class AdditiveAttention(nn.Module):
    def __init__(self, enc_dim, dec_dim, attn_dim):
        super().__init__()
        self.W_enc = nn.Linear(enc_dim, attn_dim)
        self.W_dec = nn.Linear(dec_dim, attn_dim, bias=False)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, h, keys, enc_out, mask):
        energy = torch.tanh(keys + self.W_dec(h).unsqueeze(1))  # B, S, A
        score = self.v(energy).squeeze(-1).masked_fill(~mask, float("-inf"))
        a = F.softmax(score, dim=-1)
        return torch.bmm(a.unsqueeze(1), enc_out).squeeze(1)


class Decoder(nn.Module):
    def __init__(self, vocab, emb, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.attn = AdditiveAttention(2 * hidden, hidden, hidden)
        self.cell = nn.GRUCell(emb + 2 * hidden, hidden)
        self.out = nn.Linear(hidden + 2 * hidden + emb, vocab)

    def forward(self, tok, h, keys, enc_out, mask):
        e = self.embedding(tok)
        ctx = self.attn(h, keys, enc_out, mask)
        h = self.cell(torch.cat([e, ctx], 1), h)
        logits = self.out(torch.cat([h, ctx, e], 1))
        return logits, h


class Seq2Seq(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.encoder = Encoder(args.vocab, args.emb, args.hidden)
        self.decoder = Decoder(args.vocab, args.emb, args.hidden)

    def forward(self, src, src_len, tgt, teacher_forcing):
        enc_out, h = self.encoder(src, src_len)
        mask = (src != PAD)[:, :enc_out.size(1)]
        keys = self.decoder.attn.W_enc(enc_out)
        tok = tgt[:, 0]
        outputs = []
        for t in range(1, tgt.size(1)):
            logits, h = self.decoder(tok, h, keys, enc_out, mask)
            outputs.append(logits)
            use_tf = random.random() < teacher_forcing
            tok = tgt[:, t] if use_tf else logits.argmax(1)
        return torch.stack(outputs, dim=1)

    @torch.no_grad()
    def beam_search(self, src, src_len, beam, max_len):
        self.eval()
        B = src.size(0)
        enc_out, h = self.encoder(src, src_len)
        mask = (src != PAD)[:, :enc_out.size(1)]
        enc_out = enc_out.repeat_interleave(beam, 0)
        mask = mask.repeat_interleave(beam, 0)
        h = h.repeat_interleave(beam, 0)
        keys = self.decoder.attn.W_enc(enc_out)
        seqs = torch.full((B * beam, 1), SOS, dtype=torch.long, device=src.device)
        scores = torch.full((B, beam), -1e9, device=src.device)
        scores[:, 0] = 0
        finished = torch.zeros(B * beam, dtype=torch.bool, device=src.device)
        for _ in range(max_len):
            logits, h = self.decoder(seqs[:, -1], h, keys, enc_out, mask)
            logp = F.log_softmax(logits, -1)
            # finished beams may only emit PAD at no cost
            logp[finished] = -1e9
            logp[finished, PAD] = 0
            V = logp.size(-1)
            total = (scores.view(-1, 1) + logp).view(B, beam * V)
            scores, idx = total.topk(beam, dim=1)
            src_beam = (idx // V + torch.arange(B, device=src.device).unsqueeze(1) * beam).view(-1)
            tok = (idx % V).view(-1)
            seqs = torch.cat([seqs[src_beam], tok.unsqueeze(1)], 1)
            h = h[src_beam]
            finished = finished[src_beam] | (tok == EOS)
            if finished.all():
                break
        self.train()
        return seqs.view(B, beam, -1)[:, 0], scores[:, 0]


def make_batch(rng, bs, vocab, max_len, device):
    lens = [rng.randint(max_len // 2, max_len - 2) for _ in range(bs)]
    lens[0] = max_len - 2
    src = torch.zeros(bs, max_len - 2, dtype=torch.long)
    tgt = torch.zeros(bs, max_len, dtype=torch.long)
    for i, n in enumerate(lens):
        s = [int(3 + (vocab - 3) * rng.random() ** 3) for _ in range(n)]
        t = [3 + (w - 3 + 11) % (vocab - 3) for w in reversed(s)]
        src[i, :n] = torch.tensor(s)
        tgt[i, :n + 2] = torch.tensor([SOS] + t + [EOS])
    return src.to(device), torch.tensor(lens), tgt.to(device)


def main():
    args = parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data_rng = random.Random(args.seed + 1)

    model = Seq2Seq(args).to(device)
    opt = optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum, nesterov=True)
    sched = optim.lr_scheduler.StepLR(opt, step_size=5, gamma=0.7)
    crit = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)

    for step in range(1, args.steps + 1):
        src, lens, tgt = make_batch(data_rng, args.batch_size, args.vocab, args.max_len, device)
        tf = max(0.4, args.tf_start - 0.04 * step)
        logits = model(src, lens, tgt, tf)
        loss = crit(logits.reshape(-1, args.vocab), tgt[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        opt.step()
        sched.step()
        if step % 4 == 0 or step == 1:
            print(f"step {step:3d} loss {loss.item():.3f} gnorm {norm.item():.2f} tf {tf:.2f}")

    src, lens, tgt = make_batch(data_rng, max(1, args.batch_size // 8), args.vocab, args.max_len, device)
    hyp, score = model.beam_search(src, lens, args.beam, args.max_len)
    n = min(hyp.size(1), tgt.size(1))
    acc = (hyp[:, 1:n] == tgt[:, 1:n]).float().mean().item()
    print(f"beam: mean score {score.mean().item():.2f} token acc {acc:.4f}")
    print("done")


if __name__ == "__main__":
    main()
