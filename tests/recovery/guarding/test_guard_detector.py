"""Detectors under the guard: lists of images and of targets, a dict of losses, BatchNorm,
numbers of boxes that differ.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from recovery.training import furthest
from vramlens.recovery import guard, inject_oom
from vramlens.recovery.splitting.batch_parts import BatchSamples, CannotSplit


class Detector(nn.Module):
    """As torchvision's: images of any size, targets with any number of boxes, losses by name."""

    def __init__(self, over: str = "images", draws: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()) for a in (3, 8, 8)
        )
        self.boxes, self.classes, self.over, self.draws = (
            nn.Linear(8, 4),
            nn.Linear(8, 5),
            over,
            draws,
        )

    def forward(
        self, images: list[torch.Tensor], targets: list[dict[str, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        side = max(max(image.shape[1:]) for image in images)
        x = torch.stack(
            [functional.pad(i, (0, side - i.shape[2], 0, side - i.shape[1])) for i in images]
        )
        for block in self.blocks:
            x = block(x)
        found: dict[str, list[torch.Tensor]] = {"boxes": [], "classes": []}
        for one, target in zip(x.mean((2, 3)), targets, strict=True):
            count = len(target["labels"])
            if self.draws:
                one = one[torch.randperm(8)]
            found["boxes"].append((self.boxes(one).expand(count, 4) - target["boxes"]).abs().sum())
            scores = self.classes(one).expand(count, 5)
            found["classes"].append(
                functional.cross_entropy(scores, target["labels"], reduction="sum")
            )
        over = (
            len(images)
            if self.over == "images"
            else sum(len(target["labels"]) for target in targets)
        )
        return {name: torch.stack(parts).sum() / over for name, parts in found.items()}


def detector(frozen: bool = False, **options: Any) -> Detector:
    torch.manual_seed(0)
    model = Detector(**options).double()
    for module in model.modules():
        if frozen and isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


def pictures(count: int = 6) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    generator = torch.Generator().manual_seed(3)
    images = [
        torch.rand(3, 16, 16 - 2 * (k % 2), dtype=torch.float64, generator=generator)
        for k in range(count)
    ]
    targets = [
        {
            "boxes": torch.rand(k % 3, 4, dtype=torch.float64, generator=generator),
            "labels": torch.arange(k % 3) % 5,
            "image_id": torch.tensor([k]),
        }
        for k in range(1, count + 1)
    ]
    return images, targets


def loss_fn(model: Any, batch: Any) -> torch.Tensor:
    return sum(model(*batch).values())


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def truth(**options: Any) -> tuple[Detector, dict[str, torch.Tensor]]:
    plain = detector(**options)
    loss_fn(plain, pictures()).backward()
    return plain, gradients(plain)


def refusal(model: nn.Module, **options: Any) -> str:
    watch = guard(model, order=("split",), **options)
    with inject_oom("forward"), pytest.raises(torch.OutOfMemoryError) as stopped:
        watch.step(pictures(), loss_fn)
    return str(stopped.value)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_with_frozen_norms_it_is_split_with_the_same_gradients(phase: str) -> None:
    _, expected = truth(frozen=True)
    model = detector(frozen=True)
    watch = guard(model)
    with inject_oom(phase):
        watch.step(pictures(), loss_fn)
    assert watch.micro_batch == 3
    assert furthest(gradients(model), expected) < 1e-10


def test_norms_that_learn_are_named_and_blocks_are_recomputed_instead() -> None:
    text = refusal(detector())
    assert (
        "BatchNorm2d blocks.0.1 and 2 more normalise over the batch, so each part is normalized separately"
        in text
    )
    assert text.splitlines()[-1].endswith(
        "GroupNorm, the norms in eval() if they should not learn, or guard(..., strict=False), which splits even though gradients change"
    )
    plain, expected = truth()
    model = detector()
    watch = guard(model)
    with inject_oom("forward"):
        watch.step(pictures(), loss_fn)
    assert watch.micro_batch is None
    assert watch.state_dict()["checkpointed"]
    assert furthest(gradients(model), expected) < 1e-10
    for (name, ours), theirs in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs), name


def test_a_mean_over_boxes_is_refused_until_it_is_counted() -> None:
    """As SSD's, which divides by the boxes of the whole batch."""
    assert "return (sum, count) or pass count_fn" in refusal(detector(frozen=True, over="boxes"))
    _, expected = truth(frozen=True, over="boxes")
    model = detector(frozen=True, over="boxes")
    watch = guard(model, count_fn=lambda batch: sum(len(target["labels"]) for target in batch[1]))
    with inject_oom("backward"):
        watch.step(pictures(), loss_fn)
    assert furthest(gradients(model), expected) < 1e-10


def test_random_proposals_and_norms_are_both_named() -> None:
    """As Faster R-CNN's, which draws the proposals that it learns from."""
    text = refusal(detector(draws=True))
    assert (
        "normalized separately; besides, the model or the loss uses its own random numbers" in text
    )
    alone = refusal(detector(frozen=True, draws=True))
    assert "does not split: the model or the loss uses its own random numbers" in alone
    assert "verify=False" in alone.splitlines()[-1]


def test_a_norm_that_one_sample_cannot_pass_is_named() -> None:
    model = detector()
    images, targets = pictures(3)
    small = [image[:, :4, :4] for image in images]  # one pixel is left for the last norm
    watch = guard(model, order=("split",))
    with inject_oom("forward"), pytest.raises(torch.OutOfMemoryError) as stopped:
        watch.step((small, targets), loss_fn)
    assert "BatchNorm2d blocks.0.1 and 2 more normalise" in str(stopped.value)
    assert "loss_fn fails on 1 of" in str(stopped.value)


def test_targets_that_are_fewer_than_the_images_are_named() -> None:
    images, targets = pictures(6)
    with pytest.raises(CannotSplit, match=r"batch\[1\] has 5"):
        BatchSamples((torch.stack([image[:, :, :14] for image in images]), targets[:5]))
