"""Cuts: what goes first where the explanation of a failure has little room on a screen.

What matters least goes first; who holds the memory and what to do stay to the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vramlens.report.document import Cut

_Changes = Mapping[str, Any]
_GONE: _Changes = {"shown": False}
_WIDE = 100
"""Columns that lie far apart need their names; where they are close the units beside the numbers
do.
"""
LADDER: tuple[Mapping[str, _Changes], ...] = (
    {"origin": _GONE},
    {"whole device": _GONE},
    {"holders": {"frames": 4}},
    {"claims": {"has_evidence": False}},
    {
        "claims": {"top": 3, "refuted_top": 3},
        "notes": {"top": 2},
        "unknown": {"top": 2},
        "growth": {"top": 2},
    },
    {"steps": _GONE},
    {"notes": _GONE},
    {"holders": {"has_meanings": False}},
    {"holders": {"top": 6, "frames": 2}},
    {"unknown": {"top": 1}, "growth": {"top": 1}},
    {"claims": {"has_titles": False}},
    {"holders": {"top": 4, "frames": 1}},
    {"unknown": _GONE, "claims": {"top": 2, "refuted_top": 2}},
    {"gap above the figures": _GONE},
    {"claims": {"refuted_top": 1}},
    {"holders": {"top": 3}},
    {"gaps": _GONE},
    {"holders": {"header_from": _WIDE}},
    {"holders": {"top": 2}},
    {"claims": {"refuted_top": 0}},
    {"claims": {"top": 1}},
    {"holders": {"header_from": math.inf}},
    {"growth": _GONE},
    {"ledger": _GONE},
    {"holders": {"top": 1}},
)
"""By step, the parts that change, and what becomes of them."""


def cuts_of(part_name: str) -> tuple[Cut, ...]:
    """The cuts of a part of an explanation."""
    return tuple(
        Cut(step, rung[part_name]) for step, rung in enumerate(LADDER) if part_name in rung
    )
