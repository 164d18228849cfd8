"""A program for ``test_forked_copy.py``: a signal is noted at each fork, and its handler raises.
Prints what came of it as JSON.
"""

from __future__ import annotations

import contextvars
import ctypes
import json
import os
import signal
import sys
import tempfile
import threading
import time
from typing import Any

from vramlens.attach.inside.forked_copy import ForkedCopy
from vramlens.live.heap.looking_thread import looking_thread

TRIES = 3
WITHIN_S = 60.0
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


class Stopped(Exception):
    """What the program's handler raises."""


def left() -> dict[str, Any]:
    """What copies may leave."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        children = file.read().split()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "children": children,
    }


def settle(state: dict[str, Any]) -> None:
    """Waits until this is left: a thread of the system ends soon after Python's."""
    deadline = time.monotonic() + WITHIN_S
    while left() != state and time.monotonic() < deadline:
        time.sleep(0.01)


def answer_of_ended_thread() -> Any:
    """The answer of a copy that a thread has made which ended before it."""
    copies: list[ForkedCopy] = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "has_ended")

        def work() -> str:
            while not os.path.exists(path):
                pass
            return "done"

        thread = threading.Thread(target=lambda: copies.append(ForkedCopy(work)))
        thread.start()
        thread.join()
        time.sleep(0.1)  # the system ends the thread soon after Python
        with open(path, "w", encoding="ascii"):
            pass
        return copies[0].answer(WITHIN_S)


def main() -> None:
    """Copies itself while signals come."""
    variable.set("of the thread that asks")
    record: dict[str, Any] = {
        "ended_thread": answer_of_ended_thread(),
        "context": ForkedCopy(lambda: variable.get("")).answer(WITHIN_S),
        "asks": ForkedCopy(looking_thread).answer(WITHIN_S) == threading.get_ident(),
    }
    log, log_path = tempfile.mkstemp()

    def handler(*_: Any) -> None:
        os.write(log, f"{os.getpid()}\n".encode())
        raise Stopped

    signal.signal(signal.SIGINT, handler)
    settle({**left(), "threads": 1})
    before = left()
    prepare = ctypes.cast(ctypes.pythonapi.PyErr_SetInterrupt, ctypes.c_void_p)
    getattr(ctypes.CDLL(None), "__register_atfork")(prepare, None, None, None)
    raised = 0
    for _ in range(TRIES):
        try:
            ForkedCopy(lambda: sum(range(1000))).answer(WITHIN_S)
        except Stopped:
            raised += 1
    settle(before)
    with open(log_path, encoding="ascii") as file:
        ran_in = sorted({int(line) == os.getpid() for line in file})
    os.unlink(log_path)
    print(json.dumps({**record, "raised": raised, "ran_here": ran_in, "same": left() == before}))


if __name__ == "__main__":
    sys.exit(main())
