"""A program without PyTorch that waits or works for as long as its standard input is open, then
says what is left in it: ``small_program.py MODE``.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import select
import sys
import threading
import time

_SET_PTRACER, _ANYBODY = 0x59616D61, -1


def state() -> dict[str, object]:
    """What an attach must leave as it was."""
    with open("/proc/self/maps", encoding="utf-8") as lines:
        # Without what every thread leaves: its stack's guard, its arena's room.
        anonymous = sum(len(line.split()) == 5 and " r-" in line for line in lines)
    return {
        "path": list(sys.path),
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "modules": sorted(name for name in sys.modules if name.startswith("vramlens")),
        "read_only_pages": anonymous,
        "main_names": sorted(sys.modules["__main__"].__dict__),
    }


def is_over() -> bool:
    """True once standard input is closed."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


async def wait_for_input() -> None:
    """Waits in an event loop."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    loop.add_reader(sys.stdin, closed.set)
    await closed.wait()
    loop.remove_reader(sys.stdin)


def main(mode: str) -> None:
    """Works or waits."""
    ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(_ANYBODY), 0, 0, 0)
    if mode == "asyncio":
        asyncio.run(asyncio.sleep(0))
    before = state()
    print("ready", flush=True)
    total = 0
    if mode == "works":
        while not is_over():
            total += sum(range(1000))
    elif mode == "asyncio":
        asyncio.run(wait_for_input())
    elif mode == "joins":
        thread = threading.Thread(target=sys.stdin.read)
        thread.start()
        thread.join()
    else:
        sys.stdin.read()
    deadline = time.monotonic() + 300
    while state() != before and time.monotonic() < deadline:
        time.sleep(0.01)  # a thread that has said its last word ends
    print(json.dumps([before, state()]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
