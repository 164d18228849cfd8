"""Totals of what programs count, which never fall: also when a program ends or begins anew."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from vramlens.monitor.machine.machine import MachineNow

_MOST_PROGRAMS = 4096
_Program = tuple[str, int, int]
"""A GPU, and a process with the moment at which it started."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How often PyTorch emptied its cache to go on, and how many requests failed."""

    retries: int = 0
    failures: int = 0

    def plus(self, other: Counted) -> Counted:
        """Both together."""
        return Counted(self.retries + other.retries, self.failures + other.failures)


class ProgramTotals:
    """Adds up what every program on a GPU has counted since this began to look.

    A process is known by its number and its start, so that its last count stays when it ends, and a
    number that is used again is another process.
    """

    def __init__(self) -> None:
        self._programs: dict[_Program, Counted] = {}
        self._ended: dict[str, Counted] = {}

    def add(self, now: MachineNow) -> None:
        """Notes what the programs of a look have counted."""
        for process, device in now.rows():
            memory, inside = process.memory_on(device), process.inside
            if memory is None or inside is None:
                continue
            program = (device.name, inside.pid, inside.started)
            counted = Counted(memory.retries or 0, memory.failures or 0)
            before = self._programs.pop(program, Counted())
            if counted.retries < before.retries or counted.failures < before.failures:
                self._end(device.name, before)  # it has reset its counters
            self._programs[program] = counted
        while len(self._programs) > _MOST_PROGRAMS:
            program = next(iter(self._programs))  # the one that was seen longest ago
            self._end(program[0], self._programs.pop(program))

    def of(self, device: str) -> Counted:
        """What all programs on a GPU have counted so far."""
        totals: Counter[str] = Counter()
        for (name, _pid, _started), counted in self._programs.items():
            if name == device:
                totals["retries"] += counted.retries
                totals["failures"] += counted.failures
        return Counted(totals["retries"], totals["failures"]).plus(self._of_ended(device))

    def _of_ended(self, device: str) -> Counted:
        return self._ended.get(device, Counted())

    def _end(self, device: str, counted: Counted) -> None:
        self._ended[device] = self._of_ended(device).plus(counted)
