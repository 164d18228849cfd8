"""Long-document multi-label classification with Longformer in plain fp32 (TF32 matmuls), task head with two heads of output.

Documents are padded to the longest of the batch; global attention on the first token and on section markers.
Different window per layer (small below, wide above). The last batch of the epoch is smaller.
"""
import argparse
import os
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import LongformerConfig, LongformerModel, get_cosine_schedule_with_warmup

SECTION = 4  # id of the section marker


class Contracts(Dataset):
    def __init__(self, n, vocab, longest, topics, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.docs = []
        for _ in range(n):
            length = int(torch.randint(longest // 3, longest + 1, (1,), generator=self.g))
            ids = torch.randint(10, vocab, (length,), generator=self.g)
            ids[0] = 0
            ids[137::211] = SECTION
            topic = torch.zeros(topics)
            topic[torch.randint(0, topics, (3,), generator=self.g)] = 1.0
            self.docs.append((ids, topic, torch.tensor(float(length) / longest)))

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        return self.docs[i]


def collate(batch):
    ids = nn.utils.rnn.pad_sequence([b[0] for b in batch], batch_first=True, padding_value=1)
    mask = (ids != 1).long()
    glob = ((ids == SECTION) | (torch.arange(ids.shape[1]) == 0)).long()
    return ids, mask, glob, torch.stack([b[1] for b in batch]), torch.stack([b[2] for b in batch])


class ContractModel(nn.Module):
    def __init__(self, cfg, topics):
        super().__init__()
        self.body = LongformerModel(cfg, add_pooling_layer=False)
        self.pool = nn.Sequential(nn.Linear(2 * cfg.hidden_size, cfg.hidden_size), nn.Tanh(), nn.Dropout(0.1))
        self.topic = nn.Linear(cfg.hidden_size, topics)
        self.risk = nn.Linear(cfg.hidden_size, 1)

    def forward(self, ids, mask, glob):
        h = self.body(input_ids=ids, attention_mask=mask, global_attention_mask=glob).last_hidden_state
        keep = mask.unsqueeze(-1).to(h.dtype)
        mean = (h * keep).sum(1) / keep.sum(1).clamp(min=1)
        z = self.pool(torch.cat([h[:, 0], mean], dim=-1))
        return self.topic(z), self.risk(z).squeeze(-1)


def run_epoch(model, loader, opt, sched, device, log_every=8):
    bce, huber = nn.BCEWithLogitsLoss(), nn.SmoothL1Loss()
    model.train()
    for k, batch in enumerate(loader):
        ids, mask, glob, topic, risk = (t.to(device) for t in batch)
        logits, score = model(ids, mask, glob)
        loss = bce(logits, topic) + 0.5 * huber(score, risk)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if k % log_every == 0:
            print(f"  batch {k}: {tuple(ids.shape)}, {int(glob.sum())} global tokens, loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    tp = fp = fn = 0
    error = []
    for batch in loader:
        ids, mask, glob, topic, risk = (t.to(device) for t in batch)
        logits, score = model(ids, mask, glob)
        pred = logits.sigmoid() > 0.3
        gold = topic > 0.5
        tp += (pred & gold).sum().item()
        fp += (pred & ~gold).sum().item()
        fn += (~pred & gold).sum().item()
        error.append((score - risk).abs().mean().item())
    return 2 * tp / max(1, 2 * tp + fp + fn), sum(error) / len(error)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--vocab", type=int, default=30522)
    ap.add_argument("--hidden", type=int, default=576)
    ap.add_argument("--layers", type=int, default=8)
    ap.add_argument("--longest", type=int, default=2300)
    ap.add_argument("--topics", type=int, default=37)
    ap.add_argument("--batch", type=int, default=5)
    ap.add_argument("--docs", type=int, default=103)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-5)
    args = ap.parse_args()
    torch.manual_seed(1234)
    torch.set_float32_matmul_precision("high")
    device = "cuda"

    windows = [128] * (args.layers // 2) + [256] * (args.layers - args.layers // 2)
    cfg = LongformerConfig(vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers,
                           num_attention_heads=args.hidden // 64, intermediate_size=3 * args.hidden, attention_window=windows,
                           max_position_embeddings=4098, type_vocab_size=1, pad_token_id=1)
    model = ContractModel(cfg, args.topics).to(device)
    train = DataLoader(Contracts(args.docs, args.vocab, args.longest, args.topics, 1), args.batch, shuffle=True, collate_fn=collate)
    valid = DataLoader(Contracts(24, args.vocab, args.longest, args.topics, 2), 2 * args.batch, collate_fn=collate)
    opt = torch.optim.NAdam(model.parameters(), lr=args.lr, weight_decay=0.01, decoupled_weight_decay=True)
    sched = get_cosine_schedule_with_warmup(opt, 5, args.epochs * len(train))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as tmp:
        best = 0.0
        for epoch in range(args.epochs):
            run_epoch(model, train, opt, sched, device)
            f1, mae = validate(model, valid, device)
            print(f"epoch {epoch}: micro F1 {f1:.4f}, risk MAE {mae:.4f}, {time.perf_counter() - start:.1f} s", flush=True)
            if f1 >= best:
                best = f1
                torch.save(model.state_dict(), os.path.join(tmp, "best.pt"))
        model.load_state_dict(torch.load(os.path.join(tmp, "best.pt"), map_location=device))
        print("restored best, F1", round(validate(model, valid, device)[0], 4))


if __name__ == "__main__":
    main()
