"""Autocast's cache of cast weights: thread-local in C++, invisible to Python, emptied when the
outermost block is left.

The rule is ``cached_cast`` of ATen/autocast_mode.cpp: inside a block with its cache on, the first
cast of a leaf that wants a gradient, from float32 to the block's type, is kept until the end of the
outermost block; its autograd node keeps the leaf alive, too. The same weights are cast once; new
leaves in each step (fast weights, folds) pile up.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from vramlens.live.heap.looking_thread import looking_thread
from vramlens.live.heap.tensors import TorchObjects
from vramlens.live.holder.keeper import Keeper, Statements


def caching_depth(torch: Any) -> int:
    """How many ``torch.autocast`` blocks this thread is in; 0 also where they, or their cache,
    are off.
    """
    with suppress(Exception):
        if not torch.is_autocast_cache_enabled() or not any(
            map(torch.is_autocast_enabled, ("cuda", "cpu", "xpu"))
        ):
            return 0
        depth = int(torch.autocast_increment_nesting())
        torch.autocast_decrement_nesting()
        return depth - 1
    return 0


def copy_bytes(torch: TorchObjects, tensor: Any) -> int | None:
    """The size of the copy that the cache keeps of a tensor; None where it can keep none of it."""
    base, module = torch.base, torch.torch
    with suppress(Exception):
        device = base.device.__get__(tensor).type
        if (
            base.dtype.__get__(tensor) is module.float32
            and base.requires_grad.__get__(tensor)
            and base.is_leaf.__get__(tensor)
            and not base._is_view(tensor)
            and module.is_autocast_enabled(device)
        ):
            return int(base.numel(tensor)) * int(module.get_autocast_dtype(device).itemsize)
    return None


def block_around(statements: Statements) -> Keeper | None:
    """The ``with torch.autocast`` that this thread is in, the outermost; else the first call of
    it in the source.
    """
    calls = [
        (module.file, statement, function)
        for module in statements.modules()
        for _, function, statement, _ in module.calls.get("autocast", ())
    ]
    running = []
    frame: Any = sys._current_frames().get(looking_thread())
    while frame is not None:
        running.append((frame.f_code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    for file, line in reversed(running):
        for where, statement, function in calls:
            if where == file and statement.lineno <= line <= (
                statement.end_lineno or statement.lineno
            ):
                return Keeper(where, statement.lineno, function.name, score=100)
    return Keeper(calls[0][0], calls[0][1].lineno, calls[0][2].name, score=50) if calls else None
