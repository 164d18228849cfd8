"""In the running process: who holds a tensor, what grows, and how to let it go.

counters: what allocators say of the memory that they have handed out.
excuses: the reasons why what grows may be no leak.
follow: watching a whole program for ``vramlens run --leaks``.
gone_leaks: leaks of an earlier look that are gone at the program's end.
growth: which bytes each step leaves behind, by objects and by what counters say.
heap: the living objects of the interpreter, searched from the roots to every tensor.
heap_look: one search of the heap, and the report on everything that grew.
holder: the chain from a root to a tensor, and the statement that keeps it.
holder_lookup: who holds a tensor: from a prompt, a debugger, a notebook.
holder_table: who holds the most: every byte in tensors, each in one row.
leak_scope: ``with no_leaks():`` for tests, and letting go of what exceptions hold.
leaks: what grows in the running process, as results that can be printed.
source: what the user's code says of a name: where it is filled, bounded and emptied.
turns: what ends a step where no optimizer does: a call of the model, a turn of a loop, or time.
unit_watch: the watch by one unit of steps, its looks, and what they say at the end.
watch: counts at each step's end, and one search when a report is asked for.
watching_cost: what watching takes of a run, over all units of steps.
"""

from __future__ import annotations

from vramlens.leak.leak import LeakOwner
from vramlens.live.holder_lookup import Holders, who_holds
from vramlens.live.holder_table import HolderTable, holders
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
