"""Inference with test-time augmentation, half precision and a saved checkpoint."""

import argparse
import os
import tempfile

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm


class Images(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, 256, 256, generator=generator), index % 100


def views(x):
    yield x
    yield x.flip(-1)
    for top, left in ((0, 0), (0, 32), (32, 0), (32, 32)):
        yield x[:, :, top : top + 224, left : left + 224]


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--images", type=int, default=160)
args = parser.parse_args()
path = os.path.join(tempfile.mkdtemp(), "model.pt")
torch.save(torchvision.models.resnet50(num_classes=100).state_dict(), path)
model = torchvision.models.resnet50(num_classes=100)
model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
model = model.half().cuda().eval()
loader = DataLoader(Images(args.images), batch_size=args.batch_size, num_workers=2, pin_memory=True)
correct, results = 0, []
with torch.inference_mode():
    for images, labels in tqdm(loader):
        images = images.cuda(non_blocking=True).half()
        probabilities = torch.stack([model(view).float().softmax(-1) for view in views(images)]).mean(0)
        correct += (probabilities.argmax(-1).cpu() == labels).sum().item()
        results.append(probabilities.cpu())
print(f"accuracy {correct / args.images:.3f}", torch.cat(results).shape)
