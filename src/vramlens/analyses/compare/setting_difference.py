"""A difference between two runs that is not the memory itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not the memory itself.

    Attributes:
        name: a stable slug: torch, gpu, cuda, driver, settings, command, steps, ranks, marks,
            missing, files, scale; of profiler traces gpu_busy, cpu_busy, step_time, kept and
            operator:NAME.
        before, after: as text; None where a recording does not say.
        words: the difference in one phrase.
    """

    name: str
    before: str | None
    after: str | None
    words: str
