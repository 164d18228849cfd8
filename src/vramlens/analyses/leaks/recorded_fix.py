"""The fix of a leak, in terms of the user's own line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.analyses.attribution.names import store_words
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.leak.fixes import fix_of_class
from vramlens.leak.leak import LeakOwner

if TYPE_CHECKING:
    from vramlens.trace import Frame

OF_PASS, BESIDE_PASS = "of a whole pass", "beside that of a pass"
"""Graphs that are kept: no backward pass need go through one that is beside that of a pass."""
_WIDE_SCALARS = ("mse_loss", "smooth_l1_loss")
"""PyTorch computes them into one tensor of all errors, and returns its first element: the scalar
keeps the storage of all, also when detached.
"""


def wide_scalar(frames: Iterable[Frame]) -> str:
    """The loss of a stack whose scalar keeps all errors; "" where it has none."""
    names = (frame.function for frame in frames if "functional" in frame.file)
    return next((f"F.{name}" for name in names if name in _WIDE_SCALARS), "")


def with_fix(
    leak: RecordedLeak,
    *,
    graph: str = "",
    in_list: bool = False,
    result_bytes: int = 0,
    scalar_loss: str = "",
    copies_model: bool = False,
    without_backward: bool = False,
) -> RecordedLeak:
    """The leak with what to do about it, and how much that frees; as it is where the process has
    said that.

    Args:
        graph: what kind of autograd graph is kept, OF_PASS or BESIDE_PASS; "" without one.
        in_list: whether it went as what a list keeps goes.
        result_bytes: how large the result that a graph hangs on may be, which a detached tensor
            keeps each time.
        scalar_loss: the loss that asked for it and whose scalar keeps all errors; "" elsewhere.
        copies_model: whether each time leaves a copy of the model.
        without_backward: whether models made it with gradients enabled, and no backward pass ran.
    """
    if leak.fix is not None:
        return leak
    cuts_graph = bool(graph) and leak.kind is None and not scalar_loss
    stays = result_bytes // leak.every_steps if cuts_graph or leak.kind == "graph" else 0
    freed = max(0, leak.bytes_per_step - stays)
    fix = _edit(leak, graph=graph if cuts_graph else "", in_list=in_list, scalar_loss=scalar_loss)
    if copies_model and leak.kind is None:
        fix = _without_copies(leak)
    elif without_backward and leak.kind is None:
        fix = _without_graph(leak)
    return replace(
        leak,
        fix=fix,
        fix_share=freed / max(leak.bytes_per_step, 1),
        frees_more=cuts_graph,
    )


def _without_copies(leak: RecordedLeak) -> str:
    line = f"{leak.file}:{leak.line}" if leak.place is not None else "that line"
    return (
        f"keep the copies of the model that {line} makes on the CPU (`.cpu()`) or in a file"
        " (`torch.save`), or keep only the last one"
    )


def _without_graph(leak: RecordedLeak) -> str:
    line = f"{leak.file}:{leak.line}" if leak.place is not None else "that line"
    return (
        f"run {line} in torch.no_grad(): no backward pass has run, and its graph is kept with its"
        " result. If one is still to come, keep `.detach()` of the result instead"
    )


def _edit(leak: RecordedLeak, *, graph: str, in_list: bool, scalar_loss: str) -> str:
    line = f"{leak.file}:{leak.line}" if leak.place is not None else "that line"
    if leak.kind is not None:
        return fix_of_class(leak.kind, _owner_name(leak.owner) or line)
    if scalar_loss:
        return (
            f"find what keeps the result of {line} (a list, an attribute, a running sum) and "
            f"let it keep `.item()`: the scalar of {scalar_loss}, detached too, keeps all errors"
        )
    store = store_words(leak.kept_in)
    if graph and store:
        return (
            f"{store} keeps the result of {line}: keep `.detach()` or `.item()` of it there"
            " instead, which frees the graph"
        )
    if graph:
        find = (
            f"find what keeps the result of {line} (a list, an attribute, a running sum or a "
            "caught exception). Keep `.detach()` or `.item()` of it instead, which frees the graph"
        )
        if graph == OF_PASS:
            return find
        return f"run {line} in torch.no_grad() if no backward pass is to go through its result. Else {find}"
    if leak.is_stored_data:
        return (
            f"limit what keeps the memory that {line} allocated (a replay buffer, a cache of "
            "batches), or keep it on the CPU (`.cpu()`)"
        )
    if store:
        return (
            f"{store} keeps what {line} allocated: empty or limit it, or keep `.item()` or"
            " `.detach().cpu()` there"
        )
    if in_list:
        return (
            f"find the list that keeps the result of {line}, and let it keep `.item()` or "
            "`.detach().cpu()` of it, or empty the list"
        )
    release = f"at the end of each step, release what {line} allocated"
    if leak.every_steps > 1:
        release = f"release what {line} allocated before it runs again"
    return (
        f"{release}. If a list, attribute, cache or hook keeps it, clear or limit it, or keep "
        "`.detach().cpu()`. If it is in a reference cycle, break the cycle"
    )


def _owner_name(owner: LeakOwner | None) -> str:
    """What keeps it, with its line: the fix says where to make the edit."""
    if owner is None:
        return ""
    return f"{owner.name} ({owner.file}:{owner.line})" if owner.file else owner.name
