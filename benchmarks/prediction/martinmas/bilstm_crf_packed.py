"""BiLSTM-CRF tagger on packed variable-length sentences, with early stopping on the validation loss."""
import argparse

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence, pad_sequence

class CRF(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.trans = nn.Parameter(torch.randn(tags, tags) * 0.1)
        self.start = nn.Parameter(torch.zeros(tags))
        self.end = nn.Parameter(torch.zeros(tags))

    def score(self, em, tags, mask):
        b = torch.arange(em.size(0), device=em.device)
        s = self.start[tags[:, 0]] + em[b, 0, tags[:, 0]]
        emit = em.gather(2, tags[..., None]).squeeze(2)[:, 1:]
        step = self.trans[tags[:, :-1], tags[:, 1:]]
        s = s + ((emit + step) * mask[:, 1:]).sum(1)
        last = mask.sum(1).long() - 1
        return s + self.end[tags[b, last]]

    def log_z(self, em, mask):
        alpha = self.start + em[:, 0]
        for t in range(1, em.size(1)):
            new = torch.logsumexp(alpha[:, :, None] + self.trans + em[:, t, None, :], dim=1)
            alpha = torch.where(mask[:, t, None] > 0, new, alpha)
        return torch.logsumexp(alpha + self.end, dim=1)

    @torch.no_grad()
    def viterbi(self, em, mask):
        alpha, back = self.start + em[:, 0], []
        for t in range(1, em.size(1)):
            best, idx = (alpha[:, :, None] + self.trans).max(1)
            back.append(idx)
            alpha = torch.where(mask[:, t, None] > 0, best + em[:, t], alpha)
        cur = (alpha + self.end).argmax(1)
        path = [cur]
        for t in range(len(back) - 1, -1, -1):
            prev = back[t].gather(1, cur[:, None]).squeeze(1)
            cur = torch.where(mask[:, t + 1] > 0, prev, cur)
            path.append(cur)
        return torch.stack(path[::-1], 1)

class Tagger(nn.Module):
    def __init__(self, vocab, emb, hidden, layers, tags):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb, padding_idx=0, sparse=True)
        self.lstm = nn.LSTM(emb, hidden, layers, batch_first=True, bidirectional=True, dropout=0.3)
        self.norm = nn.LayerNorm(2 * hidden)
        self.proj = nn.Linear(2 * hidden, tags)
        self.crf = CRF(tags)

    def emissions(self, seqs):
        packed = pack_sequence(seqs, enforce_sorted=False)
        packed = packed._replace(data=self.emb(packed.data))
        out, _ = self.lstm(packed)
        out = out._replace(data=self.proj(self.norm(out.data)))
        return pad_packed_sequence(out, batch_first=True)[0]

    def forward(self, seqs, tags):
        em = self.emissions(seqs)
        mask = pad_sequence([torch.ones_like(t) for t in tags], batch_first=True).float()
        tags = pad_sequence(tags, batch_first=True)
        return (self.crf.log_z(em, mask) - self.crf.score(em, tags, mask)).mean(), em, tags, mask

def make_batch(n, max_len, vocab, tags, gen, device):
    lens = torch.randint(max(2, max_len // 8), max_len + 1, (n,), generator=gen).tolist()
    seqs = [torch.randint(1, vocab, (l,), generator=gen) for l in lens]
    return [s.to(device) for s in seqs], [(s % tags).to(device) for s in seqs]

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=30000)
    p.add_argument("--emb", type=int, default=512)
    p.add_argument("--hidden", type=int, default=1024)
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--tags", type=int, default=37)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--max-len", type=int, default=320)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--steps", type=int, default=3, help="batches per epoch")
    p.add_argument("--patience", type=int, default=2)
    a = p.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(5)
    model = Tagger(a.vocab, a.emb, a.hidden, a.layers, a.tags).to(device)
    dense = [q for n, q in model.named_parameters() if not n.startswith("emb")]
    opts = [torch.optim.SparseAdam(model.emb.parameters(), lr=2e-3), torch.optim.AdamW(dense, lr=1e-3)]
    val = make_batch(a.batch, a.max_len, a.vocab, a.tags, gen, device)
    best, bad = float("inf"), 0
    for epoch in range(a.epochs):
        model.train()
        for step in range(a.steps):
            seqs, tags = make_batch(a.batch, a.max_len, a.vocab, a.tags, gen, device)
            loss, *_ = model(seqs, tags)
            for o in opts:
                o.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(dense, 5.0)
            for o in opts:
                o.step()
            print(f"epoch {epoch} step {step} tokens {sum(map(len, seqs))} nll {loss.item():.3f}")
        model.eval()
        with torch.no_grad():
            vloss, em, gold, mask = model(*val)
            acc = ((model.crf.viterbi(em, mask) == gold).float() * mask).sum() / mask.sum()
        print(f"epoch {epoch} val {vloss.item():.3f} acc {acc.item():.4f}")
        if vloss.item() < best - 0.01:
            best, bad = vloss.item(), 0
        else:
            bad += 1
            if bad >= a.patience:
                print("early stop")
                break

if __name__ == "__main__":
    main()
