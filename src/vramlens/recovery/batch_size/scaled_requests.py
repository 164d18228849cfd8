"""What a training step asks of the allocator at a size that was not run, and whether that fits.

A step makes the same requests whatever the size of its batch, and each of them grows affinely with
it. Two recorded probes thus tell the requests of any size; PyTorch's allocator, replayed, tells
what they lead to: rounding, splitting, fragmentation and emptied caches included.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens._native import Replay
from vramlens.errors import VramlensError
from vramlens.read.live_history import read_history
from vramlens.replay.requests import requests_of
from vramlens.replay.settings import Settings, recorded_settings
from vramlens.replay.versions import Version, version_named
from vramlens.trace import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens.trace import Stacks

_LARGEST = 2**40
"""Of a request: more than any device has."""
_MOST_SAMPLES = 10**9
_PACE = 32
"""A larger size is tried beside each that fits, by so small a share."""
_BEYOND, _MOST_BEYOND = 20, 16
"""Beyond the first size that does not fit: up to a 20th of it, in so many sizes."""
_ROOMY = 0.85
"""Of the limit: where no more is reserved, the allocator serves all sizes."""
_CONVOLUTION = re.compile(r"\A.*conv[^/\\\n]*(?:\n|\Z)")
"""The innermost frame's file, without its folders, or function."""
_ORDERS = (0, 1, 2)
"""Where the driver may put segments (native/replay_addresses.h): it decides ties among equal
free blocks.
"""


