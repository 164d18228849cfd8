"""What objects hold: asked only where the answer is harmless to the program."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.installed import PYTHON_PATH
from vramlens.capture.process import referents as sweeps
from vramlens.capture.process.reference_index import ReferenceIndex
from vramlens.capture.process.referents import Referents, shown_by, without_giants

# Waits, so that iterators of futures come and go: they fill the free list of _asyncio.
ASYNCIO = """
import asyncio, sys, gc
async def wait(event): await event.wait()
async def main():
    event = asyncio.Event()
    tasks = [asyncio.create_task(wait(event)) for _ in range(8)]
    await asyncio.sleep(0.01)
    event.set()
    await asyncio.gather(*tasks)
asyncio.run(main())
"""
SWEEPS = """
from vramlens.capture.process.referents import Referents
for _ in range(3):
    objects = gc.get_objects()
    referents = Referents()
    for start in range(0, len(objects), 512):
        assert len(referents.of(objects[start:start + 512])) < 10_000_000
asyncio.run(main())
print("whole")
"""
# Every object of every module of the standard library, asked what it holds: is anything in there
# owned by nobody?
AUDIT = """
import importlib, os, warnings
warnings.simplefilter("ignore")
left_out = ("antigravity", "this", "idlelib", "turtle", "turtledemo", "__main__", "test")
for name in sorted(sys.stdlib_module_names):
    if not name.startswith((*left_out, "_test", "_xx")):
        try: importlib.import_module(name)
        except BaseException: pass
from vramlens.capture.process.referents import Referents
gc.collect(); gc.disable()
asked = Referents()
objects = gc.get_objects()
for value in objects:
    asked.of_one(value)
odd = set()
for value in objects:
    if value is objects or id(type(value)) not in asked.asked or value is globals():
        continue
    held = gc.get_referents(value)
    for place in range(len(held)):
        if sys.getrefcount(held[place]) <= 2:  # our list, and the argument
            odd.add((type(value).__name__, type(held[place]).__name__))
assert len(objects) > 10_000, len(objects)
print("whole" if not odd else sorted(odd), flush=True)
os._exit(0)
"""


def pythons() -> Iterator[str]:
    """Every Python at hand: this one, and those of pyenv."""
    yield sys.executable
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from map(str, sorted(root.glob("versions/3.1[0-9].*/bin/python")))


@pytest.mark.parametrize("python", list(pythons()))
@pytest.mark.parametrize("check", [SWEEPS, AUDIT], ids=["asyncio", "standard library"])
def test_nothing_that_nobody_owns_is_handed_out(python: str, check: str) -> None:
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, "PYTHONWARNINGS": ""}
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"  # the ring takes all there is
    done = subprocess.run(
        [python, "-c", limit + ASYNCIO + check],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("whole\n", 0), done.stderr[-2000:]


def test_a_module_is_not_asked_but_its_namespace_is_known() -> None:
    module = types.ModuleType("made")
    module.__dict__["held"] = held = object()
    for module_type in (types.ModuleType, type("Lazy", (types.ModuleType,), {})):
        value: Any = module_type("other")
        value.__dict__["held"] = held
        assert Referents().of([value]) == [value.__dict__]
    assert Referents().of_one(module) == [module.__dict__]


class Slotted:
    __slots__ = ("held",)


@pytest.mark.parametrize("kind", [dict, list, tuple, set, frozenset])
def test_what_python_shows_of_an_unknown_type_is_whole(kind: Any) -> None:
    held = Slotted()
    held.held = inner = [1]  # type: ignore[attr-defined]
    value = type("Unknown", (kind,), {})({held: held} if kind is dict else [held])
    value.attribute = held
    shown = list(map(id, shown_by(value)))
    assert id(held) in shown
    assert id(value.__dict__) in shown
    assert inner in shown_by(held)


def test_an_unknown_type_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of any library but Python's and PyTorch's."""

    class Strange:
        def __init__(self) -> None:
            self.held = [1]

    monkeypatch.setattr(Referents, "_is_owned", lambda self, kind: kind is not Strange)
    asked: list[Any] = []
    real = gc.get_referents
    monkeypatch.setattr(
        sweeps.gc, "get_referents", lambda *values: (asked.extend(values), real(*values))[1]
    )
    value, plain = Strange(), [object()]
    both = Referents().of([value, plain])
    assert value.__dict__ in both
    assert plain[0] in both
    assert all(one is not value for one in asked)


def test_known_types_are_asked() -> None:
    def outer() -> Any:
        value = object()
        return lambda: value

    generator = (value for value in [1])
    values = [
        outer(),
        outer().__closure__[0],
        generator,
        [object()],
        {"a": object()},
        Slotted,
        ValueError("x"),
    ]
    assert Referents().of(values) == gc.get_referents(*values)


def test_giants_are_left_out() -> None:
    small, large = [1], [0] * 1000
    assert without_giants([large, small], 100) == [small]
    assert without_giants([large, small], 10_000) == [large, small]


def test_who_refers_is_looked_for_no_longer_than_there_is_time() -> None:
    target = object()
    holder = [target]
    objects = [[] for _ in range(5000)] + [holder]  # type: ignore[var-annotated]
    index = ReferenceIndex(objects, float("inf"))
    assert list(index.referrers_of({id(target)}, float("inf"))) == [holder]
    assert list(index.referrers_of({id(target)}, 0.0)) == []
    assert list(ReferenceIndex(objects, 0.0).referrers_of({id(target)}, float("inf"))) == []
