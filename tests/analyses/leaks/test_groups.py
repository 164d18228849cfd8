"""What is one leak in a recording, and that one number is told of it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from analyses.leaks.test_leaks import growing
from support.leak_programs import CALL, LEAK_LINE, MAIN, Run, at
from support.oracle import MIB
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.leaks.recorded_leaks import leaks_of_trace
from vramlens.leak.claim import claim_of
from vramlens.trace import Trace

Pairs = list[tuple[int, int]]
ENDS: dict[str, Callable[[Pairs], list[int]]] = {
    "one list of pairs": lambda pairs: [block for pair in reversed(pairs) for block in pair],
    "two lists": lambda pairs: [pair[n] for n in (0, 1) for pair in reversed(pairs)],
}


def _kept_pairs(end: str) -> Trace:
    """Two statements each keep a block of every step; the program ends."""
    run, kept = Run(0), Pairs()
    run.setup()

    def keep(_: int) -> None:
        first = run.new(3 * MIB, MAIN, at(LEAK_LINE))
        kept.append((first, run.new(2 * MIB, MAIN, at(LEAK_LINE + 1))))

    for step in range(20):
        run.step(keep, step)
    run.finish(ENDS[end](kept))
    return run.trace()


@pytest.mark.parametrize(
    ("end", "sizes"), [("one list of pairs", [5 * MIB]), ("two lists", [3 * MIB, 2 * MIB])]
)
def test_what_goes_together_is_one_leak(end: str, sizes: list[int]) -> None:
    leaks = growing(leaks_of_trace(_kept_pairs(end)))
    assert [leak.bytes_per_step for leak in leaks] == sizes
    assert leaks[0].line == LEAK_LINE or len(leaks) == 1


def test_what_a_list_kept_is_looked_for_in_lists() -> None:
    """A list lets go of the latest first, as CPython empties one; no line of the program says so."""
    (leak, *_) = growing(leaks_of_trace(_kept_pairs("one list of pairs")))
    assert (leak.advice or "").startswith("find the list that keeps the result of")


def _output_now_and_then(run: Run) -> None:
    run.new(60 * MIB, MAIN, at(LEAK_LINE))


def _graph_now_and_then(run: Run) -> None:
    for n in range(6):
        run.new(10 * MIB, MAIN, at(LEAK_LINE), CALL, ("/home/user/model.py", 30 + n, "forward"))


def _rare_leak(keep: Callable[[Run], None]) -> RecordedLeak:
    """What every fourth step leaves behind, of a program that goes on."""
    run = Run(0)
    run.setup()
    for step in range(83):
        run.step(lambda number: keep(run) if number % 4 == 1 else None, step)
    (leak,) = growing(leaks_of_trace(run.trace()))
    return leak


@pytest.mark.parametrize(
    ("keep", "saved"), [(_output_now_and_then, "60.00"), (_graph_now_and_then, "50.00")]
)
def test_what_now_and_then_is_left_is_told_in_one_number(
    keep: Callable[[Run], None], saved: str
) -> None:
    """Of a graph, the result stays, once in four steps."""
    leak = _rare_leak(keep)
    claim = claim_of(leak, unseen="")
    assert leak.bytes_per_step * leak.every_steps == 60 * MIB
    assert leak.rate_text == "60.00 MiB every 4 steps"
    assert f"about {leak.rate_text}, " in claim.headline
    (each_time,) = {
        size for note in leak.evidence for size in re.findall(r"[\d.]+\.\d\d MiB", note)
    }
    assert each_time == "60.00 MiB"
    assert f" {saved} MiB every 4 steps)" in (claim.fix or "")
    assert "per step" not in " ".join((claim.headline, *leak.evidence, claim.fix or ""))
