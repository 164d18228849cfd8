"""Results of a stream of predictions, kept in a list on the device: https://github.com/ultralytics/ultralytics/issues/3983"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["outputs"], "bytes_per_step": 4 * 2 * 3 * 96 * 96}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Boxes:
    __slots__ = ("data", "shape")

    def __init__(self, data, shape):
        self.data = data
        self.shape = shape


class Results:
    __slots__ = ("boxes", "orig_img", "path", "speed")

    def __init__(self, orig_img, path, boxes):
        self.orig_img, self.path, self.boxes = orig_img, path, boxes
        self.speed = {"preprocess": 0.1, "inference": 1.0}


class Predictor:
    def __init__(self, model):
        self.model = model.eval()
        self.seen = 0

    def preprocess(self, images):
        return torch.stack(images).div(255)  # ALLOCATES

    @torch.no_grad()
    def stream(self, sources):
        for images in sources:
            batch = self.preprocess(images)
            scores = self.model(batch).flatten(1)
            results = [
                Results(batch[number], f"{self.seen + number}.jpg", Boxes(scores[number, :6].tolist(), batch.shape))
                for number in range(len(batch))
            ]
            self.seen += len(batch)
            yield results


def main():
    predictor = Predictor(nn.Conv2d(3, 4, 5, stride=4).to(DEVICE))
    images = [torch.randint(0, 255, (3, 96, 96), device=DEVICE) for _ in range(2)]
    watch = vramlens.LeakWatch()
    outputs = []
    paths = []
    for results in predictor.stream([images] * 20):
        outputs.extend(results)  # KEEPS
        # FIX: outputs.extend(each.path for each in results)
        paths.extend(each.path for each in results)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
