"""The names by which a container is looked for in the source."""

from __future__ import annotations

import asyncio
import contextvars
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

PROGRAM = """
trace = contextvars.ContextVar("trace", default=())


def note(value):
    trace.set(trace.get() + (value,))


def main(watch):
    for _ in range(8):
        note(torch.zeros(4096))
        watch.step()
    return watch.report()
"""

WORKER = """
trace = contextvars.ContextVar("trace", default=())


def note(value):
    trace.set(trace.get() + (value,))


async def work(jobs):
    while True:
        await jobs.get()
        note(torch.zeros(4096))
        jobs.task_done()


async def main(watch):
    jobs = asyncio.Queue()
    worker = asyncio.create_task(work(jobs))
    for number in range(8):
        jobs.put_nowait(number)
        await jobs.join()
        watch.step()
    report = watch.report()
    worker.cancel()
    return report
"""


def test_a_context_variable_of_another_task(load_program: Callable[..., Any]) -> None:
    program = load_program(WORKER, asyncio=asyncio, contextvars=contextvars)
    (leak,) = asyncio.run(program.main(vramlens.LeakWatch())).found
    assert (leak.owner.name, leak.owner.kind) == ("trace", "tuple")
    assert leak.owner.source == "trace.set(trace.get() + (value,))"
    assert any("context variable trace" in link for link in leak.owner.chain)


def test_a_context_variable_whose_module_is_gone(tmp_path: Path) -> None:
    """As ``runpy`` leaves it at the program's end: its own name is mostly its variable's."""
    path = tmp_path / "tracing.py"
    path.write_text(PROGRAM)
    names: dict[str, Any] = {"torch": torch, "contextvars": contextvars, "__name__": "tracing"}
    exec(compile(PROGRAM, str(path), "exec"), names)

    (leak,) = contextvars.copy_context().run(names["main"], vramlens.LeakWatch()).found
    assert leak.owner.source == "trace.set(trace.get() + (value,))"


def test_entries_of_entries_are_what_fills_them(load_program: Callable[..., Any]) -> None:
    """Not what makes an empty entry, or moves it in the order."""
    program = load_program(
        """
class Cache:
    def __init__(self):
        self.images = OrderedDict()

    def fetch(self, index, strength):
        variants = self.images.setdefault(index, {})
        self.images.move_to_end(index)
        if strength not in variants:
            variants[strength] = torch.zeros(4096)
        return variants[strength]
""",
        OrderedDict=OrderedDict,
    )
    cache, watch = program.Cache(), vramlens.LeakWatch()
    for step in range(12):
        for index in range(4):
            cache.fetch(index, step / 12)
        watch.step()
    (leak,) = watch.report().leaks
    assert leak.owner is not None
    assert leak.owner.source == "variants[strength] = torch.zeros(4096)"
