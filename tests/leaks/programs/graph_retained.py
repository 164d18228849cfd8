"""backward(retain_graph=True) and a list of losses: https://github.com/GBLin5566/toward-controlled-generation-of-text-pytorch/issues/9"""

import os

import torch
from torch import nn, optim

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["recon_losses", "losses"],
            "bytes_per_step": 4 * 200 * (400 + 40 + 100) + 4,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(100, 400)
        self.code = nn.Linear(400, 40)
        self.decoder = nn.Linear(40, 100)

    def forward(self, x):
        z = torch.tanh(self.code(torch.sigmoid(self.encoder(x))))
        return self.decoder(z), z


def train(model, optimizer, x, watch):
    recon_losses = []
    kl_weights = []
    for step in range(18):
        recon, code = model(x)  # ALLOCATES
        loss = (recon - x).pow(2).mean()  # ALLOCATES
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        recon_losses.append(loss)  # KEEPS
        # FIX: recon_losses.append(loss.item())
        kl_weights.append(min(1.0, step / 10) * code.detach().pow(2).mean().item())
        watch.step()
    return recon_losses[-1], watch.report()


if __name__ == "__main__":
    watch = vramlens.LeakWatch()
    model = VAE().to(DEVICE)
    last, report = train(model, optim.SGD(model.parameters(), lr=0.01), torch.rand(200, 100, device=DEVICE), watch)
