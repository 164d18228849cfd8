"""Enlarged images (``torch.nn.functional.interpolate``): how their results lie, and the copies that
their gradients are made from.

aten/src/ATen/native/UpSample*.cpp: a result lies as its input does, of few channels, too, where
PyTorch's formula for shapes says otherwise. cuda/UpSampleBilinear2d.cu and its neighbors copy a
gradient whose numbers lie apart.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_FORWARD = re.compile(r"aten\.upsample_(nearest|bilinear|bicubic)2d")
_BACKWARD = re.compile(r"aten\._?upsample_\w+_backward")


def has_channels_last(name: str, args: Any) -> bool:
    """Whether an operator enlarges images on the device whose channels lie last."""
    if not _FORWARD.fullmatch(name) or args[0].fake_device.type != "cuda":
        return False
    return _format_of(args[0]) is torch.channels_last


def copied_gradient(name: str, args: Any) -> int:
    """Bytes of the copy that a backward makes of its gradient."""
    if not _BACKWARD.fullmatch(name):
        return 0
    gradient = args[0]
    is_ordered = gradient.is_contiguous(memory_format=_format_of(gradient))
    return 0 if is_ordered else int(gradient.nbytes)


def _format_of(image: Any) -> Any:
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(image)
