"""Knowledge distillation: a ResNet-50 teacher, a ResNet-18 student, mixup."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision

device = torch.device("cuda")
torch.backends.cudnn.benchmark = False
torch.manual_seed(0)
teacher = torchvision.models.resnet50(num_classes=100).to(device).eval()
student = torchvision.models.resnet18(num_classes=100).to(device)
for p in teacher.parameters():
    p.requires_grad = False
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
T, alpha = 4.0, 0.9
history = []
for step in range(5):
    x, y = torch.randn(64, 3, 160, 160, device=device), torch.randint(0, 100, (64,), device=device)
    lam = float(torch.distributions.Beta(0.4, 0.4).sample())
    index = torch.randperm(x.size(0), device=device)
    x = lam * x + (1 - lam) * x[index]
    with torch.no_grad():
        soft = F.softmax(teacher(x) / T, dim=1)
    logits = student(x)
    hard = lam * F.cross_entropy(logits, y) + (1 - lam) * F.cross_entropy(logits, y[index])
    loss = alpha * T * T * F.kl_div(F.log_softmax(logits / T, dim=1), soft, reduction="batchmean") + (1 - alpha) * hard
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
    top1, top5 = (logits.topk(5, dim=1).indices == y[:, None]).float().cumsum(1)[:, [0, 4]].mean(0).tolist()
    print(f"{step} loss {history[-1]:.3f} top1 {top1:.3f} top5 {top5:.3f}")
    if not torch.isfinite(loss):
        raise RuntimeError("diverged")
