"""torchvision's DeepLabV3 on MobileNet with an auxiliary loss, fp16 and a scaler."""

import torch
import torch.nn.functional as F
import torchvision

torch.manual_seed(9)
model = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=21, aux_loss=True).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler()
for step in range(4):
    x = torch.rand(8, 3, 416, 416, device="cuda")
    y = torch.randint(0, 21, (8, 416, 416), device="cuda")
    with torch.autocast("cuda"):
        out = model(x)
        loss = F.cross_entropy(out["out"], y, ignore_index=255) + 0.4 * F.cross_entropy(out["aux"], y, ignore_index=255)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    union = (out["out"].argmax(1) == y).float().mean()
    print(step, loss.item(), union.item())
