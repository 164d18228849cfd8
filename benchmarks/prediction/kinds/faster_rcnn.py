"""torchvision's Faster R-CNN: targets of different sizes, warm-up, SGD."""

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

torch.manual_seed(0)
device = torch.device("cuda")
model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5).to(device)
optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.01, momentum=0.9)
warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
for step in range(2):
    images = [torch.rand(3, 240 + 20 * number, 300, device=device) for number in range(3)]
    targets = []
    for number in range(3):
        corner = torch.rand(2 + number, 2, device=device) * 100
        boxes = torch.cat([corner, corner + 20 + torch.rand(2 + number, 2, device=device) * 50], 1)
        targets.append({"boxes": boxes, "labels": torch.randint(1, 5, (2 + number,), device=device)})
    losses = model(images, targets)
    loss = sum(losses.values())
    if not torch.isfinite(loss):
        raise SystemExit(f"loss is {loss}")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warm_up.step()
    print(step, {name: round(part.item(), 3) for name, part in losses.items()})
