"""The fix of a leak, in terms of the user's own line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.leak.fixes import fix_of_class

if TYPE_CHECKING:
    from vramlens.trace import Frame

_WIDE_SCALARS = ("mse_loss", "smooth_l1_loss")
"""PyTorch computes them into one tensor of all errors, and returns its first element: the scalar
keeps the storage of all, also when detached.
"""


def wide_scalar(frames: Iterable[Frame]) -> str:
    """The loss of a stack whose scalar keeps all errors; "" where it has none."""
    names = (frame.function for frame in frames if "functional" in frame.file)
    return next((f"F.{name}" for name in names if name in _WIDE_SCALARS), "")


def with_fix(
    leak: RecordedLeak, *, graph: bool = False, result_bytes: int = 0, scalar_loss: str = ""
) -> RecordedLeak:
    """The leak with what to do about it, and how much that frees; as it is where the process has
    said that.

    Args:
        graph: whether an autograd graph is kept.
        result_bytes: how large the result that a graph hangs on may be, which a detached tensor
            keeps.
        scalar_loss: the loss that asked for it and whose scalar keeps all errors; "" elsewhere.
    """
    if leak.fix is not None:
        return leak
    if leak.kind is not None:
        share = _graph_share(leak, result_bytes) if leak.kind == "graph" else 1.0
        return replace(leak, fix=fix_of_class(leak.kind, _keeper_name(leak)), fix_share=share)
    line = f"{leak.file}:{leak.line}" if leak.place is not None else "that line"
    if scalar_loss:
        return replace(
            leak,
            fix=f"find what keeps the result of {line} (a list, an attribute, a running sum) and "
            f"let it keep `.item()`: the scalar of {scalar_loss}, detached too, keeps all errors",
        )
    if graph:
        return replace(
            leak,
            fix=f"find what keeps the result of {line} (a list, an attribute, a running sum or a "
            "caught exception). Keep `.detach()` or `.item()` of it instead, which frees the graph",
            fix_share=_graph_share(leak, result_bytes),
            frees_more=True,
        )
    return replace(
        leak,
        fix=f"at the end of each step, release what {line} allocated. If a list, attribute, cache "
        "or hook keeps it, clear or limit it, or keep `.detach().cpu()`. If it is in a reference "
        "cycle, break the cycle",
    )


def _graph_share(leak: RecordedLeak, result_bytes: int) -> float:
    """How much of its bytes only the graph keeps."""
    freed_bytes = max(0, leak.bytes_per_step - result_bytes)
    return freed_bytes / max(leak.bytes_per_step, 1)


def _keeper_name(leak: RecordedLeak) -> str:
    """What keeps it, with its line: the fix says where to make the edit."""
    owner = leak.owner
    if owner is None:
        return f"{leak.file}:{leak.line}" if leak.place is not None else "that line"
    return f"{owner.name} ({owner.file}:{owner.line})" if owner.file else owner.name
