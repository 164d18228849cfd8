"""torchvision's RetinaNet on images of two sizes."""

import torch
import torchvision

torch.manual_seed(8)
model = torchvision.models.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=20, min_size=480, max_size=800).cuda()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.005, momentum=0.9)
model.train()
for step in range(3):
    images, targets = [], []
    for place in range(4):
        height, width = (480, 640) if (place + step) % 2 else (500, 375)
        images.append(torch.rand(3, height, width, device="cuda"))
        corner = torch.rand(5, 2) * torch.tensor([width * 0.5, height * 0.5])
        boxes = torch.cat([corner, corner + 40 + torch.rand(5, 2) * 100], dim=1)
        targets.append({"boxes": boxes.cuda(), "labels": torch.randint(1, 20, (5,)).cuda()})
    losses = model(images, targets)
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, {name: round(value.item(), 3) for name, value in losses.items()})
