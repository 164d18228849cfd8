"""Sentence embeddings: BERT encoder + InfoNCE with mined hard negatives, trained with Lion."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import BertConfig, BertModel

TINY = os.environ.get("TINY") == "1"
SCALE = float(os.environ.get("SCALE", "1"))


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = m.mul(b1).add_(p.grad, alpha=1 - b1).sign_()
                p.add_(update, alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class SentenceEncoder(nn.Module):
    def __init__(self, cfg, dim=256):
        super().__init__()
        self.bert = BertModel(cfg, add_pooling_layer=False)
        self.proj = nn.Linear(cfg.hidden_size, dim)

    def forward(self, ids):
        mask = (ids != 0).long()
        h = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        m = mask.unsqueeze(-1).to(h.dtype)
        pooled = (h * m).sum(1) / m.sum(1).clamp(min=1)
        return F.normalize(self.proj(pooled), dim=-1)


class PairCorpus:
    """Clusters of sentences sharing a topic; two sentences of one cluster are a positive pair."""

    def __init__(self, n, n_topics, vocab, max_len, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.topic = torch.randint(0, n_topics, (n,), generator=g)
        topic_words = torch.randint(10, vocab, (n_topics, 40), generator=g)
        ids = torch.randint(10, vocab, (n, max_len), generator=g)
        pick = torch.randint(0, 40, (n, max_len), generator=g)
        on_topic = torch.rand(n, max_len, generator=g) < 0.5
        ids = torch.where(on_topic, topic_words[self.topic].gather(1, pick), ids)
        lengths = torch.randint(max_len // 3, max_len + 1, (n,), generator=g)
        ids[torch.arange(max_len)[None] >= lengths[:, None]] = 0
        self.ids = ids
        order = torch.argsort(self.topic)
        self.partner = torch.empty(n, dtype=torch.long)
        self.partner[order] = order.roll(-1)
        self.g = g

    def __len__(self):
        return self.ids.size(0)


@torch.no_grad()
def mine_hard_negatives(model, corpus, device, k, chunk=512):
    model.eval()
    emb = []
    for i in range(0, len(corpus), chunk):
        emb.append(model(corpus.ids[i:i + chunk].to(device)))
    emb = torch.cat(emb)
    topic = corpus.topic.to(device)
    sim = emb @ emb.T
    same = topic[:, None] == topic[None, :]
    sim = sim.masked_fill(same, -1.0)
    hard = sim.topk(k, dim=1).indices
    model.train()
    return hard.cpu()


def info_nce(q, p, neg, temp=0.05):
    # in-batch positives plus all hard negatives of the batch as extra candidates
    cand = torch.cat([p, neg.flatten(0, 1)])
    logits = q @ cand.T / temp
    labels = torch.arange(q.size(0), device=q.device)
    loss = F.cross_entropy(logits, labels)
    back = F.cross_entropy(p @ q.T / temp, labels)
    return 0.5 * (loss + back)


def trim(ids):
    return ids[:, : int((ids != 0).sum(1).max())]


def main():
    torch.manual_seed(5)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if TINY:
        cfg = BertConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                         intermediate_size=64, max_position_embeddings=64)
        n, max_len, batch, steps, refresh, n_neg = 200, 16, 4, 6, 3, 2
    else:
        cfg = BertConfig(vocab_size=20000, hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                         intermediate_size=1536, max_position_embeddings=128)
        n, max_len, batch, steps, refresh, n_neg = 22000, 48, 48, 24, 8, 2
    batch = max(1, round(batch * SCALE))

    corpus = PairCorpus(n, max(10, n // 40), cfg.vocab_size, max_len)
    model = SentenceEncoder(cfg).to(device)
    opt = Lion(model.parameters(), lr=3e-5, weight_decay=0.01)

    hard = None
    for step in range(steps):
        if step % refresh == 0 and step > 0:
            t = time.time()
            hard = mine_hard_negatives(model, corpus, device, k=20)
            print(f"mined negatives in {time.time() - t:.2f}s")
        a = torch.randint(0, n, (batch,), generator=corpus.g)
        p = corpus.partner[a]
        if hard is None:
            neg = torch.randint(0, n, (batch, n_neg), generator=corpus.g)
        else:
            cols = torch.randint(0, hard.size(1), (batch, n_neg), generator=corpus.g)
            neg = hard[a].gather(1, cols)

        q_emb = model(trim(corpus.ids[a]).to(device))
        p_emb = model(trim(corpus.ids[p]).to(device))
        n_emb = model(trim(corpus.ids[neg.flatten()]).to(device)).view(batch, n_neg, -1)
        loss = info_nce(q_emb, p_emb, n_emb)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    print("done")


if __name__ == "__main__":
    main()
