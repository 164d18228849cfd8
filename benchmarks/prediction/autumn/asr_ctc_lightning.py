"""Wav2vec-like CTC speech recogniser in Lightning: raw-waveform conv front-end, checkpointed encoder, bf16."""
import os
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
TINY = os.environ.get("TINY") == "1"
SCALE = float(os.environ.get("SCALE", "1"))
SR = 1600 if TINY else 16000
N_CHARS = 32


class TonesDataset(Dataset):
    """Every character is a tone of its own frequency; utterances last 4 to 9 seconds."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.secs = (4 + 5 * torch.rand(n, generator=g)).tolist()
        self.seeds = torch.randint(0, 2 ** 31, (n,), generator=g).tolist()

    def __len__(self):
        return len(self.secs)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seeds[i])
        n_chars = int(self.secs[i] * 3)
        text = torch.randint(1, N_CHARS, (n_chars,), generator=g)
        per = int(self.secs[i] * SR) // n_chars
        t = torch.arange(per) / SR
        wave = torch.cat([torch.sin(2 * torch.pi * (100 + 60 * c) * t) for c in text.tolist()])
        return wave + 0.1 * torch.randn(wave.numel(), generator=g), text


def collate(items):
    waves, texts = zip(*items)
    wl = torch.tensor([w.numel() for w in waves])
    tl = torch.tensor([t.numel() for t in texts])
    return (nn.utils.rnn.pad_sequence(waves, batch_first=True), wl,
            nn.utils.rnn.pad_sequence(texts, batch_first=True), tl)


class ConvFrontEnd(nn.Module):
    spec = [(10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2)]

    def __init__(self, ch):
        super().__init__()
        layers = []
        for i, (k, s) in enumerate(self.spec):
            layers.append(nn.Sequential(nn.Conv1d(1 if i == 0 else ch, ch, k, s, bias=False),
                                        nn.GroupNorm(8, ch), nn.GELU()))
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        x = x.unsqueeze(1)
        for layer in self.layers:
            x = layer(x)
        return x.transpose(1, 2)

    def out_length(self, n):
        for k, s in self.spec:
            n = (n - k) // s + 1
        return n


class ConformerBlock(nn.Module):
    def __init__(self, dim, heads, kernel=15):
        super().__init__()
        self.ff1 = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
        self.ff2 = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
        self.attn_norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.conv_norm = nn.LayerNorm(dim)
        self.pw1 = nn.Conv1d(dim, 2 * dim, 1)
        self.dw = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.dw_norm = nn.GroupNorm(1, dim)
        self.pw2 = nn.Conv1d(dim, dim, 1)
        self.out_norm = nn.LayerNorm(dim)

    def forward(self, x, pad):
        x = x + 0.5 * self.ff1(x)
        h = self.attn_norm(x)
        x = x + self.attn(h, h, h, key_padding_mask=pad, need_weights=False)[0]
        c = F.glu(self.pw1(self.conv_norm(x).transpose(1, 2)), dim=1)
        c = self.pw2(F.silu(self.dw_norm(self.dw(c)))).transpose(1, 2)
        x = x + c
        x = x + 0.5 * self.ff2(x)
        return self.out_norm(x)


class CTCModel(L.LightningModule):
    def __init__(self, ch, dim, depth, heads, lr=5e-4):
        super().__init__()
        self.front = ConvFrontEnd(ch)
        self.proj = nn.Linear(ch, dim)
        self.blocks = nn.ModuleList(ConformerBlock(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, N_CHARS)
        self.lr = lr

    def forward(self, wave, wave_len):
        x = self.proj(self.front(wave))
        flen = self.front.out_length(wave_len)
        pad = torch.arange(x.size(1), device=x.device)[None] >= flen[:, None]
        for block in self.blocks:
            if self.training:
                x = checkpoint(block, x, pad, use_reentrant=False)
            else:
                x = block(x, pad)
        return self.head(x), flen

    def _loss(self, batch):
        wave, wl, text, tl = batch
        logits, flen = self(wave, wl)
        logp = logits.float().log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(logp, text, flen, tl, blank=0, zero_infinity=True), logits

    def training_step(self, batch, batch_idx):
        loss, _ = self._loss(batch)
        if self.global_step % 4 == 0:
            print(f"step {self.global_step} frames {batch[0].size(1)} ctc {loss.item():.3f}")
        return loss

    def validation_step(self, batch, batch_idx):
        loss, logits = self._loss(batch)
        self.log("val_loss", loss, batch_size=batch[0].size(0))
        blank = (logits.argmax(-1) == 0).float().mean()
        self.log("val_blank", blank, batch_size=batch[0].size(0))

    def on_validation_epoch_end(self):
        m = self.trainer.callback_metrics
        print(f"validation loss {m['val_loss'].item():.3f} blank rate {m['val_blank'].item():.3f}")

    def configure_optimizers(self):
        opt = torch.optim.NAdam(self.parameters(), lr=self.lr, weight_decay=1e-3, decoupled_weight_decay=True)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, self.lr, total_steps=self.trainer.max_steps)
        return [opt], [{"scheduler": sched, "interval": "step"}]


if __name__ == "__main__":
    L.seed_everything(17)
    bs = max(1, round((2 if TINY else 14) * SCALE))
    steps = 4 if TINY else 16
    train = DataLoader(TonesDataset(bs * steps, 0), batch_size=bs, shuffle=True, collate_fn=collate)
    val = DataLoader(TonesDataset(bs * 2, 1), batch_size=bs, collate_fn=collate)
    model = CTCModel(32, 32, 2, 2) if TINY else CTCModel(256, 384, 8, 6)
    trainer = L.Trainer(
        accelerator="auto",
        devices=1,
        max_steps=steps,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, train, val)
    print("done")
