"""Entries that a call puts somewhere and takes out at its end: those of calls that were cancelled
or failed stay.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

SERVER = """
import asyncio

class Server:
    def __init__(self):
        self.running, self.served = {}, []

    async def serve(self, number, answer):
        self.running[number] = torch.zeros(4096)
        await answer
        self.running.pop(number, None)
        self.served.append(torch.zeros(65536))  # grows, too: the rise is not of one store alone
"""
STEPS, OLDER = 12, 40


async def _rounds(server: Any, watch: Any, *, cancels: bool, tasks: list[Any]) -> None:
    loop = asyncio.get_running_loop()
    for step in range(STEPS + OLDER):
        served, abandoned = loop.create_future(), loop.create_future()
        tasks.append(loop.create_task(server.serve(2 * step, abandoned)))
        whole = loop.create_task(server.serve(2 * step + 1, served))
        await asyncio.sleep(0)
        if cancels:
            tasks.pop().cancel()
        served.set_result(None)
        await whole
        if step == OLDER:
            watch.append(vramlens.LeakWatch())
        elif step > OLDER:
            watch[0].step()


@pytest.fixture
def server(load_program: Callable[..., types.ModuleType]) -> Any:
    return load_program(SERVER, "serving").Server()


def _leaks(server: Any, ends: Callable[[list[Any]], object], *, cancels: bool) -> tuple[Any, ...]:
    async def main() -> tuple[Any, ...]:
        watch: list[Any] = []
        tasks: list[Any] = []
        await _rounds(server, watch, cancels=cancels, tasks=tasks)
        leaks = watch[0].report().leaks
        ends(tasks)
        return leaks

    return asyncio.run(main())


def test_calls_that_were_cancelled(server: Any) -> None:
    """The watch began when there were entries already: it has not seen the first removals."""
    leaks = _leaks(server, list.clear, cancels=True)
    (leak,) = (leak for leak in leaks if "running" in leak.owner.name)
    assert leak.verdict == "likely"
    assert "line 11 takes an entry out as its call of serve() ends" in leak.reason
    assert "52 entries, and 1 call goes on" in leak.reason
    assert leak.fix == (
        "put line 11 (self.running.pop(number, None)) into a finally: it is passed over where its"
        " call fails or is cancelled"
    )


def test_calls_that_go_on(server: Any) -> None:
    leaks = _leaks(server, lambda tasks: [task.cancel() for task in tasks], cancels=False)
    (leak,) = (leak for leak in leaks if "running" in leak.owner.name)
    assert (leak.verdict, leak.reason) == (
        "possible",
        "line 11 takes an entry out: self.running.pop(number, None)",
    )
