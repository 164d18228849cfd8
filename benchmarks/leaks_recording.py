"""Leaks from recordings: how often each detector is right, on made-up runs of known truth.

    PYTHONPATH=src:tests python benchmarks/leaks_recording.py [--seeds 10] [--steps
    10,20,50,100,200]

Side by side on the same runs: ``vramlens leaks`` (proven or likely counts as an alarm), and two
    detectors that look at
the total, as monitors do: a straight line through it (|r| > 0.5 and rising), and the same without
the first fifth of the run (r > 0.9). A run is right where a leak raises an alarm and a look-alike
raises none. Look-alikes that are emptied after more steps than the run has are the same data as a
leak until then; they have columns of their own. Half of the seeds end with their program (its
function gives everything back), half are cut off in the middle. The last lines are those of
``leak_attacks``, whose runs have a length of their own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from support import leak_attacks
from support.leak_programs import LEAKS, LOOK_ALIKES, Run, Truth, made
from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.leaks.recorded_leaks import leaks_at

OURS = ("vramlens leaks, cut off", "vramlens leaks, to the end")


def line_through(total: list[int], *, skipped: float, least: float) -> bool:
    """Whether a straight line through the total, without its beginning, rises and fits."""
    values = np.array(total[int(skipped * len(total)) :], np.float64)
    if len(values) < 3 or values.std() == 0:
        return False
    r = np.corrcoef(np.arange(len(values)), values)[0, 1]
    return bool(r > least)


@dataclass
class Score:
    """How often a detector was right."""

    found: int = 0
    leaks: int = 0
    false: int = 0
    others: int = 0
    undecided: int = 0
    early: int = 0

    def add(self, truth: Truth, steps: int, alarm: bool) -> None:
        if truth.leaks:
            self.leaks += 1
            self.found += alarm
        elif steps >= truth.shows_after:
            self.others += 1
            self.false += alarm
        else:
            self.early += 1
            self.undecided += alarm

    def __str__(self) -> str:
        alarms = self.found + self.false
        precision = f"{self.found / alarms:.2f}" if alarms else "  – "
        return (
            f"{precision} / {self.found / max(self.leaks, 1):.2f}   {self.false:3} of {self.others:3}"
            f"   {self.undecided:3} of {self.early:3}"
        )


def sure(run: Run) -> list[RecordedLeak]:
    """What vramlens is sure of."""
    trace = run.trace()
    return [leak for leak in leaks_at(attribute(trace, trace.devices[0])) if leak.sure]


def main(arguments: Iterable[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", default="10,20,50,100,200")
    options = parser.parse_args(None if arguments is None else list(arguments))
    totals: dict[str, Callable[[list[int]], bool]] = {
        "line through the total, r > 0.5": lambda total: line_through(
            total, skipped=0.0, least=0.5
        ),
        "the same after a fifth, r > 0.9": lambda total: line_through(
            total, skipped=0.2, least=0.9
        ),
    }
    print(f"{options.seeds} seeds of {len(LEAKS)} leaks and {len(LOOK_ALIKES)} look-alikes")
    print(f"{'steps':>5}  {'detector':32}  {'P / R':11}   {'false alarms':12}  before they show")
    for steps in map(int, options.steps.split(",")):
        scores = {name: Score() for name in (*OURS, *totals)}
        lines, rates = 0, []
        for program in (*LEAKS.values(), *LOOK_ALIKES.values()):
            for seed in range(options.seeds):
                ends = seed % 4 >= 2
                run, truth = made(program, steps, seed, ends=ends)
                found = sure(run)
                scores[OURS[ends]].add(truth, steps, bool(found))
                for name, detect in totals.items():
                    scores[name].add(truth, steps, detect(run.total))
                if truth.leaks and found and truth.bytes_per_step:
                    lines += found[0].place is not None and found[0].place.line == truth.line
                    rates.append(abs(found[0].bytes_per_step / truth.bytes_per_step - 1))
        for name, score in scores.items():
            print(f"{steps:5}  {name:32}  {score}")
        if rates:
            off = sorted(rates)
            print(
                f"       line right in {lines} of {len(rates)};"
                f" bytes per step off by {off[len(off) // 2]:.1%} (median), "
                f"{off[int(0.95 * (len(off) - 1))]:.1%} (95%), {off[-1]:.1%} (worst)"
            )
    attacked(options.seeds)


def attacked(seeds: int) -> None:
    """Prints what comes of the runs of ``leak_attacks``."""
    for name, programs in (
        ("look-alikes", leak_attacks.LOOK_ALIKES),
        ("leaks", leak_attacks.LEAKS),
    ):
        alarms, runs, wanted = 0, 0, 0
        for program in programs.values():
            for seed in range(seeds):
                run = Run(seed, marks=seed % 2 == 0)
                wanted += program(run).sure
                alarms += bool(sure(run))
                runs += 1
        print(
            f"{len(programs)} other {name}: {alarms} of {runs} proven or likely ({wanted} ought to be)"
        )


if __name__ == "__main__":
    main()
