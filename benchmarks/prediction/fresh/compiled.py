"""A transformer encoder under torch.compile."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_float32_matmul_precision("high")
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True, norm_first=True)
model = nn.Sequential(nn.Linear(64, 512), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), nn.Linear(512, 10))
model = torch.compile(model.cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    x, y = torch.randn(32, 256, 64, device="cuda"), torch.randint(0, 10, (32, 256), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
