"""Answers to runs of programs, two at a time: what a test asks for is being run before it asks.

A worker of pytest-xdist runs only what its own tests ask for: it does not know which tests it will
get.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pytest

from leaks.corpus import programs
from leaks.harness import Nursery, missing

_IN_WORKER = "PYTEST_XDIST_WORKER" in os.environ
_AT_ONCE = 1 if _IN_WORKER else 2  # CI has two cores


@dataclass(frozen=True)
class Run:
    """A program under a watch; see ``Nursery.run``."""

    name: str
    watcher: str = "vramlens"
    fixed: bool = False
    perturb: str | None = None

    def __str__(self) -> str:
        return "-".join(filter(None, [self.name, self.perturb]))


class Answers:
    """Runs in the order given; ``of(run)`` waits for one."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._waiting: queue.Queue[Run | None] = queue.Queue()
        self._answers: dict[Run, Future[dict[str, Any]]] = {}
        for run in runs:
            self._ask(run)
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(_AT_ONCE)]

    @classmethod
    def for_tests(cls, request: pytest.FixtureRequest) -> Answers:
        """With the runs of all the tests of the module that were chosen: their parameter
        ``runs``.
        """
        if _IN_WORKER:
            return cls(())
        chosen = (
            item
            for item in request.session.items
            if item.path == request.path and hasattr(item, "callspec")
        )
        return cls(run for item in chosen for run in item.callspec.params.get("runs", ()))

    def __enter__(self) -> Answers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while not self._waiting.empty():  # a test failed and pytest stops
            self._waiting.get()
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def of(self, run: Run) -> dict[str, Any]:
        """What the watch reported; skips the test where a package is missing."""
        if package := missing(programs()[run.name]):
            pytest.skip(f"needs {package}")
        self._ask(run)
        return self._answers[run].result()

    def _ask(self, run: Run) -> None:
        if run not in self._answers and not missing(programs()[run.name]):
            self._answers[run] = Future()
            self._waiting.put(run)

    def _work(self) -> None:
        with Nursery() as nursery:
            while (run := self._waiting.get()) is not None:
                try:
                    answer = nursery.run(programs()[run.name], run.watcher, run.fixed, run.perturb)
                except BaseException as error:
                    self._answers[run].set_exception(error)
                else:
                    self._answers[run].set_result(answer)
