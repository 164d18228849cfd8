"""``vramlens top`` on a machine that is none, to look at it without a GPU.

    python tests/monitor/fake_top.py SHAPE [ARGUMENTS OF top]

SHAPE is a key of ``fake_nvml.SHAPES``, such as ``several``. Figures move as on a busy machine; two
programs under vramlens are shown, one of which leaks.
"""

from __future__ import annotations

import math
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from support.fake_nvml import GIB, MIB, SHAPES, FakeNvml, plug_in  # noqa: E402
from vramlens.monitor.machine.inside import (  # noqa: E402
    Inside,
    InsideDevice,
    inside_path,
    start_of,
    write_inside,
)


def program(pid: int, folder: str, uuid: str, *, seconds: float, leaks: bool) -> None:
    """What a program under vramlens would have written by now."""
    live = (
        (18 if leaks else 12) * GIB
        + int(2 * GIB * math.sin(seconds))
        + (int(seconds * 40) * MIB if leaks else 0)
    )
    step = int(seconds * 8)
    device = InsideDevice(
        0, uuid, live, live + 3 * GIB, live + GIB, 412 * MIB, live,
        *((5 * MIB, max(0, 4200 - step)) if leaks else (None, None)), 0, 0,
    )  # fmt: skip
    inside = Inside(
        pid,
        start_of(pid) or 0,
        time.time_ns() // 1000,
        step,
        0,
        12 * GIB,
        2 * GIB,
        "train.py",
        (device,),
    )
    write_inside(inside_path(pid, inside.started, folder), inside)


def live(nvml: FakeNvml, folder: str, pids: list[int]) -> None:
    """Moves the figures, for as long as this runs."""
    began, dice = time.monotonic(), random.Random(0)
    frees = [gpu.free for gpu in nvml.gpus]
    while True:
        seconds = time.monotonic() - began
        for gpu, free in zip(nvml.gpus, frees, strict=True):
            if gpu.busy:
                gpu.free = max(GIB, free - int(GIB * (1 + math.sin(seconds / 3 + free % 7))))
                gpu.busy = min(100, max(1, gpu.busy + dice.randint(-3, 3)))
                gpu.power = min(gpu.limit, max(90_000, gpu.power + dice.randint(-9000, 9000)))
        for number, pid in enumerate(pids):
            program(pid, folder, nvml.gpus[number].uuid, seconds=seconds, leaks=number == 0)
        time.sleep(0.2)


def main() -> int:
    """Runs it."""
    shape, arguments = sys.argv[1], sys.argv[2:]
    nvml = plug_in(SHAPES[shape]())
    folder = tempfile.mkdtemp()
    os.environ["XDG_RUNTIME_DIR"] = folder
    own = os.path.join(folder, f"vramlens-{os.getuid()}")
    os.mkdir(own, 0o700)
    pids = []
    if shape == "several":  # two processes that live: this one and its parent
        pids = [os.getpid(), os.getppid()]
        for gpu, pid in zip(nvml.gpus, pids, strict=False):
            gpu.compute = [(pid, gpu.compute[0][1])]
            gpu.graphics = [(1, 300 * MIB)]
    threading.Thread(target=live, args=(nvml, own, pids), daemon=True).start()
    time.sleep(0.3)
    from vramlens.cli.main import main as cli

    return cli(["top", *arguments])


if __name__ == "__main__":
    sys.exit(main())
