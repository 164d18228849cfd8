"""The same requests with some tensors given back a little later: another history of the allocator.

When a tensor goes is decided by the last that holds it: a frame of Python, a node of autograd, a
temporary of C++. These let go within an operator or two of each other, and versions of PyTorch and
of libraries differ in the order. The bytes that are alive hardly change, but which cached block
serves the next request may, and with it what is reserved.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vramlens.prediction.requests.request_log import EMPTY_CACHE, FREE, RequestLog

_HISTORIES = 8
_SHARE, _MOST_EVENTS = 0.1, 2
"""Of the frees that come later, and by how many events at most."""


def with_shifted_frees(log: RequestLog) -> Iterator[RequestLog]:
    """The requests with a tenth of the frees up to two events later, several times."""
    kinds, rows = np.array(log.kinds), np.array(log.rows)
    places = np.arange(len(kinds), dtype=np.float64)
    emptied = np.append(np.flatnonzero(kinds == EMPTY_CACHE), len(kinds))
    next_emptied = emptied[np.searchsorted(emptied, places)]
    for seed in range(_HISTORIES):
        draws = np.random.default_rng(seed)
        is_later = (kinds == FREE) & (draws.random(len(kinds)) < _SHARE)
        later = places + draws.integers(1, _MOST_EVENTS + 1, len(kinds)) + 0.5
        moved = np.where(is_later, np.minimum(later, next_emptied - 0.5), places)
        order = np.argsort(moved, kind="stable")
        shifted = log.plain()
        shifted.events = list(zip(kinds[order].tolist(), rows[order].tolist(), strict=True))
        yield shifted
