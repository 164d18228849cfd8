"""What a signal handler raises inside a callback that C code calls reaches the program."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from vramlens.capture.process.late_errors import raise_after_callback
from vramlens.capture.process.thread_trace import C_TRACE, can_trace, set_trace

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="it has no such signals"),
    pytest.mark.skipif(not can_trace(), reason="no pending calls of this kind"),
]
_LONGEST_S = 60.0


class Late(BaseException):
    """What programs raise when something takes too long."""


def _raise(number: int, frame: FrameType | None) -> None:
    raise Late


@pytest.fixture(autouse=True)
def _handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, _raise)
    yield
    signal.signal(signal.SIGUSR1, before)


def _signaled_in(call: Callable[[Callable[[], None]], None]) -> None:
    """A signal comes in a callback; the program goes on until what is pending interrupts it."""
    call(lambda: signal.raise_signal(signal.SIGUSR1))
    end = time.monotonic() + _LONGEST_S
    while time.monotonic() < end:
        pass


def _in_collection(callback: Callable[[], None]) -> None:
    def tell(phase: str, facts: dict[str, int]) -> None:
        try:
            if phase == "start":
                callback()
        except BaseException as error:
            raise_after_callback(error)

    gc.callbacks.insert(0, tell)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(tell)


def _in_trace(callback: Callable[[], None]) -> None:
    def event(_self: object, _frame: object, _what: int, _argument: object) -> int:
        try:
            set_trace(None, None)
            callback()
        except BaseException as error:
            raise_after_callback(error)
        return 0

    keep = C_TRACE(event)
    set_trace(keep, event)
    time.monotonic()


@pytest.mark.parametrize("call", [_in_collection, _in_trace])
def test_what_a_handler_raises_reaches_the_program(
    call: Callable[[Callable[[], None]], None],
) -> None:
    with pytest.raises(Late):
        _signaled_in(call)


@pytest.mark.parametrize("call", [_in_collection, _in_trace])
def test_an_interrupt_from_the_keyboard_is_raised(
    call: Callable[[Callable[[], None]], None],
) -> None:
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        _signaled_in(call)


def test_another_callback_of_the_collector_does_not_lose_it() -> None:
    gc.callbacks.append(_slow)
    try:
        with pytest.raises(Late):
            _signaled_in(_in_collection)
    finally:
        gc.callbacks.remove(_slow)


def _slow(phase: str, facts: dict[str, int]) -> None:
    """Runs while the error is pending."""
    time.sleep(0.02)


def test_an_error_of_our_own_is_forgiven() -> None:
    def fails() -> None:
        raise ValueError

    _in_collection(fails)
    time.sleep(0.05)  # where it were pending, it would come here
