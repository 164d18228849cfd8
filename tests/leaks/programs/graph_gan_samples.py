"""Samples of a fixed noise, kept for the video, still hang on the generator: the shape of https://github.com/Lightning-AI/torchmetrics/issues/2597"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["samples", "img_list"],
            "bytes_per_step": 4 * 64 * (256 + 256 + 1024) + 2 * 4 * 256,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def generator():
    return nn.Sequential(nn.Linear(32, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 1024), nn.Tanh())


def discriminator():
    return nn.Sequential(nn.Linear(1024, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))


class Gan:
    def __init__(self):
        self.g, self.d = generator().to(DEVICE), discriminator().to(DEVICE)
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.fixed_noise = torch.randn(64, 32, device=DEVICE)
        self.bce = nn.BCEWithLogitsLoss()
        self.img_list = []
        self.g_losses, self.d_losses = [], []

    def train_discriminator(self, real):
        fake = self.g(torch.randn(64, 32, device=DEVICE)).detach()
        ones, zeros = torch.ones(64, 1, device=DEVICE), torch.zeros(64, 1, device=DEVICE)
        loss = self.bce(self.d(real), ones) + self.bce(self.d(fake), zeros)
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        self.d_losses.append(loss.item())

    def train_generator(self):
        fake = self.g(torch.randn(64, 32, device=DEVICE))
        loss = self.bce(self.d(fake), torch.ones(64, 1, device=DEVICE))
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.g_losses.append(loss.item())

    def sample(self):
        picture = self.g(self.fixed_noise)  # ALLOCATES
        self.img_list.append(picture)  # KEEPS
        # FIX: self.img_list.append(picture.mean().item())


def main():
    gan = Gan()
    watch = vramlens.LeakWatch()
    for _ in range(16):
        gan.train_discriminator(torch.rand(64, 1024, device=DEVICE))
        gan.train_generator()
        gan.sample()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
