"""In the running process: who holds a tensor, what grows, and how to let it go."""

from __future__ import annotations

from vramlens.leak.leak import LeakOwner
from vramlens.live.holder_lookup import Holders, HolderTable, holders, who_holds
from vramlens.live.leak_scope import LeakError, Released, no_leaks, release
from vramlens.live.leaks.leak_report import LeakReport, LiveLeak
from vramlens.live.watch import LeakWatch

__all__ = [
    "HolderTable",
    "Holders",
    "LeakError",
    "LeakOwner",
    "LeakReport",
    "LeakWatch",
    "LiveLeak",
    "Released",
    "holders",
    "no_leaks",
    "release",
    "who_holds",
]
