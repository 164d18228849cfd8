"""Which failed requests are recorded, and which recording an exception names."""

from __future__ import annotations

import threading
from collections.abc import Callable

from vramlens.capture.triggers.out_of_memory import OutOfMemoryWatch, RefusedRequest

MIB = 1 << 20


class FakeAllocator:
    """Requests that fail: the observer hears of each, and those that nobody survives are raised."""

    kind = "cpu"

    def __init__(self) -> None:
        self.recorded: list[RefusedRequest] = []
        self._observer: Callable[[int, int, int, int], None]
        self._error = type("OutOfMemoryError", (RuntimeError,), {})
        OutOfMemoryWatch(self._write, verdict=None).attach(self)  # type: ignore[arg-type]

    def attach_observer(self, observer: Callable[[int, int, int, int], None]) -> None:
        self._observer = observer

    def out_of_memory_error(self) -> type[BaseException]:
        return self._error

    def _write(self, failure: RefusedRequest) -> str:
        self.recorded.append(failure)
        return failure.takes_place_of or f"run-{len(self.recorded)}.vram"

    def survive(self, mib: int) -> None:
        """A request fails, and a library asks for less."""
        self._observer(0, mib * MIB, 80 << 30, 0)

    def fail(self, mib: int) -> BaseException:
        """A request fails, and the program sees it."""
        self.survive(mib)
        return self._error(f"CUDA out of memory. Tried to allocate {mib}.00 MiB.")


def recording_named(error: BaseException) -> str | None:
    return getattr(error, "__vramlens_path__", None)


def sizes(gpu: FakeAllocator) -> list[int]:
    return [failure.requested_bytes // MIB for failure in gpu.recorded]


def test_each_failure_that_the_program_sees_has_a_recording_of_its_own() -> None:
    gpu = FakeAllocator()
    assert [recording_named(gpu.fail(mib)) for mib in (4, 5)] == ["run-1.vram", "run-2.vram"]
    assert sizes(gpu) == [4, 5]


def test_of_a_librarys_tries_the_one_that_the_program_sees_is_kept() -> None:
    gpu = FakeAllocator()
    for mib in range(40, 10, -1):
        gpu.survive(mib)
    assert sizes(gpu) == [40], "each recording makes the program wait"
    assert recording_named(gpu.fail(10)) == "run-1.vram"
    assert sizes(gpu) == [40, 10]
    assert recording_named(gpu.fail(9)) == "run-3.vram", "a failure of its own"


def test_a_series_that_the_program_survives_leaves_one_recording() -> None:
    gpu = FakeAllocator()
    for _step in range(3):
        for mib in (40, 30, 20):
            gpu.survive(mib)
    assert sizes(gpu) == [40]


def test_a_failure_on_another_thread_is_no_other_try() -> None:
    gpu = FakeAllocator()
    gpu.survive(40)
    thread = threading.Thread(target=gpu.survive, args=(30,))
    thread.start()
    thread.join()
    assert sizes(gpu) == [40, 30]


def test_a_try_while_the_error_is_handled_is_known_as_such() -> None:
    gpu = FakeAllocator()
    try:
        raise gpu.fail(4)
    except RuntimeError:
        gpu.fail(5)
    gpu.fail(6)
    try:
        raise ValueError("another")
    except ValueError:
        gpu.fail(7)
    assert [failure.while_handling for failure in gpu.recorded] == [False, True, False, False]
