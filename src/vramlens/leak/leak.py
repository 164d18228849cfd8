"""A leak and what keeps it: one model for recordings and for the running process.

Finders add what only they need beside it: ``RecordedLeak`` its allocations, ``LiveLeak`` its route.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

LIFE_STEPS = 100_000
"""A run lasts so many steps, or as many as were recorded: pretraining and fine-tuning jobs take
up to some 100,000.
"""
LEAST_SHARE = 0.01
"""What takes less than this of a device in a run's life, and of the peak so far, is not worth a
line above others.
"""
SMALLEST_DEVICE_BYTES = 8 << 30
"""Where the recording does not say how large the device is, it is no smaller than this, nor than
what was reserved.
"""
FAR_STEPS = 1_000_000
"""Until memory is full: beyond that the number of steps says only that it does not matter."""
_WORTH_TELLING = 0.01
"""Of what a step leaves behind: less that stays after a fix is not worth a word."""
_MOST_DIFFERENCE = 0.005
"""Of the bytes so far, between them and the rate times the steps: what rounding to three digits
hides. With twice as much a reader who multiplies finds another number.
"""
_STEPS_AROUND = 5
"""Steps whose bytes a live leak may have beside those that were judged: the first, which warms up, the
last ones, whose tensors may be in use, and the one that goes on.
"""


@dataclass(frozen=True, slots=True)
class LeakOwner:
    """What keeps something.

    Attributes:
        name: as a person would write it: ``Trainer.history``.
        kind: what it is: list, dict, deque, Tensor, ...
        file, line, function: the statement that puts things there; empty and 0 where none was
            found.
        chain: the way from a root to an example of what it keeps, root first.
        source: the text of that statement; empty where it is not known.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Memory that grows with every step, or that seems to.

    Attributes:
        verdict: proven, likely, possible, or not a problem.
        kind: the contract's class: graph, container, cycle, autograd_cycle, hook, exception, cache,
            closure, thread, stream, pool, context, pinned, external or other; None where a
            recording cannot tell.
        place: the line that asks for the memory, the user's innermost that all its allocations
            share; None where that cannot be told.
        bytes_per_step: bytes that a step leaves behind: requested ones in a recording, those of
            storages in the process.
        bytes: bytes that it held when judged.
        steps: how many steps left something behind; 0 where it does not grow with steps.
        owner: what keeps it; None where that cannot be seen.
        fix: one edit; None where nothing needs doing.
        fix_share: how much of each step's bytes the fix frees, from 0 to 1.
        frees_more: whether the fix may free more than that.
        device: whose memory it is: a recording's index (-1: the host), else the name that PyTorch
            gives it ("cuda:0", "cpu"; empty where that cannot be told).
        evidence: what the verdict rests on, one sentence each.
        reason: why it is not more certain, or no problem at all; empty where nothing is to be said.
        needs_steps: how many more steps would tell; None where steps would not.
        is_small: whether it is too small to matter in a run's life.
        low, high: the range of bytes_per_step, over half of the steps or more; None where only
            the average is known.
        taken_per_step: bytes_per_step as the allocator counts it: blocks are rounded up; 0 where
            that is not known.
        allocations_per_step: how many blocks a step leaves behind; None: as many as storages.
        storages, nodes: how many storages and autograd nodes are kept.
        first_step, last_step: the first and last step that left something behind, from 1; None in a
            recording, which counts from where it begins.
        every_steps: how many steps lie between two that leave something behind (epochs, trials).
        is_freed: whether the program is done with it: backward passes have freed what a graph
            saved, blocks are free and wait for a stream.
    """

    verdict: Verdict
    kind: str | None
    bytes_per_step: int
    bytes: int
    steps: int
    place: Place | None = None
    owner: LeakOwner | None = None
    fix: str | None = None
    fix_share: float = 1.0
    frees_more: bool = False
    device: int | str = ""
    evidence: tuple[str, ...] = ()
    reason: str = ""
    needs_steps: int | None = None
    is_small: bool = False
    low: int | None = None
    high: int | None = None
    taken_per_step: int = 0
    allocations_per_step: float | None = None
    storages: int = 0
    nodes: int = 0
    first_step: int | None = None
    last_step: int | None = None
    every_steps: int = 1
    is_freed: bool = False

    @property
    def file(self) -> str:
        """The file of the line that asks for the memory; empty where that cannot be told."""
        return "" if self.place is None else self.place.file

    @property
    def line(self) -> int:
        """The line that asks for the memory; 0 where that cannot be told."""
        return 0 if self.place is None else self.place.line

    @property
    def function(self) -> str:
        """The function of that line; empty where that cannot be told."""
        return "" if self.place is None else self.place.function

    @property
    def sure(self) -> bool:
        """Whether it is certain enough to act on: proven or likely."""
        return self.verdict.is_sure

    @property
    def why(self) -> tuple[str, ...]:
        """All that is said of the verdict: the evidence, and the reason for doubt."""
        return (*self.evidence, self.reason) if self.reason else self.evidence

    def reason_and(self, reason: str) -> str:
        """The reason for doubt, and another."""
        return "; ".join(filter(None, (self.reason, reason)))

    @property
    def fix_bytes_per_step(self) -> int:
        """The bytes that the fix frees of each step's."""
        return round(self.fix_share * self.bytes_per_step)

    @property
    def advice(self) -> str | None:
        """The fix, with the bytes to expect from it; None where nothing needs doing."""
        freed = self.fix_bytes_per_step
        if self.fix is None or not freed:
            return self.fix
        each_time = self.per_unit(freed)
        if self.frees_more:
            return f"{self.fix} (saves at least {each_time})"
        stays = self.bytes_per_step - freed
        is_much = stays >= _WORTH_TELLING * self.bytes_per_step
        remainder = f", {format_size(stays * self.unit_steps)} remain" if is_much else ""
        return f"{self.fix} (saves {each_time}{remainder})"

    @property
    def unit_steps(self) -> int:
        """The steps that its rate is told by: those between two that leave something behind, where
        most leave nothing.
        """
        if self.every_steps > 1 or self.first_step is not None:  # a live one's rate was measured
            return self.every_steps
        if self.is_rate_times_steps or not self.steps:
            return 1
        return max(round(self.bytes / self.steps / self.bytes_per_step), 1)

    @property
    def is_rate_times_steps(self) -> bool:
        """Whether a reader who multiplies the rate by the steps finds the bytes so far. Not where
        only some steps left anything, or the first ones more.
        """
        return not self.bytes_per_step or self._is_of_steps(self.steps)

    @property
    def steps_of_bytes(self) -> int | None:
        """How many times the rate the bytes so far are; None where that is no whole number, or more
        than there were steps.
        """
        if not self.bytes_per_step or self.first_step is None or self.last_step is None:
            return None
        steps = round(self.bytes / self.bytes_per_step)
        most_steps = self.last_step - self.first_step + 1 + _STEPS_AROUND
        return steps if steps <= most_steps and self._is_of_steps(steps) else None

    def _is_of_steps(self, steps: int) -> bool:
        difference = abs(self.bytes - self.bytes_per_step * steps)
        return difference <= _MOST_DIFFERENCE * self.bytes

    @property
    def rate_text(self) -> str:
        """``1.00 MiB per step``, or ``8.00 MiB every 8 steps`` where an epoch or a trial leaves
        something behind.
        """
        return self.per_unit(self.bytes_per_step)

    def per_unit(self, bytes_per_step: int) -> str:
        """Some of its bytes per step in the unit in which its rate is told."""
        steps = self.unit_steps
        how_often = f"every {steps:,} steps" if steps > 1 else "per step"
        return f"{format_size(bytes_per_step * steps)} {how_often}"

    def to_dict(self) -> dict[str, Any]:
        """As in the contract: the same keys wherever it was found."""
        blocks_per_step = self.allocations_per_step
        if blocks_per_step is None:
            blocks_per_step = self.storages / max(self.steps, 1)
        return {
            "verdict": self.verdict,
            "class": self.kind,
            "file": self.file or None,
            "line": self.line or None,
            "function": self.function or None,
            "bytes_per_step": self.bytes_per_step if self.steps else None,
            "bytes": self.bytes,
            "steps": self.steps,
            "owner": None if self.owner is None else self.owner.to_dict(),
            "fix": self.advice,
            "fix_bytes_per_step": self.fix_bytes_per_step if self.fix else None,
            "device": None if self.device == "" else self.device,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "bytes_per_step_low": self.low,
            "bytes_per_step_high": self.high,
            "allocations_per_step": round(blocks_per_step, 3),
            "storages": self.storages,
            "autograd_nodes": self.nodes,
            "evidence": list(self.evidence),
            "reason": self.reason or None,
            "why": list(self.why),
            "needs_steps": self.needs_steps,
            "small": self.is_small,
        }


