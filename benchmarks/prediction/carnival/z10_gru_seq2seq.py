"""Machine translation with a packed bidirectional GRU encoder and an attentive GRU decoder; Adagrad, fp32."""
import argparse
import math
import os
import tempfile

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, BOS, EOS = 0, 1, 2


class Pairs(Dataset):
    """Target sentence: source in reverse order, mapped to other ids, with some words dropped."""

    def __init__(self, n, src_vocab, tgt_vocab, lengths, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            length = int(torch.randint(lengths[0], lengths[1] + 1, (1,), generator=g))
            src = 3 + (torch.rand(length, generator=g).pow(2.5) * (src_vocab - 3)).long()
            tgt = (src.flip(0) * 7 + 11) % (tgt_vocab - 3) + 3
            tgt = tgt[torch.rand(length, generator=g) > 0.1]
            self.rows.append((src, torch.cat([torch.tensor([BOS]), tgt, torch.tensor([EOS])])))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    rows = sorted(rows, key=lambda r: -len(r[0]))
    src, tgt = zip(*rows)
    return (pad_sequence(src, batch_first=True, padding_value=PAD), torch.tensor([len(s) for s in src]),
            pad_sequence(tgt, batch_first=True, padding_value=PAD))


class Encoder(nn.Module):
    def __init__(self, vocab, embed, hidden, layers, dropout):
        super().__init__()
        self.embed = nn.Embedding(vocab, embed, padding_idx=PAD)
        self.drop = nn.Dropout(dropout)
        self.rnn = nn.GRU(embed, hidden, layers, batch_first=True, bidirectional=True, dropout=dropout)
        self.bridge = nn.Linear(2 * hidden, hidden)

    def forward(self, src, lengths):
        packed = pack_padded_sequence(self.drop(self.embed(src)), lengths, batch_first=True)
        out, h = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=src.shape[1])
        h = h.view(self.rnn.num_layers, 2, src.shape[0], -1)
        return out, torch.tanh(self.bridge(torch.cat([h[:, 0], h[:, 1]], dim=-1)))


class Decoder(nn.Module):
    def __init__(self, vocab, embed, hidden, layers, dropout):
        super().__init__()
        self.embed = nn.Embedding(vocab, embed, padding_idx=PAD)
        self.drop = nn.Dropout(dropout)
        self.rnn = nn.GRU(embed, hidden, layers, batch_first=True, dropout=dropout)
        self.query = nn.Linear(hidden, 2 * hidden, bias=False)
        self.merge = nn.Linear(3 * hidden, embed)
        self.out = nn.Linear(embed, vocab)
        self.out.weight = self.embed.weight

    def forward(self, tgt, memory, mask, h):
        y, h = self.rnn(self.drop(self.embed(tgt)), h.contiguous())
        scores = torch.bmm(self.query(y), memory.transpose(1, 2)) / math.sqrt(memory.shape[-1])
        scores = scores.masked_fill(mask[:, None], float("-inf"))
        context = torch.bmm(scores.softmax(-1), memory)
        return self.out(self.drop(torch.tanh(self.merge(torch.cat([y, context], dim=-1))))), h


class Seq2Seq(nn.Module):
    def __init__(self, src_vocab, tgt_vocab, embed, hidden, layers, dropout):
        super().__init__()
        self.encoder = Encoder(src_vocab, embed, hidden, layers, dropout)
        self.decoder = Decoder(tgt_vocab, embed, hidden, layers, dropout)

    def forward(self, src, lengths, tgt):
        memory, h = self.encoder(src, lengths)
        return self.decoder(tgt, memory, src == PAD, h)[0]

    @torch.no_grad()
    def greedy(self, src, lengths, steps):
        memory, h = self.encoder(src, lengths)
        token = torch.full((len(src), 1), BOS, device=src.device)
        out = []
        for _ in range(steps):
            logits, h = self.decoder(token, memory, src == PAD, h)
            token = logits[:, -1:].argmax(-1)
            out.append(token)
        return torch.cat(out, 1)


@torch.no_grad()
def evaluate(model, loader, criterion, device):
    model.eval()
    nll = tokens = hits = seen = 0
    for src, lengths, tgt in loader:
        src, tgt = src.to(device), tgt.to(device)
        logits = model(src, lengths, tgt[:, :-1])
        gold = tgt[:, 1:]
        keep = gold != PAD
        nll += criterion(logits.flatten(0, 1), gold.flatten()).item() * keep.sum().item()
        tokens += keep.sum().item()
        guess = model.greedy(src, lengths, gold.shape[1])
        hits += ((guess == gold) & keep).sum().item()
        seen += keep.sum().item()
    model.train()
    return math.exp(min(nll / tokens, 20)), hits / seen


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--src-vocab", type=int, default=28000)
    ap.add_argument("--tgt-vocab", type=int, default=22500)
    ap.add_argument("--embed", type=int, default=400)
    ap.add_argument("--hidden", type=int, default=640)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--dropout", type=float, default=0.25)
    ap.add_argument("--batch", type=int, default=90)
    ap.add_argument("--lengths", type=int, nargs=2, default=[6, 62])
    ap.add_argument("--n-train", type=int, default=3600)
    ap.add_argument("--n-val", type=int, default=300)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=0.03)
    args = ap.parse_args()

    torch.manual_seed(66)
    device = torch.device("cuda")
    train_data = Pairs(args.n_train, args.src_vocab, args.tgt_vocab, args.lengths, 1)
    val_data = Pairs(args.n_val, args.src_vocab, args.tgt_vocab, args.lengths, 2)
    train = DataLoader(train_data, batch_size=args.batch, shuffle=True, collate_fn=collate)
    val = DataLoader(val_data, batch_size=60, collate_fn=collate)

    model = Seq2Seq(args.src_vocab, args.tgt_vocab, args.embed, args.hidden, args.layers, args.dropout).to(device)
    for name, p in model.named_parameters():
        if "rnn.weight_hh" in name:
            nn.init.orthogonal_(p)
        elif p.ndim > 1:
            nn.init.normal_(p, std=0.05)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr, initial_accumulator_value=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {len(train)} batches an epoch")

    best = float("inf")
    with tempfile.TemporaryDirectory() as d:
        for epoch in range(args.epochs):
            for step, (src, lengths, tgt) in enumerate(train):
                src, tgt = src.to(device), tgt.to(device)
                logits = model(src, lengths, tgt[:, :-1])
                loss = criterion(logits.reshape(-1, logits.shape[-1]), tgt[:, 1:].reshape(-1))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if step % 10 == 0:
                    print(f"epoch {epoch} step {step} longest {src.shape[1]} loss {loss.item():.3f}")
            scheduler.step()
            ppl, acc = evaluate(model, val, criterion, device)
            print(f"epoch {epoch}: perplexity {ppl:.1f}, greedy token accuracy {acc:.4f}")
            if ppl < best:
                best = ppl
                torch.save(model.state_dict(), os.path.join(d, "best.pt"))
        model.load_state_dict(torch.load(os.path.join(d, "best.pt"), map_location=device))
    print(f"best perplexity {best:.1f}")


if __name__ == "__main__":
    main()
