"""What leak watching says: frozen results, as text and as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vramlens.ground.verdict import Verdict
from vramlens.live.holder.route import Route
from vramlens.schema import SCHEMA


@dataclass(frozen=True, slots=True)
class Owner:
    """What keeps something.

    Attributes:
        name: as a person would write it: ``Trainer.history``.
        kind: what it is: list, dict, deque, Tensor, ...
        file, line, function: the statement that puts things there; empty and 0 where none was
            found.
        chain: the way from a root to an example of what it keeps, root first.
    """

    name: str
    kind: str
    file: str = ""
    line: int = 0
    function: str = ""
    chain: tuple[str, ...] = ()
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As in the contract."""
        return {
            "name": self.name,
            "kind": self.kind,
            "file": self.file or None,
            "line": self.line or None,
            "function": self.function or None,
            "chain": list(self.chain),
        }


@dataclass(frozen=True, slots=True)
class LiveLeak:
    """Memory that grows with the steps, and who holds it.

    Attributes:
        verdict: proven, likely, possible or not a problem.
        kind: the contract's class: graph, container, cycle, autograd_cycle, hook, exception, cache,
            closure, thread, stream, pool, context, pinned, external or other.
        file, line, function: where the memory is asked for; empty and 0 where that cannot be told.
        bytes_per_step: storage bytes that a step leaves behind.
        bytes: storage bytes, each storage once, that are alive now.
        steps: different steps that left something behind.
        first_step, last_step: the first and last of them, from 1.
        storages, nodes: how many storages and autograd nodes are kept.
        owner: what keeps it; None where no owner can be seen.
        why: what the verdict rests on, one sentence each.
        fix: one edit; empty where nothing needs doing.
        device: on which most of it is; empty where that cannot be told.
        route: the way to what keeps it, by names; None where it has none.
        is_freed: of graphs: whether backward passes have freed what they saved.
        fix_share: how much of its bytes the fix frees, from 0 to 1: a detached tensor keeps its own
            storage.
    """

    verdict: Verdict
    kind: str
    file: str
    line: int
    function: str
    bytes_per_step: int
    bytes: int
    steps: int
    first_step: int
    last_step: int
    storages: int
    nodes: int
    owner: Owner | None
    why: tuple[str, ...]
    fix: str
    device: str = ""
    route: Route | None = None
    is_freed: bool = False
    fix_share: float = 1.0

    @property
    def fix_bytes_per_step(self) -> int:
        """What the fix frees of each step's bytes."""
        return round(self.fix_share * self.bytes_per_step)

    @property
    def is_leak(self) -> bool:
        """Whether it is proven or likely."""
        return self.verdict in (Verdict.PROVEN, Verdict.LIKELY)

    def to_dict(self) -> dict[str, Any]:
        """As in the contract, with more beside it."""
        return {
            "verdict": self.verdict,
            "class": self.kind,
            "file": self.file or None,
            "line": self.line or None,
            "function": self.function or None,
            "bytes_per_step": self.bytes_per_step,
            "bytes": self.bytes,
            "steps": self.steps,
            "owner": None if self.owner is None else self.owner.to_dict(),
            "fix": self.fix or None,
            "fix_bytes_per_step": self.fix_bytes_per_step if self.fix else None,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "storages": self.storages,
            "autograd_nodes": self.nodes,
            "why": list(self.why),
            "device": self.device or None,
        }


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
        first_step, last_step: between which it was measured.
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
        complete: whether the search went everywhere.
        missing_steps: how many more steps are needed to tell growth from warm-up; 0 where there
            were enough.
        gone: what grew while steps ended and is not there any more; None where nothing did.
        unexplained: what grew and is in no leak or look-alike; None where all is accounted for.
    """

    steps: int
    leaks: tuple[LiveLeak, ...]
    notes: tuple[str, ...] = ()
    headroom_bytes: int | None = None
    seconds: float = 0.0
    objects: int = 0
    live_bytes: int = 0
    complete: bool = True
    missing_steps: int = 0
    gone: Gone | None = None
    unexplained: Unexplained | None = None

    @property
    def found(self) -> tuple[LiveLeak, ...]:
        """Those that are proven or likely."""
        return tuple(leak for leak in self.leaks if leak.is_leak)

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