def least_bytes_per_step(total_bytes: int | None, reserved_bytes: int, steps: int) -> int:
    """From how many bytes per step on a leak matters on a device.

    Args:
        total_bytes: what the process may reserve there; None where unknown.
        reserved_bytes: the most that it did.
        steps: how many were recorded.
    """
    device_bytes = total_bytes or max(SMALLEST_DEVICE_BYTES, reserved_bytes)
    return max(1, int(LEAST_SHARE * device_bytes / max(LIFE_STEPS, steps)))


def is_too_small(leak: Leak, least_bytes: int, peak_bytes: int | None) -> bool:
    """Whether a leak is too small to matter.

    Args:
        least_bytes: what a step has to leave behind to matter.
        peak_bytes: the most that the run held: what is a hundredth of it matters already; None
            where only the rate does.
    """
    if leak.verdict == Verdict.POSSIBLE and leak.bytes_per_step == 0 and leak.bytes < least_bytes:
        return True  # a few numbers in all
    is_growth = leak.bytes_per_step > 0 and leak.verdict != Verdict.NOT_A_PROBLEM
    is_slow = max(leak.bytes_per_step, leak.taken_per_step) < least_bytes
    is_little = peak_bytes is None or leak.bytes < LEAST_SHARE * peak_bytes
    return is_growth and is_slow and is_little
