"""Rank numbers in file names: ``rank3.pickle``, ``global-rank 3``, ``run.r3.vram``."""

from __future__ import annotations

import re

# "rank0003", "rank_3", "global-rank 3", "r3" between separators; the last such in the name counts.
RANK_IN_NAME = re.compile(
    r"(?i)rank[_\-. ]?0*(\d{1,7})(?!\d)|(?:^|[_\-./])r0*(\d{1,7})(?=[_\-./]|$)"
)


def rank_in_name(text: str) -> int | None:
    """The number of the rank that a file's name says last; None where it says none."""
    matches = list(RANK_IN_NAME.finditer(text))
    return int(next(filter(None, matches[-1].groups()))) if matches else None


def names_a_rank(path: str) -> bool:
    """True if a path contains the number of a rank."""
    return RANK_IN_NAME.search(path) is not None
