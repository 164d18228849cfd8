"""A ViT classifier: only the head at first, then everything; mixup, label smoothing, SGD with momentum."""

import torch
import torch.nn.functional as F
from transformers import ViTConfig, ViTForImageClassification

device = torch.device("cuda")
torch.manual_seed(3)
model = ViTForImageClassification(ViTConfig(hidden_size=576, num_hidden_layers=10, num_attention_heads=9, intermediate_size=2304, num_labels=100))
model.to(device)


def train(parameters, steps, lr):
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True)
    for _ in range(steps):
        images = torch.randn(48, 3, 224, 224, device=device)
        labels = F.one_hot(torch.randint(0, 100, (48,), device=device), 100).float()
        share = 0.3
        order = torch.randperm(48, device=device)
        images = share * images + (1 - share) * images[order]
        labels = share * labels + (1 - share) * labels[order]
        logits = model(pixel_values=images).logits
        loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


for parameter in model.vit.parameters():
    parameter.requires_grad_(False)
print(train(model.classifier.parameters(), 2, 0.1))
for parameter in model.parameters():
    parameter.requires_grad_(True)
print(train(model.parameters(), 3, 0.01))
