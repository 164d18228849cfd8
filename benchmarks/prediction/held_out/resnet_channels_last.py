"""torchvision's ResNet-34, channels last, bf16 autocast, OneCycle, validation in between."""

import torch
import torchvision

torch.manual_seed(7)
model = torchvision.models.resnet34(num_classes=200).to("cuda", memory_format=torch.channels_last)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, total_steps=20)
for epoch in range(2):
    model.train()
    for _ in range(4):
        x = torch.rand(96, 3, 192, 192).to("cuda", memory_format=torch.channels_last, non_blocking=True)
        y = torch.randint(0, 200, (96,)).to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    right = 0
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        x = torch.rand(160, 3, 192, 192).to("cuda", memory_format=torch.channels_last)
        right += (model(x).argmax(1) == torch.randint(0, 200, (160,), device="cuda")).sum().item()
    print(epoch, loss.item(), right)
