"""Memory of the card that copies between host and card hold meanwhile: what differs in type or in
the order of its numbers goes through a contiguous copy.

aten/src/ATen/native/cuda/Copy.cu (copy_requires_temporaries, copy_kernel_cuda): types are changed on
the card where the copy is asynchronous, else on the host.
"""

from __future__ import annotations

from typing import Any


def bytes_beside_copy_to_card(source: Any, result: Any, *, non_blocking: bool) -> int:
    """What the card holds beside the copy of a host's tensor."""
    has_type = source.dtype is result.dtype
    if has_type and source.stride() == result.stride():
        return 0
    if result.is_contiguous() and (has_type or not non_blocking):
        return 0
    return int(source.numel() * (source if non_blocking else result).element_size())


def bytes_beside_copy_to_host(source: Any, *, is_dense: bool) -> int:
    """What the card holds beside its tensor, which the host's copy follows in the order of its
    numbers where they lie dense.
    """
    return 0 if is_dense or source.is_contiguous() else int(source.numel() * source.element_size())
