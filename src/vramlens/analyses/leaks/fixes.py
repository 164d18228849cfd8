"""The fix of a leak, in terms of the user's own line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.finding import Place
    from vramlens.analyses.leaks.leak import Leak
    from vramlens.analyses.leaks.recorded_owners import Owner
    from vramlens.trace import Frame

# By class: what to do at {owner}, the statement that keeps it.
_BY_CLASS = {
    "graph": "keep `.detach()` or `.item()` of it at {owner}, which frees the graph behind it",
    "container": "clear what {owner} collects after each step, move it to the CPU with "
    "`.cpu()`, or limit it with"
    " `deque(maxlen=...)`",
    "cycle": "break the reference cycle at {owner}: use a `weakref.ref` for the reference "
    "back, or call `gc.collect()` regularly",
    "autograd_cycle": "at {owner}: use `torch.autograd.grad(..., create_graph=True)` instead of `.backward(...)`, or"
    " set `p.grad = None` after use; in a Function use `ctx.save_for_backward`",
    "hook": "keep the hook's handle and call `.remove()`, or store `.detach().cpu()` at "
    "{owner} and clear it each"
    " step",
    "exception": "do not keep the exception at {owner}: its traceback holds the frames; keep `str(e)`, or call"
    " `vramlens.release(e)`",
    "cache": "limit the cache at {owner} (`lru_cache(maxsize=...)`, `cache_clear()`), and do "
    "not use a module or tensor"
    " as its key",
    "closure": "do not let the function at {owner} capture the tensor: pass it as an argument, or capture `.item()`",
    "thread": "`del` the tensors of the thread at {owner} before it waits",
    "stream": "create the stream once, outside the loop, and reuse it: each new stream keeps "
    "its own cache",
    "pool": "capture fewer shapes, share one pool between graphs that never run together, and "
    "`reset()` graphs that are"
    " done",
    "pinned": "lower `prefetch_factor` or `num_workers`, or reuse one pinned buffer",
    "context": "call `torch.cuda.set_device(rank)` before anything else touches a GPU",
    "external": "look for process groups, handles or libraries that are created again each "
    "step, and create them once",
}


_WIDE_SCALARS = ("mse_loss", "smooth_l1_loss")
"""PyTorch computes them into one tensor of all errors, and returns its first element: the scalar
keeps the storage of all, also when detached.
"""


def wide_scalar(frames: Iterable[Frame]) -> str:
    """The loss of a stack whose scalar keeps all errors; "" where it has none."""
    names = (frame.function for frame in frames if "functional" in frame.file)
    return next((f"F.{name}" for name in names if name in _WIDE_SCALARS), "")


def fix_of(leak: Leak, *, graph: bool = False, result_bytes: int = 0, scalar_loss: str = "") -> str:
    """What to do about a leak, with the bytes that it frees.

    Args:
        graph: whether an autograd graph is kept.
        result_bytes: how large the result that a graph hangs on may be, which a detached tensor
            keeps.
        scalar_loss: the loss that asked for it and whose scalar keeps all errors; "" elsewhere.
    """
    owner = leak.owner
    if owner is not None and owner.fix:
        return f"{owner.fix} {_saved(round(owner.fix_share * leak.bytes_per_step))}".rstrip()
    if leak.kind in _BY_CLASS:
        freed = leak.bytes_per_step - (result_bytes if leak.kind == "graph" else 0)
        return fix_of_class(leak.kind, leak.place, max(0, freed), owner)
    line = _line(leak.place)
    if scalar_loss:
        return (
            f"find what keeps the result of {line} (a list, an attribute, a running sum) and let it keep `.item()`:"
            f" the scalar of {scalar_loss}, detached too, keeps all errors {_saved(leak.bytes_per_step)}"
        )
    if graph:
        return (
            f"find what keeps the result of {line} (a list, an attribute, a running sum or a "
            "caught exception). Keep"
            f" `.detach()` or `.item()` of it instead, which frees the graph"
            f" {_saved(max(0, leak.bytes_per_step - result_bytes), at_least=True)}"
        )
    return (
        f"at the end of each step, release what {line} allocated. If a list, attribute, cache or hook "
        "keeps it, clear or"
        f" limit it, or keep `.detach().cpu()`. If it is in a reference cycle, break the cycle"
        f" {_saved(leak.bytes_per_step)}"
    )


def fix_of_class(
    kind: str, place: Place | None, bytes_per_step: int, owner: Owner | None = None
) -> str:
    """What to do about a leak of a class, with the bytes to expect."""
    keeper = _line(place)
    if owner is not None:
        keeper = f"{owner.file}:{owner.line}" if owner.file else owner.name or keeper
    return f"{_BY_CLASS[kind].format(owner=keeper)} {_saved(bytes_per_step)}"


def _line(place: Place | None) -> str:
    return f"{place.file}:{place.line}" if place is not None else "that line"


def _saved(bytes_per_step: int, *, at_least: bool = False) -> str:
    at_least_words = "at least " if at_least else ""
    return (
        f"(saves {at_least_words}{format_size(bytes_per_step)} per step)" if bytes_per_step else ""
    )
