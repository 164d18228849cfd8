"""The size of parts: how many samples a part may have, and when larger parts are tried."""

from __future__ import annotations

from collections.abc import Callable

from vramlens.recovery.guarding.guard_options import GuardOptions
from vramlens.recovery.splitting.learned_splits import learned_micro_batch, write_split
from vramlens.units import counted

_LONGER_WAIT = 10
"""Times as many clean steps before the next try, where a larger part has failed."""


class PartSize:
    """The most samples in a part: halved by failures, raised after clean steps.

    Attributes:
        samples: the most that a part has now; None: batches are run whole.
        failed_samples: of the smallest part that failed; None: not known.
    """

    def __init__(self, options: GuardOptions, note: Callable[..., None]) -> None:
        self.samples = learned_micro_batch() if options.micro_batch is None else options.micro_batch
        self.failed_samples: int | None = None
        self._on_change = options.on_change
        self._grow_after = options.grow_after
        self._wait = options.grow_after
        self._clean_steps = 0
        self._note = note

    def change(self, samples: int, reason: str, kind: str = "split") -> None:
        """Has batches run in parts of that size from now on."""
        before, self.samples = self.samples, samples
        write_split(micro_batch=samples)
        earlier = f" (before: {before:,})" if before else ""
        size = counted(samples, "sample")
        self._note(kind, f"{reason}: batches now run in parts of at most {size}{earlier}")
        if self._on_change is not None:
            self._on_change(before, samples, reason)

    def note_failed_part(self, samples: int | None) -> None:
        """Notes the size of a part that ran out of memory, where it is known."""
        if samples is not None:
            self.failed_samples = min(samples, self.failed_samples or samples)

    def note_failed_step(self) -> None:
        """Begins to count clean steps anew."""
        self._clean_steps = 0
        self._wait = max(self._wait, self._grow_after)

    def note_clean_step(self, *, may_grow: bool) -> None:
        """Counts a step without a failure; tries larger parts after enough of them."""
        self._clean_steps += 1
        if may_grow and self.samples is not None and self._clean_steps >= self._wait:
            self._grow(self.samples)

    def _grow(self, samples: int) -> None:
        """Tries larger parts; waits ten times as long where that has failed."""
        failed = self.failed_samples
        self._clean_steps = 0
        if failed is None or failed - samples <= max(1, samples // 8):
            self._wait = max(self._wait, 1) * _LONGER_WAIT
            if failed is not None:
                self.failed_samples = failed * 2
                return
        larger = samples * 2 if failed is None else (samples + failed) // 2
        self.change(larger, f"{self._grow_after} clean steps", kind="grow")
