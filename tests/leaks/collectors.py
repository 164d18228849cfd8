"""What the other two ways of looking find: the collector's objects (as objgraph does it), and
PyTorch's cycle finder.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils.viz import _cycles

_WARM_UP_STEPS = 3
_MOST_HOPS = 12


def _tensors() -> list[torch.Tensor]:
    return [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]


class CollectorWatch:
    """Counts objects by type after the warm-up and at the end; a chain of referrers from a new
    tensor to a root.

    So objgraph's ``growth()`` and ``find_backref_chain(is_proper_module)`` are used by hand. It
    sees what the
    collector tracks: tensors that have a Python object, not what autograd holds, no bytes behind a
        graph, no lines.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.before: Counter[str] = Counter()
        self.known: list[weakref.ref[torch.Tensor]] = []

    def step(self) -> None:
        self.steps += 1
        if self.steps == _WARM_UP_STEPS:
            gc.collect()
            self.before = Counter(type(each).__name__ for each in gc.get_objects())
            self.known = [weakref.ref(each) for each in _tensors()]

    def report(self) -> CollectorWatch:
        """Looks while the program's locals are alive."""
        gc.collect()
        now = Counter(type(each).__name__ for each in gc.get_objects())
        later = max(1, self.steps - _WARM_UP_STEPS)
        self.grown = {
            kind: n - self.before[kind]
            for kind, n in now.items()
            if n - self.before[kind] >= later * 0.8
        }
        known = {id(reference()) for reference in self.known}  # not of those whose place is reused
        new = [each for each in _tensors() if id(each) not in known]
        self.tensors, self.seen_bytes = len(new), sum(_storages(new).values())
        self.chain = _chain(new[len(new) // 2]) if len(new) >= later * 0.8 else []
        return self

    def to_dict(self) -> dict[str, Any]:
        """Whether tensors grew, the bytes that are seen to, a step, and the chain from a root."""
        later = max(1, self.steps - _WARM_UP_STEPS)
        return {
            "found": self.tensors >= later * 0.8,
            "bytes_per_step": self.seen_bytes // later,
            "chain": self.chain,
            "grown": self.grown,
        }


def _storages(tensors: list[torch.Tensor]) -> dict[int, int]:
    sizes = {}
    for each in tensors:
        try:
            sizes[each.untyped_storage()._cdata] = each.untyped_storage().nbytes()
        except (RuntimeError, NotImplementedError):
            continue
    return sizes


def _chain(start: object) -> list[str]:
    """Names from a module down to `start`, breadth first, as ``find_backref_chain`` finds them;
    empty without one.
    """
    level, names, seen = [start], {id(start): [type(start).__name__]}, {id(start)}
    for _ in range(_MOST_HOPS):
        found = gc.get_referrers(*level)
        own = {id(each) for each in (level, names, found, locals())}
        children = {id(each): each for each in level}
        following = []
        for referrer in found:
            if id(referrer) in own or id(referrer) in seen or isinstance(referrer, types.FrameType):
                continue
            child = next(
                (each for each in gc.get_referents(referrer) if id(each) in children), None
            )
            if child is None:
                continue
            seen.add(id(referrer))
            names[id(referrer)] = [_name(referrer, child), *names[id(child)]]
            if isinstance(referrer, types.ModuleType):
                return names[id(referrer)]
            following.append(referrer)
        if not following:
            break
        level = following[:200]
    return []


def _name(referrer: object, child: object) -> str:
    """What the referrer calls its child."""
    if isinstance(referrer, types.ModuleType):
        return referrer.__name__
    if type(referrer) is dict:
        return f"dict[{next((repr(key)[:60] for key, value in referrer.items() if value is child), '?')}]"
    kept = next(
        (key for key, value in getattr(referrer, "__dict__", {}).items() if value is child), ""
    )
    return f"{type(referrer).__name__}.{kept}" if kept else type(referrer).__name__


class CyclesWatch:
    """PyTorch's reference cycle detector: what is garbage and holds tensors. Nothing that is
    still reachable.
    """

    def __init__(self) -> None:
        self.steps = 0
        gc.collect()

    def step(self) -> None:
        self.steps += 1

    def report(self) -> CyclesWatch:
        """Collects with the garbage kept, as ``warn_tensor_cycles`` does."""
        flags = gc.get_debug()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            garbage = [*gc.garbage]
            gc.garbage.clear()
        finally:
            gc.set_debug(flags)
        tensors = [each for each in garbage if issubclass(type(each), torch.Tensor)]
        self.bytes = sum(_storages(tensors).values())
        self.found = len(tensors) >= self.steps // 2
        if (
            not torch.cuda.is_available()
        ):  # it looks for the allocations' frames in the GPU's snapshot
            _cycles.cuda_allocation_context = lambda: lambda _: None
        graph = (
            _cycles.create_graph(garbage, filter=lambda each: issubclass(type(each), torch.Tensor))
            if tensors
            else []
        )
        words = (
            " ".join([*node.label.split(), *(f".{name}" for name, _ in node.referrents)])
            for node in graph
        )
        self.labels = [*dict.fromkeys(words)][:40]
        return self

    def to_dict(self) -> dict[str, Any]:
        """Whether garbage with a tensor for each second step lies there, its bytes per step, and
        the cycle.
        """
        return {
            "found": self.found,
            "bytes_per_step": self.bytes // max(1, self.steps),
            "chain": self.labels,
        }
