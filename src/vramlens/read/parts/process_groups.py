"""The process groups that a recording's ``meta.json`` names: whatever is not what it should be
is passed over.
"""

from __future__ import annotations

from vramlens.read.values import MOST_RANKS, as_list, as_number, text_of
from vramlens.trace import GroupMeta

_MOST_GROUPS, _MOST_SPANS, _LONGEST_NAME = 256, 1000, 100


def group_metas(value: object) -> tuple[GroupMeta, ...]:
    """The groups; each one's ranks are spans ``[first, count, step]``, or single numbers."""
    groups = []
    spans_left = _MOST_SPANS
    for group in as_list(value)[:_MOST_GROUPS]:
        if not isinstance(group, dict):
            continue
        read_spans = map(_span, as_list(group.get("ranks"))[:spans_left])
        spans = tuple(span for span in read_spans if span is not None)
        spans_left -= len(spans)
        if sum(count for _, count, _ in spans) <= MOST_RANKS:
            name = text_of(group.get("name"), _LONGEST_NAME)
            description = text_of(group.get("description"), _LONGEST_NAME)
            groups.append(GroupMeta(name, description, spans))
    return tuple(groups)


def _span(value: object) -> tuple[int, int, int] | None:
    """The first rank, how many and how far apart; one number is one rank."""
    parts = value if isinstance(value, list) and len(value) == 3 else (value, 1, 1)
    first, count, step = (as_number(part, MOST_RANKS) for part in parts)
    if first is None or not count or not step:
        return None
    return first, count, step
