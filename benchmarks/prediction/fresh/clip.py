"""Contrastive training of an image and a text tower, bf16."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class TextTower(nn.Module):
    def __init__(self, width=384, layers=4):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(20000, width), nn.Parameter(torch.randn(77, width) * 0.01)
        layer = nn.TransformerEncoderLayer(width, 6, width * 4, activation="gelu", batch_first=True, norm_first=True)
        self.layers, self.norm = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.LayerNorm(width)

    def forward(self, text):
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        x = self.layers(self.tokens(text) + self.positions, mask=mask, is_causal=True)
        return self.norm(x)[torch.arange(len(x)), text.argmax(-1)]


class ImageTower(nn.Module):
    def __init__(self, width=384, layers=6, size=224, patch=16):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch, bias=False)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn((size // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 6, width * 4, activation="gelu", batch_first=True, norm_first=True)
        self.layers, self.norm = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.LayerNorm(width)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        return self.norm(self.layers(x)[:, 0])


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = ImageTower(), TextTower()
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def forward(self, image, text):
        a, b = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
        return self.logit_scale.exp() * a @ b.t()


torch.manual_seed(0)
model = CLIP().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), weight_decay=0.2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-4, total_steps=10)
for step in range(4):
    images = torch.randn(96, 3, 224, 224).cuda(non_blocking=True)
    texts = torch.randint(1, 19999, (96, 77)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(images, texts)
        target = torch.arange(len(logits), device=logits.device)
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model.logit_scale.clamp_(0, np.log(100))
        accuracy = (logits.argmax(1) == target).float().mean()
    print(step, loss.item(), accuracy.item(), scheduler.get_last_lr()[0])
