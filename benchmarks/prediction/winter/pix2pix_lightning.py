# LEAK (planted): training_step appends every fake batch to self.shown, which on_train_epoch_end reads but never clears.
"""pix2pix (edges -> colours) as a LightningModule with manual optimization, bf16-mixed."""
import os

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SCALE = float(os.environ.get("SCALE", "1"))
BATCHES = int(os.environ.get("BATCHES", "30"))
RES = 128


def down(i, o, norm=True):
    return nn.Sequential(nn.LeakyReLU(0.2), nn.Conv2d(i, o, 4, 2, 1, bias=not norm), nn.InstanceNorm2d(o) if norm else nn.Identity())


def up(i, o, drop=False):
    return nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.InstanceNorm2d(o), nn.Dropout(0.5 if drop else 0.0))


class Generator(nn.Module):
    def __init__(self, nf=64):
        super().__init__()
        c = [nf, nf * 2, nf * 4, nf * 8, nf * 8, nf * 8]
        self.first = nn.Conv2d(1, c[0], 4, 2, 1)
        self.downs = nn.ModuleList(down(a, b, norm=i < 4) for i, (a, b) in enumerate(zip(c, c[1:])))
        self.ups = nn.ModuleList()
        prev = c[-1]
        for i, o in enumerate(reversed(c[:-1])):
            self.ups.append(up(prev, o, drop=i < 2))
            prev = o * 2
        self.last = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(prev, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x):
        skips = [self.first(x)]
        for d in self.downs:
            skips.append(d(skips[-1]))
        y = skips.pop()
        for u in self.ups:
            y = torch.cat([u(y), skips.pop()], 1)
        return self.last(y)


class PatchDiscriminator(nn.Sequential):
    def __init__(self, nf=64):
        super().__init__(nn.Conv2d(4, nf, 4, 2, 1), down(nf, nf * 2), down(nf * 2, nf * 4),
                         nn.LeakyReLU(0.2), nn.Conv2d(nf * 4, 1, 4, 1, 1))


class Pairs(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        coarse = torch.rand(1, 3, 6, 6, generator=g) * 2 - 1
        photo = F.interpolate(coarse, size=(RES, RES), mode="bicubic")[0].clamp(-1, 1)
        gray = photo.mean(0, keepdim=True)
        edges = (F.pad(gray, (0, 1))[..., 1:] - gray).abs() + (F.pad(gray, (0, 0, 0, 1))[:, 1:] - gray).abs()
        return (edges > 0.03).float(), photo


class Pix2Pix(L.LightningModule):
    def __init__(self, lam=100.0):
        super().__init__()
        self.automatic_optimization = False
        self.lam = lam
        self.g, self.d = Generator(), PatchDiscriminator()
        self.shown = []

    def configure_optimizers(self):
        kw = dict(lr=2e-4, betas=(0.5, 0.999))
        return torch.optim.Adam(self.g.parameters(), **kw), torch.optim.Adam(self.d.parameters(), **kw)

    def adv(self, x, real):
        return F.binary_cross_entropy_with_logits(x.float(), torch.full_like(x, float(real), dtype=torch.float32))

    def training_step(self, batch, batch_idx):
        edges, photo = batch
        opt_g, opt_d = self.optimizers()
        fake = self.g(edges)

        self.toggle_optimizer(opt_d)
        d_real = self.adv(self.d(torch.cat([edges, photo], 1)), True)
        d_fake = self.adv(self.d(torch.cat([edges, fake.detach()], 1)), False)
        opt_d.zero_grad()
        self.manual_backward((d_real + d_fake) / 2)
        opt_d.step()
        self.untoggle_optimizer(opt_d)

        l1 = F.l1_loss(fake.float(), photo)
        g_loss = self.adv(self.d(torch.cat([edges, fake], 1)), True) + self.lam * l1
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()

        self.shown.append({"edges": edges, "fake": fake.float(), "photo": photo})
        if batch_idx % 10 == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx} l1 {l1.item():.4f} d {(d_real + d_fake).item():.4f}", flush=True)

    def on_train_epoch_end(self):
        last = self.shown[-1]
        err = (last["fake"] - last["photo"]).abs().mean().item()
        print(f"epoch {self.current_epoch}: {len(self.shown)} batches seen, last error {err:.4f}")

    def validation_step(self, batch, batch_idx):
        edges, photo = batch
        self.log("val_l1", F.l1_loss(self.g(edges).float(), photo), batch_size=len(edges))

    def on_validation_epoch_end(self):
        print("val_l1", round(float(self.trainer.callback_metrics["val_l1"]), 4))


def main():
    L.seed_everything(3)
    batch = max(1, round(32 * SCALE))
    train = DataLoader(Pairs(BATCHES * batch, 0), batch_size=batch, shuffle=True, num_workers=0)
    val = DataLoader(Pairs(3 * batch, 10**6), batch_size=batch)
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=3, precision="bf16-mixed", logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(Pix2Pix(), train, val)
    print("done")


if __name__ == "__main__":
    main()
