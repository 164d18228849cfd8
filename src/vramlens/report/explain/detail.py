"""Detail: how much of an explanation is shown, from all of it to what fits a small screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vramlens.report.explain.holder_tables import DEFAULT_TOP

MOST_FRAMES = 12


@dataclass(frozen=True, slots=True)
class Detail:
    """How much of each part is shown."""

    rows: int
    frames: int
    claims: int = 99
    titles: bool = True
    evidence: bool = True
    meanings: bool = True
    refuted: int = 99
    notes: int = 99
    unknown: int = 99
    growth: int = 99
    ledger: bool = True
    whole_device: bool = True
    origin: bool = True
    steps: bool = True
    header: bool = True
    blanks: int = 2


def details(*, wide: bool) -> Iterator[Detail]:
    """From all to little: what matters least in a failure goes first, who holds the memory and what
    to do last.

    Args:
        wide: columns that lie far apart need their headings; where they are close the units beside
            the numbers do.
    """
    headings = {"header": 0}
    most = DEFAULT_TOP
    detail = Detail(most, frames=MOST_FRAMES)
    yield detail
    changes: tuple[dict[str, int], ...] = (
        {"origin": 0},
        {"whole_device": 0},
        {"frames": 4},
        {"evidence": 0},
        {"claims": 3, "refuted": 3, "notes": 2, "unknown": 2, "growth": 2},
        {"steps": 0},
        {"notes": 0},
        {"meanings": 0},
        {"rows": min(most, 6), "frames": 2},
        {"unknown": 1, "growth": 1},
        {"titles": 0},
        {"rows": min(most, 4), "frames": 1},
        {"unknown": 0, "claims": 2, "refuted": 2},
        {"blanks": 1},
        {"refuted": 1},
        {"rows": min(most, 3)},
        {"blanks": 0},
        *([] if wide else [headings]),
        {"rows": min(most, 2)},
        {"refuted": 0},
        {"claims": 1},
        *([headings] if wide else []),
        {"growth": 0},
        {"ledger": 0},
        {"rows": 1},
    )
    for change in changes:
        detail = replace(detail, **change)  # type: ignore[arg-type]
        yield detail
