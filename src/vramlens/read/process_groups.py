"""The process groups that a recording's ``meta.json`` names: whatever is not what it should be is passed over."""

from __future__ import annotations

from vramlens.trace import GroupMeta

_MOST_GROUPS, _MOST_SPANS, _MOST_RANKS, _LONGEST_NAME = 256, 1000, 1_000_000, 100


def group_metas(value: object) -> tuple[GroupMeta, ...]:
    """The groups; each one's ranks are spans ``[first, count, step]``, or single numbers."""
    found = []
    left = _MOST_SPANS
    for entry in value[:_MOST_GROUPS] if isinstance(value, list) else ():
        if not isinstance(entry, dict):
            continue
        ranks = entry.get("ranks")
        spans = [
            span for each in (ranks[:left] if isinstance(ranks, list) else ()) if (span := _span(each)) is not None
        ]
        left -= len(spans)
        if sum(count for _, count, _ in spans) <= _MOST_RANKS:
            found.append(GroupMeta(_name(entry.get("name")), _name(entry.get("description")), tuple(spans)))
    return tuple(found)


def _span(value: object) -> tuple[int, int, int] | None:
    parts = [
        part
        for part in (value if isinstance(value, list) else [value, 1, 1])[:4]
        if isinstance(part, int) and not isinstance(part, bool) and 0 <= part <= _MOST_RANKS
    ]
    if len(parts) != 3 or (isinstance(value, list) and len(value) != 3) or not parts[1] or not parts[2]:
        return None
    return parts[0], parts[1], parts[2]


def _name(value: object) -> str:
    return value[:_LONGEST_NAME] if isinstance(value, str) else ""
