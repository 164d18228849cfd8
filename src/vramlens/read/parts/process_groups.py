"""The process groups that a recording's ``meta.json`` names: whatever is not what it should be
is passed over.
"""

from __future__ import annotations

from vramlens.read.values import MOST_RANKS, as_list, as_number, as_text
from vramlens.trace import GroupMeta

_MOST_GROUPS, _MOST_SPANS, _LONGEST_NAME = 256, 1000, 100


def group_metas(value: object) -> tuple[GroupMeta, ...]:
    """The groups; each one's ranks are spans ``[first, count, step]``, or single numbers."""
    groups = []
    spans_left = _MOST_SPANS
    for group in as_list(value)[:_MOST_GROUPS]:
        if not isinstance(group, dict):
            continue
        spans = [
            span
            for ranks in as_list(group.get("ranks"))[:spans_left]
            if (span := _span(ranks)) is not None
        ]
        spans_left -= len(spans)
        if sum(count for _, count, _ in spans) <= MOST_RANKS:
            groups.append(
                GroupMeta(_name(group.get("name")), _name(group.get("description")), tuple(spans))
            )
    return tuple(groups)


def _span(value: object) -> tuple[int, int, int] | None:
    """The first rank, how many and how far apart; one number is one rank."""
    parts = value if isinstance(value, list) and len(value) == 3 else (value, 1, 1)
    first, count, step = (as_number(part, MOST_RANKS) for part in parts)
    if first is None or not count or not step:
        return None
    return first, count, step


def _name(value: object) -> str:
    return as_text(value, _LONGEST_NAME) or ""
