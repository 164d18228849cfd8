"""Two slow witnesses of the truth, which know nothing of vramlens: bytes that the process holds,
and who asked for them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypedDict

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")
_MMAP_THRESHOLD = -3  # of malloc.h


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def byte_counter() -> Callable[[], int]:
    """What tells the bytes that are in use: of the GPU, else of all that ``malloc`` and shared
    memory hold.
    """
    if DEVICE != "cpu":
        return lambda: torch.cuda.memory_stats()["requested_bytes.all.current"]
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, 1 << 30)  # else every tensor is rounded up to whole pages
    libc.mallinfo2.restype = _Mallinfo2

    def count() -> int:
        info = libc.mallinfo2()
        return info.uordblks + info.hblkhd + _shared_bytes()

    return count


def _shared_bytes() -> int:
    """Of tensors in shared memory: what is mapped, and what only a file descriptor keeps for
    another process.
    """
    total, mapped = 0, set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "/torch_" in line:
                start, end = line.split(maxsplit=1)[0].split("-")
                total += int(end, 16) - int(start, 16)
                mapped.add(int(line.split()[4]))
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if "/torch_" in os.readlink(f"/proc/self/fd/{name}"):
                facts = os.stat(f"/proc/self/fd/{name}")
                total += 0 if facts.st_ino in mapped else facts.st_size
                mapped.add(facts.st_ino)
    return total


class Kept(TypedDict):
    """Bytes a step that stay, and the lines that may be named for them.

    Named may be the innermost line common to all, the lines of the innermost function common to all
    that carry a tenth, and lines further in that carry half. `heaviest` is that of the second kind
    that carries most.
    """

    bytes_per_step: float
    accepted: list[int]
    heaviest: int


class Witness(TorchDispatchMode):
    """Notes for every storage that an operator made the step and the program's lines that asked
    for it.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.step = 0
        self.born: dict[int, tuple[StorageWeakRef, int, int, tuple[tuple[int, int], ...]]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        known = self.born.get(storage._cdata)
        if known is None or known[0].expired():
            self.born[storage._cdata] = (
                StorageWeakRef(storage),
                storage.nbytes(),
                self.step,
                self._lines(),
            )

    def _lines(self) -> tuple[tuple[int, int], ...]:
        lines = []
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename == self.path:
                lines.append((frame.f_code.co_firstlineno, frame.f_lineno))
            frame = frame.f_back
        return tuple(reversed(lines))

    def kept(self) -> Kept:
        """What is alive now of the middle half of the steps."""
        steps = range(self.step // 4, self.step * 3 // 4)
        kept = [
            (lines, size)
            for reference, size, step, lines in self.born.values()
            if step in steps and lines and not reference.expired()
        ]
        total = sum(size for _, size in kept)
        function, line = (
            _common([[number for number, _ in lines] for lines, _ in kept]),
            _common([lines for lines, _ in kept]),
        )
        places: dict[int, int] = defaultdict(int)
        top: dict[int, int] = defaultdict(int)
        for lines, size in kept:
            top[lines[max(function - 1, 0)][1]] += size
            for _, number in lines[function:]:
                places[number] += size
        accepted = {number for number, size in top.items() if size >= total / 10}
        accepted |= {number for number, size in places.items() if size >= total / 2}
        if kept and line:
            accepted.add(kept[0][0][line - 1][1])
        heaviest = max(top, key=lambda number: top[number], default=0)
        return {
            "bytes_per_step": total / max(1, len(steps)),
            "accepted": sorted(accepted),
            "heaviest": heaviest,
        }


def _common(stacks: Sequence[Sequence[object]]) -> int:
    """How many frames all the stacks share, from the outermost."""
    return next(
        (depth for depth, frames in enumerate(zip(*stacks, strict=False)) if len(set(frames)) > 1),
        min(map(len, stacks), default=0),
    )