@dataclass(frozen=True, eq=False)
class StepRequests:
    """What a probe asked for, from an allocator whose cache was empty.

    Attributes:
        size: samples in its batch.
        columns: its requests and frees, and the memory from before them, as ``Replay`` takes them.
        pools: how many pools they name.
        origins: by row of ``columns``, the number of the stack that asked, in ``stacks``.
        stacks: stacks as text.
        settings, version: of the allocator.
    """

    size: int
    columns: Mapping[str, NDArray[Any]]
    pools: int
    origins: NDArray[np.int64]
    stacks: tuple[str, ...]
    settings: Settings
    version: Version

    @property
    def dispensable(self) -> NDArray[np.uint8]:
        """By row, whether PyTorch goes on without it: a convolution's workspace, for all that its
        stack tells.

        What is freed at once may as well be a tensor (``x += layer(x)``), which a program dies
        without. The innermost frame says which; in the backward there is none.
        """
        by_stack = np.array(
            [not text or bool(_CONVOLUTION.search(text)) for text in self.stacks], bool
        )
        return np.asarray(self.columns["row_scratch"] * by_stack[self.origins], np.uint8)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Requested bytes by row."""
        return np.asarray(self.columns["row_requested"].view(np.int64))


@dataclass(frozen=True, slots=True)
class Served:
    """What requests led to.

    Attributes:
        fits: whether they were served; a convolution's workspace need not be, cuDNN tries a smaller
            one.
        workspaces_fit: whether those were served as well.
        allocated_bytes, reserved_bytes: the peaks.
    """

    fits: bool
    workspaces_fit: bool
    allocated_bytes: int
    reserved_bytes: int


def requests_of_snapshot(
    snapshot: dict[str, Any], size: int, device: int, torch_version: str
) -> StepRequests | None:
    """A probe's requests.

    Args:
        snapshot: ``torch.cuda.memory._snapshot()`` at its end, recorded with Python stacks since
            its beginning.
        size: samples in its batch.

    Returns:
        None where it holds nothing that can be replayed.
    """
    try:
        trace = read_history(snapshot, "the probe")
    except VramlensError:
        return None
    memory = trace.devices.get(device)
    if memory is None or not (memory.events.action == Action.ALLOC).any():
        return None
    version = version_named(torch_version)
    requests = requests_of(trace, memory)
    is_request = np.isin(
        memory.events.action, (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    )
    numbers, origins = np.unique(memory.allocations.stack, return_inverse=True)
    return StepRequests(
        size=size,
        columns=_without_segments(requests.columns, is_request),
        pools=len(requests.pools),
        origins=origins.reshape(-1),
        stacks=tuple(_text(trace.stacks, int(number)) for number in numbers),
        settings=recorded_settings(trace.settings, version),
        version=version,
    )


def _text(stacks: Stacks, number: int) -> str:
    return "\n".join(str(frame) for frame in stacks.of(number)) if number < len(stacks) else ""


def _without_segments(
    columns: Mapping[str, NDArray[Any]], is_request: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """The requests and frees alone: which segments they need depends on their sizes."""
    by_event = ("action", "address", "size", "stream", "emptied", "allocation", "released_pool")
    number = np.cumsum(is_request) - 1
    born = columns["row_born"]
    requests = {
        name: column[is_request] if name in by_event else column for name, column in columns.items()
    }
    requests["row_born"] = np.where(born < 0, born, number[np.maximum(born, 0)]).astype(np.int64)
    return {name: np.ascontiguousarray(column) for name, column in requests.items()}


class ScaledRequests:
    """The requests of two probes as a function of the batch's size, from the larger one's on.

    Args:
        last: the larger probe's.
        slopes: by row, bytes that a sample adds.
    """

    def __init__(self, last: StepRequests, slopes: NDArray[np.float64]) -> None:
        self._last, self._slopes = last, slopes
        self._columns = {**last.columns, "row_scratch": last.dispensable}
        self._native = last.settings.native(last.version)

    def sizes(self, size: int) -> NDArray[np.uint64]:
        """Requested bytes by row, for a batch so large."""
        grown = np.rint(self._last.sizes + self._slopes * (size - self._last.size))
        return np.minimum(grown, 2.0**62).astype(np.uint64)

    def served(self, size: int, limit_bytes: int) -> Served:
        """What the requests of a batch so large lead to, at the worst.

        Args:
            limit_bytes: what the process may reserve.
        """
        sizes = self.sizes(size)
        if int(sizes.max()) > _LARGEST:
            return Served(False, False, 0, 0)
        rows = self._columns["allocation"]
        by_event = np.where(rows < 0, self._columns["size"], sizes[np.maximum(rows, 0)])
        columns = {**self._columns, "row_requested": sizes, "size": by_event}
        replay = Replay(columns, pools=self._last.pools, settings=self._native)
        limited = self._native | {
            "allowed_maximum": max(0, limit_bytes)
        }  # below zero it would count as none
        runs: list[dict[str, int]] = []
        for order in _ORDERS:
            runs.append(replay.run(limited, addresses=order, completion=0, seed=0))
            if runs[-1]["died_at"] >= 0:
                break  # the worst is known
        return Served(
            all(run["died_at"] < 0 for run in runs),
            not any(run["failures"] for run in runs),
            max(run["peak_allocated"] for run in runs),
            max(run["peak_reserved"] for run in runs),
        )

    def largest(self, limit_bytes: int, *, with_workspaces: bool = False) -> int:
        """The largest batch that fits, the larger probe's at least.

        Near the limit it is the allocator that decides: beyond the first size that does not fit,
        one may again. That counts up to 5% beyond; what lies further is too lonely to be told to
        anybody.

        Args:
            with_workspaces: the largest of which all workspaces fit, too.
        """

        def fits(size: int) -> bool:
            served = self.served(size, limit_bytes)
            return served.workspaces_fit if with_workspaces else served.fits

        low = self._with_room(limit_bytes)
        high = low + 1
        while high < _MOST_SAMPLES and fits(high):
            low, high = high, high + max(1, high // _PACE)
        low, high = _narrowed(low, high, fits)
        furthest = high + max(1, high // _BEYOND)
        beyond = range(furthest, high, -max(1, (furthest - high) // _MOST_BEYOND))
        return next((size for size in beyond if fits(size)), low)

    def _with_room(self, limit_bytes: int) -> int:
        """A size with room to spare, nearly the largest: far from the limit sizes need not be
        tried one by one.
        """

        def is_roomy(size: int) -> bool:
            served = self.served(size, limit_bytes)
            return served.workspaces_fit and served.reserved_bytes <= _ROOMY * limit_bytes

        low = self._last.size
        high = 2 * low
        while high < _MOST_SAMPLES and is_roomy(high):
            low, high = high, 2 * high
        return _narrowed(low, high, is_roomy, lambda size: size // _PACE)[0]


def _narrowed(
    low: int, high: int, holds: Callable[[int], bool], apart: Callable[[int], int] = lambda _: 1
) -> tuple[int, int]:
    """By bisection, two sizes of which it holds for the lower one only, so far apart at most."""
    while high - low > max(1, apart(low)):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def scaled_requests(first: StepRequests, last: StepRequests) -> ScaledRequests | None:
    """The requests by size, from two probes, the smaller one first; None where they did not make
    the same ones.
    """
    if first.size >= last.size or first.settings != last.settings:
        return None
    partner = _partners(first, last)
    if partner is None:
        return None
    grown = np.maximum(last.sizes - first.sizes[np.maximum(partner, 0)], 0) / (
        last.size - first.size
    )
    slopes = np.where(
        partner == _ALONE, last.sizes / last.size, grown
    )  # what only it asked for: in proportion
    return ScaledRequests(last, np.where(partner == _BEFORE, 0.0, slopes))


_ALONE, _BEFORE = -1, -2
"""No partner: a workspace that only the larger probe had; memory from before it."""


def _partners(first: StepRequests, last: StepRequests) -> NDArray[np.int64] | None:
    """By row of the larger probe: the row of the smaller one that the same request made; None where
    they differ.

    Requests of one stack come in one order. Only workspaces, which are freed at once, may come or
    go with the size: cuDNN chooses another algorithm.
    """
    rows_of_first, rows_of_last = _groups(first), _groups(last)
    partner = np.full(len(last.origins), _BEFORE, np.int64)
    if {key for key in rows_of_first if not key[1]} != {key for key in rows_of_last if not key[1]}:
        return None
    for (stack, is_scratch), rows in rows_of_last.items():
        partners = rows_of_first.get((stack, is_scratch), [])
        if len(partners) == len(rows):
            partner[rows] = partners
        elif is_scratch:
            partner[rows] = _ALONE
        else:
            return None
    return partner


def _groups(requests: StepRequests) -> dict[tuple[str, bool], list[int]]:
    """The rows of the probe itself, in order, by stack and whether they were freed at once."""
    rows_by_stack: dict[tuple[str, bool], list[int]] = defaultdict(list)
    scratch = requests.columns["row_scratch"]
    for row in np.flatnonzero(requests.columns["row_born"] >= 0).tolist():
        rows_by_stack[requests.stacks[requests.origins[row]], bool(scratch[row])].append(row)
    return rows_by_stack
