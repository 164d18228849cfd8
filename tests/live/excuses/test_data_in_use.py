"""What grows and is read whole, or by chance, in each step is data; what is read once in many is not."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402


@pytest.fixture
def leak_of(
    load_program: Callable[..., types.ModuleType], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Any]:
    """The largest leak of a program, all of whose steps are traced."""
    monkeypatch.setattr("vramlens.live.growth.line_observer._FREE_SECONDS", 60.0)

    def leak_of(source: str) -> Any:
        watch = vramlens.LeakWatch()
        reports: list[Any] = []

        def tick() -> None:
            watch.step()
            if watch.steps == 59:
                reports.append(watch.report())

        load_program(source).run(60, tick)
        watch.stop()
        return max(reports[0].leaks, key=lambda leak: leak.bytes_per_step)

    return leak_of


PROGRAM = """\
import random
import torch

class Archive:
    def __init__(self):
        self.pages = []

    def add(self, number):
        self.pages.append({entry})

    def read(self):
        return {read}

def run(steps, tick):
    archive = Archive()
    for number in range(steps):
        if number % {every} == 0:
            archive.add(number)
        {when}archive.read()
        tick()
"""
TENSOR = "torch.zeros(4096) + number"


WHOLE = "torch.stack(self.pages).amax(0)"
DRAWN = "self.pages[random.randrange(len(self.pages))]"


@pytest.mark.parametrize(
    ("entry", "every", "read", "when", "verdict"),
    [
        (TENSOR, 1, WHOLE, "", "possible"),
        (TENSOR, 1, "torch.stack([page @ page for page in self.pages])", "", "possible"),
        (TENSOR, 5, DRAWN, "", "possible"),
        (
            f"torch.utils.data.TensorDataset({TENSOR})",
            1,
            "torch.utils.data.ConcatDataset(self.pages)",
            "",
            "possible",
        ),
        (f"({TENSOR}, 1)", 5, "[self.pages[place] for place in (0, -1)]", "", "possible"),
        (TENSOR, 1, DRAWN, "", "proven"),
        (TENSOR, 1, WHOLE, "if number == 30: ", "proven"),
        (TENSOR, 1, "len(self.pages)", "", "proven"),
        (TENSOR, 1, "[entry.mul_(0.9) for entry in self.pages]", "", "proven"),
        (f"lambda kept={TENSOR}: kept", 1, "[entry() for entry in self.pages]", "", "proven"),
    ],
    ids=[
        "whole",
        "of each",
        "a pool",
        "data sets",
        "by number",
        "a buffer",
        "once",
        "length",
        "states",
        "callbacks",
    ],
)
def test_what_each_step_reads_is_data(
    leak_of: Callable[[str], Any],
    entry: str,
    every: int,
    read: str,
    when: str,
    verdict: str,
) -> None:
    leak = leak_of(PROGRAM.format(entry=entry, every=every, read=read, when=when))
    assert leak.verdict == verdict, leak.reason
    assert ("line 12 reads its older entries in each step" in leak.reason) == (
        verdict == "possible"
    )


INDEX = """\
import torch

class Passages:
    def __init__(self):
        self.keys_of_passages, self.passages = [], []

    def add(self, number):
        self.keys_of_passages.append(torch.zeros(4))
        {store}

    def search(self):
        best = int(({search}).argmax())
        return {read}

def run(steps, tick):
    passages = Passages()
    for number in range(steps):
        passages.add(number)
        {when}passages.search()
        tick()
"""
APPENDED = f"self.passages.append({TENSOR})"
SEARCHED = "torch.stack(self.keys_of_passages) @ torch.ones(4)"


@pytest.mark.parametrize(
    ("store", "search", "read", "when", "verdict"),
    [
        (APPENDED, SEARCHED, "self.passages[best]", "", "possible"),
        (APPENDED, SEARCHED, "self.passages[best]", "if number % 2 == 0: ", "possible"),
        (APPENDED, SEARCHED, "self.passages[best]", "if number % 3 == 0: ", "proven"),
        (APPENDED, "torch.ones(4)", "self.passages[best]", "", "proven"),
        (APPENDED, SEARCHED, "self.passages[-1]", "", "proven"),
        (f"if number >= 0: {APPENDED}", SEARCHED, "self.passages[best]", "", "proven"),
    ],
    ids=["each step", "each second", "rarely", "no search", "the last", "not together"],
)
def test_what_a_search_picks_from_is_data(
    leak_of: Callable[[str], Any], store: str, search: str, read: str, when: str, verdict: str
) -> None:
    leak = leak_of(INDEX.format(store=store, search=search, read=read, when=when))
    assert leak.verdict == verdict, leak.reason


NOTES = """\
import random
import torch

class Lectern:
    def __init__(self):
        self.notes_of_samples = {{}}

    def look_up(self, number):
        for key in {keys}:
            if key not in self.notes_of_samples:
                self.notes_of_samples[key] = torch.zeros(4096) + key

def run(steps, tick):
    draws = random.Random(5)
    lectern = Lectern()
    for number in range(steps):
        lectern.look_up(number)
        tick()
"""


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [
        ("range(20 * number, 20 * number + 20) if number < 25 else [20 * number]", "possible"),
        ("[number]", "proven"),
    ],
    ids=["fewer are new", "each is new"],
)
def test_a_cache_that_misses_more_and_more_seldom_fills_up(
    leak_of: Callable[[str], Any], keys: str, verdict: str
) -> None:
    leak = leak_of(NOTES.format(keys=keys))
    assert leak.verdict == verdict, leak.reason
    assert ("a cache that fills up" in leak.reason) == (verdict == "possible")


OTHERS_LIST = """\
import torch

class Shelf:
    def __init__(self):
        self.volumes = []

    def add(self, number):
        self.volumes.append(torch.zeros(4096) + number)

class PairOfVolumes:
    def __init__(self):
        {made}

    def read(self):
        volumes = [torch.ones(4), torch.zeros(4)]
        return torch.stack({read})

def run(steps, tick):
    shelf, pair = Shelf(), PairOfVolumes()
    volumes = []
    for number in range(steps):
        {add}
        pair.read()
        tick()
"""
OWN = "self.volumes = [torch.ones(4), torch.zeros(4)]"


@pytest.mark.parametrize(
    ("add", "made", "read"),
    [
        ("shelf.add(number)", OWN, "self.volumes"),
        ("volumes.append(torch.zeros(4096) + number)", "pass", "volumes"),
    ],
    ids=["attribute", "variable"],
)
def test_another_list_of_the_name_says_nothing(
    leak_of: Callable[[str], Any],
    add: str,
    made: str,
    read: str,
) -> None:
    leak = leak_of(OTHERS_LIST.format(add=add, made=made, read=read))
    assert leak.verdict == "proven"
