"""A program for ``test_forked_copy.py`` that copies itself; prints what came of it as JSON."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from vramlens.attach.inside import forked_copy
from vramlens.attach.inside.forked_copy import ForkedCopy, NoCopy

TRIES = 8


def refusal(work: Any, seconds: float = 20.0) -> str:
    """Why a copy gave no answer; empty where it gave one."""
    try:
        ForkedCopy(work).answer(seconds)
    except NoCopy as error:
        return str(error)
    return ""


def state() -> dict[str, Any]:
    """What a copy must leave as it was."""
    return {
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "collects": gc.isenabled(),
        "interval": sys.getswitchinterval(),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }


def variables_of_threads() -> list[str]:
    """Names of the variables of the functions that run."""
    names: list[str] = []
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            names += frame.f_locals
            frame = frame.f_back
    return names


def main() -> None:
    """Copies, beside a thread that keeps the lock busy and one that waits."""
    is_over = threading.Event()
    forked: list[int] = []
    os.register_at_fork(after_in_child=lambda: forked.append(1))

    def compute() -> None:
        looked_for = 0
        while not is_over.is_set():
            looked_for += sum(range(100))

    def wait() -> None:
        waited_for = is_over  # noqa: F841
        is_over.wait()

    threads = [threading.Thread(target=work) for work in (compute, wait)]
    for thread in threads:
        thread.start()
    before = state()
    seen = [ForkedCopy(variables_of_threads).answer(20.0) for _ in range(TRIES)]
    hooks = ForkedCopy(lambda: len(forked)).answer(20.0)
    opened = ForkedCopy(lambda: len(os.listdir("/proc/self/fd"))).answer(20.0)
    large = len(ForkedCopy(lambda: "x" * 3_000_000).answer(20.0))
    refusals = {
        "error": refusal(lambda: 1 / 0),
        "death": refusal(lambda: os.kill(os.getpid(), signal.SIGKILL)),
        "hang": refusal(lambda: time.sleep(60)),
        "late": refusal(lambda: sum(range(1 << 40)), 0.3),
    }
    after = _settled(before)
    left = _children()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    refusals["handler"] = refusal(lambda: 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    forked_copy._MOST_PAGE_TABLES_KIB = 0
    refusals["large"] = refusal(lambda: 1)
    is_over.set()
    for thread in threads:
        thread.join()
    record = {"seen": seen, "hooks": hooks, "opened": opened, "large": large, "left": left}
    print(json.dumps({**record, "refusals": refusals, "before": before, "after": after}))


def _settled(before: dict[str, Any]) -> dict[str, Any]:
    """The state once the system has ended the threads that Python has."""
    deadline = time.monotonic() + 60.0
    while state()["threads"] > before["threads"] and time.monotonic() < deadline:
        time.sleep(0.01)
    return state()


def _children() -> list[str]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return file.read().split()


if __name__ == "__main__":
    main()
