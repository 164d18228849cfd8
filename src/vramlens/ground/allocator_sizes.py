"""The sizes of PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp), in bytes."""

from __future__ import annotations

MIN_BLOCK = 512
"""What a request is rounded up to (kMinBlockSize)."""
SMALL_REQUEST = 1 << 20
"""Blocks up to this come from the small pool (kSmallSize)."""
SMALL_SEGMENT = 2 << 20
"""A segment of the small pool (kSmallBuffer)."""
LARGE_REQUEST = 10 << 20
"""From this size on a block has a segment of its own (kMinLargeAlloc)."""
LARGE_SEGMENT = 20 << 20
"""The segment that smaller blocks of the large pool share, unless a setting says otherwise
(kLargeBuffer).
"""
PAGE = 2 << 20
"""What the driver is asked for is rounded up to this (kRoundLarge)."""


def block_size(size_bytes: int) -> int:
    """The block that serves a request, without what settings round up beyond that."""
    return -(-size_bytes // MIN_BLOCK) * MIN_BLOCK


def in_pages(size_bytes: int) -> int:
    """The size in whole pages of the driver."""
    return -(-size_bytes // PAGE) * PAGE


def segment_size(size_bytes: int, large_segment_bytes: int = LARGE_SEGMENT) -> int:
    """The segment that is asked of the driver for a rounded block (get_allocation_size)."""
    if size_bytes <= SMALL_REQUEST:
        return SMALL_SEGMENT
    return large_segment_bytes if size_bytes < LARGE_REQUEST else in_pages(size_bytes)
