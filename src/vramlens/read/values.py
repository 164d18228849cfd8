"""Values of a file that anybody may have made: nothing for whatever is not what it should be."""

from __future__ import annotations

from typing import Any

LONGEST_TEXT = 1000
MOST_RANKS = 1 << 18
"""Of a job: who counts up to a rank that a file names, or lists those that are missing, must
come to an end.
"""
MOST_DEVICES = 128
"""Of a process: PyTorch is built for at most 120 (C10_COMPILE_TIME_MAX_GPUS in
c10/cuda/CUDAMacros.h).
"""
LARGEST_NUMBER = 1 << 50
"""A petabyte, 35 years in microseconds: larger ones are not sizes, and would overflow in sums."""


def as_text(value: object, longest: int = LONGEST_TEXT) -> str | None:
    """A text, cut to the longest that is kept; None for all else."""
    return value[:longest] if isinstance(value, str) else None


def text_of(value: object, longest: int = LONGEST_TEXT) -> str:
    """A text, cut to the longest that is kept; the empty text for all else."""
    return as_text(value, longest) or ""


def as_number(value: object, largest: int = LARGEST_NUMBER) -> int | None:
    """A whole number from 0 to the largest; None for all else, True and False too."""
    return value if type(value) is int and 0 <= value <= largest else None


def as_size(value: object) -> int | None:
    """A number of bytes above 0; None for all else."""
    return as_number(value) or None


def as_fraction(value: object) -> float | None:
    """A number from 0 to below a billion, whole or not; None for all else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < 1e9 else None


def as_list(value: object) -> list[Any]:
    """A list, or a pickle's tuple as one; empty for all else."""
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, list) else []


def as_dict(value: object) -> dict[Any, Any]:
    """A dict, whose keys are texts if it comes from JSON; empty for all else."""
    return value if isinstance(value, dict) else {}
