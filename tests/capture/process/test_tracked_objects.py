"""Listing what the collector knows breaks no tuple that a thread of the program is building."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from vramlens.capture.process.referents import Referents
from vramlens.capture.process.tracked_objects import (
    everything_alive,
    tracked_count,
    tracked_objects,
    tuples_below,
)

SOURCES = Path(__file__).parents[3] / "src/vramlens"
_BUILDERS = """
import sys, threading, time
from vramlens.capture.process.tracked_objects import everything_alive, tracked_objects

failures, is_over = [], False

def build():
    try:
        while not is_over:
            tuple(number for number in range(300))
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=build) for _ in range(2)]
for thread in threads:
    thread.start()
kept = [[number] for number in range(50_000)]  # a listing takes longer than a thread's turn
for _ in range(8):
    tracked_objects()
    everything_alive()
is_over = True
for thread in threads:
    thread.join()
sys.exit(str(failures) if failures else 0)
"""


def test_a_tuple_that_is_being_built_can_change_its_size() -> None:
    def numbers() -> Iterator[int]:
        for number in range(300):  # more than a tuple has room for at first
            if number == 250:
                assert len(tracked_objects()) > 1000
                assert tracked_objects(generation=0)
                assert tracked_count() > 1000
                assert everything_alive()
            yield number

    assert len(tuple(numbers())) == 300


def test_threads_that_build_tuples_are_not_broken() -> None:
    done = subprocess.run([sys.executable, "-c", _BUILDERS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_plain_tuples_are_left_out_and_nothing_else() -> None:
    holder = [([], ([], "inner"))]
    listed = {id(candidate) for candidate in tracked_objects()}
    assert id(holder) in listed
    assert id(holder[0]) not in listed
    known = [candidate for candidate in gc.get_objects() if type(candidate) is not tuple]
    late = [candidate for candidate in known if id(candidate) not in listed]
    assert len(late) < 20  # what the calls in between have made
    below = list(tuples_below([holder], Referents()))
    assert below == [holder[0], holder[0][1]]


def test_a_listing_keeps_nothing_alive() -> None:
    collects = gc.isenabled()
    gc.disable()
    try:
        before = tracked_count()
        for _ in range(5):
            tracked_objects()
        assert tracked_count() - before < 10
    finally:
        if collects:
            gc.enable()


def test_nobody_else_lists_what_the_collector_knows() -> None:
    listing = re.compile(r"\bget_objects\b|\bget_referrers\(")
    files = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if listing.search(path.read_text())
    }
    assert files == {"capture/process/tracked_objects.py"}
