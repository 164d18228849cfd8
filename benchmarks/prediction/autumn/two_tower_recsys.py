import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

# Two-tower retrieval: sparse id embeddings, dense towers, in-batch sampled softmax with
# logQ correction.  Interactions are drawn on the fly from Zipf-like popularity.

SMALL = os.environ.get("TINY") == "1"
USERS = 2_000 if SMALL else 2_400_000
ITEMS = 500 if SMALL else 600_000
TAGS = 50 if SMALL else 20_000
DIM = 8 if SMALL else 64
OUT = 8 if SMALL else 128
BATCH = max(1, round((64 if SMALL else 8192) * float(os.environ.get("SCALE", "1"))))
STEPS = 6 if SMALL else 30
HIST = 10


class Tower(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_in, 4 * OUT), nn.GELU(), nn.LayerNorm(4 * OUT),
            nn.Linear(4 * OUT, 2 * OUT), nn.GELU(), nn.Linear(2 * OUT, OUT),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM, sparse=True, device=device)
        self.item = nn.Embedding(ITEMS, DIM, sparse=True, device=device)
        self.tags = nn.EmbeddingBag(TAGS, DIM, mode="mean", sparse=True, device=device)
        for table in (self.user, self.item, self.tags):
            nn.init.normal_(table.weight, std=0.05)
        self.user_tower = Tower(2 * DIM).to(device)
        self.item_tower = Tower(2 * DIM).to(device)
        self.temp = nn.Parameter(torch.tensor(2.5, device=device))

    def users(self, uid, history):
        hist = self.item(history).mean(1)
        return self.user_tower(torch.cat([self.user(uid), hist], -1))

    def items(self, iid, tags, offsets):
        return self.item_tower(torch.cat([self.item(iid), self.tags(tags, offsets)], -1))


def zipf(n, size, device):
    """log-uniform ids, as in tf.random.log_uniform_candidate_sampler"""
    u = torch.rand(size, device=device, dtype=torch.float64)
    return ((n + 1.0) ** u - 1).long().clamp_(max=n - 1)


def log_q(ids, n):
    ids = ids.double()
    return (torch.log1p(1 / (ids + 1)) / torch.log(torch.tensor(n + 1.0, dtype=torch.float64, device=ids.device))).log().float()


def batches(device):
    for _ in range(STEPS):
        iid = zipf(ITEMS, (BATCH,), device)
        uid = (iid * 4 + torch.randint(0, 4 * 17, (BATCH,), device=device)) % USERS
        hist = (iid[:, None] + torch.randint(0, 50, (BATCH, HIST), device=device)) % ITEMS
        n_tags = torch.randint(1, 6, (BATCH,), device=device)
        offsets = n_tags.cumsum(0) - n_tags
        tags = torch.randint(0, TAGS, (int(n_tags.sum()),), device=device)
        yield uid, hist, iid, tags, offsets


def retrieval_loss(model, uid, hist, iid, tags, offsets):
    u, v = model.users(uid, hist), model.items(iid, tags, offsets)
    logits = u @ v.T * model.temp.exp() - log_q(iid, ITEMS)
    # an item may be in the batch several times: these are no negatives
    same = iid[:, None] == iid[None, :]
    same.fill_diagonal_(False)
    logits = logits.masked_fill(same, -1e4)
    labels = torch.arange(u.size(0), device=u.device)
    return F.cross_entropy(logits, labels), (logits.argmax(1) == labels).float().mean()


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(2024)
model = TwoTower(device)
tables = [model.user.weight, model.item.weight, model.tags.weight]
ids = {id(p) for p in tables}
dense = [p for p in model.parameters() if id(p) not in ids]
opt_sparse = torch.optim.SparseAdam(tables, lr=2e-3)
opt_dense = torch.optim.AdamW(dense, lr=1e-3, fused=device.type == "cuda")
print(f"tables {sum(p.numel() for p in tables) / 1e6:.1f}M, dense {sum(p.numel() for p in dense) / 1e6:.2f}M parameters")

start = time.time()
for step, batch in enumerate(batches(device)):
    loss, acc = retrieval_loss(model, *batch)
    opt_sparse.zero_grad()
    opt_dense.zero_grad()
    loss.backward()
    opt_sparse.step()
    opt_dense.step()
    if step % 6 == 0:
        print(f"{step:3d}  loss {loss.item():.4f}  in-batch acc {acc.item():.3f}")
print(f"{STEPS * BATCH / (time.time() - start):.0f} interactions/s")

with torch.no_grad():
    cand = torch.arange(min(ITEMS, 50_000), device=device)
    emb = model.items(cand, cand % TAGS, cand)
    uid, hist, iid, _, _ = next(batches(device))
    scores = model.users(uid[:256], hist[:256]) @ emb.T
    top = scores.topk(min(100, scores.size(1)), dim=1).indices
    print("recall@100", (top == iid[:256, None]).any(1).float().mean().item())
print("done")
