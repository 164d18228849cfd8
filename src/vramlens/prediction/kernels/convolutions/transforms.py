"""The Fourier transforms that cuDNN makes results and gradients of, as a workspace has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vramlens.prediction.kernels.image_layout import bytes_of

_COMPLEX_BYTES = 8


def bytes_of_transforms(tensor: Any, weight: Any, copied: Any, *, has_result: bool) -> int:
    """Of the transforms of two operands, twice, and a copy of one of them.

    Args:
        tensor, weight: two of the convolution's; its images' sides, each with the kernel's, are
            filled up to the next power of two.
        copied: which is copied.
        has_result: whether those of results are there, too.
    """
    images, inputs = map(int, tensor.shape[:2])
    outputs = int(weight.shape[0])
    planes = images * (inputs + outputs) + (inputs * outputs if has_result else 0)
    return bytes_of(copied) + 2 * planes * bytes_of_plane(tensor.shape[2:], weight.shape[2:])


def bytes_of_plane(image_sides: Iterable[int], kernel_sides: Iterable[int]) -> int:
    """Of the transform of one channel of an image, which is as large as that of its kernel."""
    sides = zip(image_sides, kernel_sides, strict=True)
    rows, columns = (_next_power(int(image + kernel) - 1) for image, kernel in sides)
    return rows * (columns // 2 + 1) * _COMPLEX_BYTES


def _next_power(size: int) -> int:
    """The least power of two that is no less."""
    return 1 << (size - 1).bit_length()
