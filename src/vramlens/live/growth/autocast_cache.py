"""Autocast's cache of cast weights: thread-local in C++, invisible to Python, emptied when the
outermost block is left.

The rule is ``cached_cast`` of ATen/autocast_mode.cpp: inside a block with its cache on, the first
cast of a leaf that wants a gradient, from float32 to the block's type, is kept until the end of the
outermost block; its autograd node keeps the leaf alive, too. The same weights are cast once; new
leaves in each step (fast weights, folds) pile up.
"""

from __future__ import annotations

import ast
import sys
from typing import Any

from vramlens.ground.program_errors import own_errors
from vramlens.ground.source_code import last_line_of
from vramlens.live.heap.looking_thread import looking_thread
from vramlens.live.heap.objects import frames_from
from vramlens.live.heap.tensors import TorchObjects
from vramlens.live.holder.keeper import Keeper, Statements
from vramlens.live.source.source_stores import CallSite


def caching_depth(torch: Any) -> int:
    """How many ``torch.autocast`` blocks this thread is in; 0 also where they, or their cache,
    are off.
    """
    with own_errors():
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
    with own_errors():
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
        (module.file, site)
        for module in statements.modules()
        for site in module.calls.get("autocast", ())
    ]
    frames = frames_from(sys._current_frames().get(looking_thread()))
    lines = [(frame.f_code.co_filename, frame.f_lineno or 0) for frame in frames]
    for running_file, line in reversed(lines):
        for file, site in calls:
            if file == running_file and _encloses(site.statement, line):
                return _keeper_at(file, site, 100)
    return _keeper_at(*calls[0], 50) if calls else None


def _encloses(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= last_line_of(statement)


def _keeper_at(file: str, site: CallSite, score: int) -> Keeper:
    return Keeper(file, site.statement.lineno, site.function.name, score=score)
