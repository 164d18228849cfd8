"""What a handler of a signal raises in the midst of our code goes on to the program."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

import vramlens
from vramlens.capture.warn import harmless
from vramlens.ground.program_errors import let_through, own_errors

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no such signals")


class Late(Exception):
    """What programs raise when something takes too long."""


class _Handlers:
    def method(self, number: int, frame: FrameType | None) -> None:
        raise Late

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._deeper()

    def _deeper(self) -> None:
        raise Late

    @staticmethod
    def of_all(*arguments: object) -> None:
        raise Late

    @staticmethod
    def of_three(message: str, number: int, frame: FrameType | None) -> None:
        raise TimeoutError(message)


HANDLERS = [
    _Handlers().method,
    _Handlers(),
    _Handlers.of_all,
    partial(_Handlers.of_three, "too long"),
]


@pytest.fixture(params=HANDLERS, ids=["method", "object", "all", "partial"])
def _handled(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, request.param)
    yield
    signal.signal(signal.SIGUSR1, before)


def _suppressing() -> None:
    with own_errors():
        signal.raise_signal(signal.SIGUSR1)


def _catching() -> None:
    try:
        signal.raise_signal(signal.SIGUSR1)
    except Exception as error:
        let_through(error)


@harmless("testing")
def _harmless() -> None:
    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.usefixtures("_handled")
@pytest.mark.parametrize("work", [_suppressing, _catching, _harmless])
def test_what_a_handler_raises_is_the_programs(work: Callable[[], None]) -> None:
    with pytest.raises((Late, TimeoutError)):
        work()


def test_our_own_errors_are_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where our code is given frames, and where an object of the program's raises."""

    class Odd:
        @property
        def value(self) -> int:
            raise Late

    ours: dict[str, Any] = {}
    file = os.path.join(vramlens.__path__[0], "live", "made_here.py")
    text = "def look(frame):\n    raise ValueError(frame)\n"
    exec(compile(text, file, "exec"), ours)
    with own_errors():
        ours["look"](sys._getframe())
    with own_errors():
        Odd().value  # noqa: B018 - asking is what fails
    harmless("a test")(Odd.value.fget)(Odd())  # type: ignore[attr-defined]
    assert capsys.readouterr().err.startswith("vramlens: a test failed (Late: ")


def test_what_an_audit_hook_refuses_us_is_no_interruption() -> None:
    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        raise PermissionError(event)

    with own_errors():
        refuse("sys._getframe", (sys._getframe(),))
