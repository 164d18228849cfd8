"""A tolerance: how much more is still as good."""

from __future__ import annotations

import re
from collections.abc import Callable

from vramlens.errors import UsageError
from vramlens.units import parse_size

_SHARE = re.compile(r"\s*(?:([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%|(0\.[0-9]{1,9}))\s*", re.ASCII)


def parse_tolerance(text: str) -> Callable[[int], int]:
    """What ``64MiB``, ``2%`` or ``0.02`` lets a number of bytes rise by: a function of it.

    Raises:
        UsageError: it is neither a size nor a share.
    """
    share = _SHARE.fullmatch(text)
    if share is not None:
        part = float(share[1]) / 100 if share[1] else float(share[2])
        return lambda size_bytes: int(size_bytes * part)
    try:
        fixed = parse_size(text)
    except (UsageError, OverflowError, ValueError):
        raise UsageError(f"{text[:40]!r} is not a size or a share: write 64MiB or 2%") from None
    return lambda _size_bytes: fixed
