"""The teacher's centre is averaged with gradients on, so it holds every batch's graph: https://github.com/pytorch/pytorch/issues/140792"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["centre"],
            "bytes_per_step": 4 * 256 * 512,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(96, 512), nn.ReLU(), nn.Linear(512, 128))

    def forward(self, x):
        return self.mlp(x)  # ALLOCATES


class DinoLoss(nn.Module):
    def __init__(self, momentum=0.9):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("centre", torch.zeros(1, 128))

    def forward(self, student, teacher):
        target = (teacher.detach() - self.centre.detach()).softmax(-1)
        loss = torch.sum(-target * student.log_softmax(-1), dim=-1).mean()
        self.update_centre(teacher)
        return loss

    def update_centre(self, teacher):
        batch = teacher.mean(dim=0, keepdim=True)
        self.centre = self.centre * self.momentum + batch * (1 - self.momentum)  # KEEPS
        # FIX: self.centre = self.centre * self.momentum + batch.detach() * (1 - self.momentum)


def train(watch):
    student, teacher, criterion = Head().to(DEVICE), Head().to(DEVICE), DinoLoss().to(DEVICE)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    images = torch.randn(256, 96, device=DEVICE)
    for _ in range(20):
        loss = criterion(student(images), teacher(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train(vramlens.LeakWatch())
