"""Metric learning with hard triplets, chosen by the values of the distances."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(128, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
        self.head = nn.Linear(256, 128)

    def forward(self, x):
        return F.normalize(self.head(self.features(x)), dim=1)


def hard_triplets(embeddings, labels, margin=0.2):
    distance = torch.cdist(embeddings, embeddings)
    same = labels[:, None] == labels[None]
    positive = (distance * same.float()).max(1)
    negative = (distance + 1e6 * same.float()).min(1)
    violating = positive.values - negative.values + margin > 0
    if violating.sum() == 0:
        return None
    anchor = torch.nonzero(violating).squeeze(1)
    return anchor, positive.indices[anchor], negative.indices[anchor]


model = Embedder().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(5):
    images = torch.randn(128, 3, 128, 128, device=device)
    labels = torch.randint(0, 16, (128,), device=device)
    embeddings = model(images)
    with torch.no_grad():
        triplets = hard_triplets(embeddings, labels)
    if triplets is None:
        continue
    a, p, n = triplets
    loss = F.triplet_margin_loss(embeddings[a], embeddings[p], embeddings[n], margin=0.2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, len(a), loss.item())
