"""Translation with nn.Transformer: sentences of mixed lengths, padding masks, greedy decoding."""

import math
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD, BOS, EOS, VOCAB = 0, 1, 2, 8000
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class PositionalEncoding(nn.Module):
    def __init__(self, size, dropout, longest=512):
        super().__init__()
        den = torch.exp(-torch.arange(0, size, 2) * math.log(10000) / size)
        pos = torch.arange(0, longest).reshape(longest, 1)
        table = torch.zeros((longest, size))
        table[:, 0::2], table[:, 1::2] = torch.sin(pos * den), torch.cos(pos * den)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("table", table.unsqueeze(1))

    def forward(self, x):
        return self.dropout(x + self.table[: x.size(0)])


class Seq2Seq(nn.Module):
    def __init__(self, size=512, heads=8, layers=3, hidden=2048, dropout=0.1):
        super().__init__()
        self.transformer = nn.Transformer(size, heads, layers, layers, hidden, dropout)
        self.generator = nn.Linear(size, VOCAB)
        self.src, self.tgt = nn.Embedding(VOCAB, size), nn.Embedding(VOCAB, size)
        self.positions, self.scale = PositionalEncoding(size, dropout), math.sqrt(size)

    def encode(self, src, mask):
        return self.transformer.encoder(self.positions(self.src(src) * self.scale), mask)

    def decode(self, tgt, memory, mask):
        return self.transformer.decoder(self.positions(self.tgt(tgt) * self.scale), memory, mask)

    def forward(self, src, tgt, src_mask, tgt_mask, src_pad, tgt_pad):
        a, b = self.positions(self.src(src) * self.scale), self.positions(self.tgt(tgt) * self.scale)
        out = self.transformer(a, b, src_mask, tgt_mask, None, src_pad, tgt_pad, src_pad)
        return self.generator(out)


def causal(size):
    mask = (torch.triu(torch.ones((size, size), device=DEVICE)) == 1).transpose(0, 1)
    return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)


def masks(src, tgt):
    a, b = src.shape[0], tgt.shape[0]
    src_mask = torch.zeros((a, a), device=DEVICE).type(torch.bool)
    return src_mask, causal(b), (src == PAD).transpose(0, 1), (tgt == PAD).transpose(0, 1)


def sentence(generator):
    words = [generator.randrange(3, VOCAB) for _ in range(generator.randrange(10, 120))]
    return torch.tensor([BOS, *words, EOS])


def collate(pairs):
    return tuple(pad_sequence(list(side), padding_value=PAD) for side in zip(*pairs))


generator = random.Random(7)
pairs = [(sentence(generator), sentence(generator)) for _ in range(320)]
torch.manual_seed(0)
model = Seq2Seq().to(DEVICE)
for p in model.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
loss_fn = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
losses = 0
model.train()
for src, tgt in DataLoader(pairs, batch_size=64, collate_fn=collate):
    src, tgt = src.to(DEVICE), tgt.to(DEVICE)
    tgt_input = tgt[:-1, :]
    logits = model(src, tgt_input, *masks(src, tgt_input))
    optimizer.zero_grad()
    loss = loss_fn(logits.reshape(-1, logits.shape[-1]), tgt[1:, :].reshape(-1))
    loss.backward()
    optimizer.step()
    losses += loss.item()
print("train", losses / 5)
model.eval()
src = pairs[0][0].view(-1, 1).to(DEVICE)
with torch.no_grad():
    memory = model.encode(src, torch.zeros(src.shape[0], src.shape[0], device=DEVICE).bool())
    ys = torch.ones(1, 1, device=DEVICE).fill_(BOS).type(torch.long)
    for _ in range(20):
        out = model.decode(ys, memory, causal(ys.size(0)).bool())
        word = model.generator(out.transpose(0, 1)[:, -1]).max(dim=1)[1].item()
        ys = torch.cat([ys, torch.ones(1, 1).type_as(src.data).fill_(word)], dim=0)
        if word == EOS:
            break
print(ys.flatten().tolist())
