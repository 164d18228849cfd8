"""A two-tower recommender: large tables, sparse gradients, in-batch negatives, an index of all items."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(20)
USERS, ITEMS, WIDTH = 400_000, 250_000, 128
users = nn.EmbeddingBag(USERS, WIDTH, mode="mean", sparse=True).cuda()
items = nn.Embedding(ITEMS, WIDTH, sparse=True).cuda()
tower = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.BatchNorm1d(512), nn.Linear(512, WIDTH)).cuda()
sparse = torch.optim.SparseAdam([*users.parameters(), *items.parameters()], lr=1e-3)
dense = torch.optim.Adagrad(tower.parameters(), lr=1e-2)
for step in range(5):
    history = torch.randint(0, USERS, (4096, 50)).cuda()
    bought = torch.randint(0, ITEMS, (4096,)).cuda()
    u, i = F.normalize(tower(users(history)), dim=-1), F.normalize(items(bought), dim=-1)
    loss = F.cross_entropy(u @ i.T / 0.05, torch.arange(4096, device="cuda"))
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    print(step, loss.item())
with torch.no_grad():
    index = F.normalize(items.weight, dim=-1)
    query = F.normalize(tower.eval()(users(torch.randint(0, USERS, (512, 50), device="cuda"))), dim=-1)
    best = torch.cat([(part @ index.T).topk(100, dim=-1).indices for part in query.split(128)])
print(best.shape)
