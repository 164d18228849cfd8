"""What leak watching says: frozen results, as text and as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vramlens.ground.verdict import Verdict
from vramlens.leak.leak import Leak
from vramlens.live.holder.route import Route
from vramlens.schema import SCHEMA

UNSEEN_CODE = "C++ code"
"""The name of an owner that Python cannot see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLeak(Leak):
    """A leak, and what only the running process knows of it.

    Attributes:
        device: on which most of it is, as PyTorch names it; empty where that cannot be told.
        route: the way to what keeps it, by names; None where it has none.
        is_remade: whether it is one tensor that is made anew, larger each time.
        is_late: whether it grows to the end, and nothing from early on is kept.
        has_stopped: whether it grew for a while, and does not any more.
        in_vain: why what it keeps is of no use to the rest of the program; empty where it may be.
    """

    device: str = ""
    route: Route | None = None
    is_remade: bool = False
    is_late: bool = False
    has_stopped: bool = False
    in_vain: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """Growth that was seen while steps ended, and of which nothing is left when the report is made.

    Attributes:
        bytes_per_step: bytes that a step added.
        step: the latest step at which it was seen.
        function: in which the steps ended; ``<module>`` outside of functions, empty where that
            cannot be told.
    """

    bytes_per_step: int
    step: int
    function: str


@dataclass(frozen=True, slots=True)
class Unexplained:
    """Growth that nobody was found to hold.

    Attributes:
        bytes: how much.
        bytes_per_step: the average of the steps.
        first_step, last_step: between which it was measured; both are that after the last one if
            it came when no step ended any more.
        is_reached: whether the search reached it, in many places; else only the allocator's counter
            shows it.
    """

    bytes: int
    bytes_per_step: int
    first_step: int
    last_step: int
    is_reached: bool

    def to_dict(self) -> dict[str, Any]:
        """As data."""
        return {
            "bytes": self.bytes,
            "bytes_per_step": self.bytes_per_step,
            "first_step": self.first_step,
            "last_step": self.last_step,
        }


@dataclass(frozen=True, slots=True)
class LeakReport:
    """Everything that a watch found.

    Attributes:
        steps: steps that had ended.
        leaks: leaks and look-alikes, the surest and largest first.
        notes: what is said of the whole: too few steps, what was skipped.
        headroom_bytes: device memory that is left; None on a CPU.
        seconds: how long the search took.
        objects: how many objects were searched.
        live_bytes: bytes of all storages that were found.
        grown_bytes: of those, what was born after warm-up, or nobody knows when.
        complete: whether the search went everywhere.
        missing_steps: how many more steps are needed to tell growth from warm-up; 0 where there
            were enough.
        gone: what grew while steps ended and is not there any more; None where nothing did.
        gone_early: the same, but it was seen last when many steps were to come: it only tells on an
            earlier look.
        has_ended: whether the program had ended.
        unexplained: what grew and is in no leak or look-alike; None where all is accounted for.
    """

    steps: int
    leaks: tuple[LiveLeak, ...]
    notes: tuple[str, ...] = ()
    headroom_bytes: int | None = None
    seconds: float = 0.0
    objects: int = 0
    live_bytes: int = 0
    grown_bytes: int = 0
    complete: bool = True
    missing_steps: int = 0
    gone: Gone | None = None
    gone_early: Gone | None = None
    unexplained: Unexplained | None = None
    has_ended: bool = False

    @property
    def found(self) -> tuple[LiveLeak, ...]:
        """Those that are proven or likely."""
        return tuple(leak for leak in self.leaks if leak.sure)

    @property
    def possible(self) -> tuple[LiveLeak, ...]:
        """Those that are possible, and large enough to matter."""
        leaks = (leak for leak in self.leaks if not leak.is_small)
        return tuple(leak for leak in leaks if leak.verdict == Verdict.POSSIBLE)

    @property
    def is_accounted_for(self) -> bool:
        """Whether all that grew was found and judged."""
        return self.gone is None and self.unexplained is None

    def to_dict(self) -> dict[str, Any]:
        """The contract's shape."""
        return {
            "schema": SCHEMA,
            "steps": self.steps,
            "needs_steps": self.missing_steps or None,
            "leaks": [leak.to_dict() for leak in self.leaks],
            "gone": None
            if self.gone is None
            else {"bytes_per_step": self.gone.bytes_per_step, "until_step": self.gone.step},
            "unexplained": None if self.unexplained is None else self.unexplained.to_dict(),
            "notes": list(self.notes),
            "live_bytes": self.live_bytes,
            "searched": {
                "objects": self.objects,
                "seconds": round(self.seconds, 3),
                "complete": self.complete,
            },
        }

    def __str__(self) -> str:
        from vramlens.live.leaks.leak_text import report_text

        return report_text(self)
