"""What training does with a rank's parameters: in groups, for a summary has no room for their names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.names import number_range
from vramlens.ranks.rank_summary import ParameterGroup
from vramlens.trace import AT_THE_END, ParameterUse, TensorKind, TensorNames

DIGEST_MODULUS = 1 << 48
_MOST_GROUPS = 64
_LONGEST_NAME = 200
_MOST_NAMES = 1 << 12
_STEPS_BEFORE_NAMES = 2
"""The recorder names tensors after so many (capture/recording/recorder.py), on all ranks alike: later,
layers may be thawed, and ranks end at different steps.
"""
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_RANGE_OR_NUMBER = re.compile(r"\{[^{}]*\}|[0-9]{1,9}", re.ASCII)
_GATHERED = "(all-gathered)"
"""Ends the name of a whole that FSDP or DeepSpeed made of shards (capture/names/tensor_names.py)."""


def parameter_groups(
    names: TensorNames | None, device: int, steps: int
) -> tuple[ParameterGroup, ...]:
    """The groups of a device's parameters, the largest first; () where nothing says their use.

    Args:
        names: of the recording.
        device: its index.
        steps: how many steps are recorded.
    """
    if names is None:
        return ()
    rows_by_group: dict[tuple[tuple[str, ...], int], list[int]] = defaultdict(list)
    for row in _named_first(names, device, steps).tolist():
        if not names.name[row].endswith(_GATHERED):
            between_numbers = tuple(_NUMBER.split(_module(names.name[row])))
            rows_by_group[between_numbers, int(names.use[row])].append(row)
    groups = [_group(names, use, rows) for (_, use), rows in rows_by_group.items()]
    groups.sort(key=attrgetter("bytes"), reverse=True)
    return tuple(groups[:_MOST_GROUPS])


def modules_of(group: ParameterGroup) -> str:
    """The modules of a group as other ranks have them: without their numbers, and the name of the outermost.
    That may be another on each rank, and says which of them a rank trains.
    """
    return _without_numbers(group.modules)


@lru_cache(_MOST_NAMES)
def _without_numbers(modules: str) -> str:
    return _without_root(_RANGE_OR_NUMBER.sub("{}", modules))


def _named_first(names: TensorNames, device: int, steps: int) -> NDArray[np.int64]:
    """The rows of the parameters whose use is known, as they were named after two steps."""
    is_parameter = (names.device == device) & (names.kind == TensorKind.PARAMETER)
    is_used = names.use != ParameterUse.UNKNOWN
    rows = np.flatnonzero(is_parameter & is_used).astype(np.int64)
    moments = names.time_us[rows]
    early = moments[moments != AT_THE_END]
    if len(early):
        return np.asarray(rows[moments == early.min()])
    return rows if steps <= _STEPS_BEFORE_NAMES else rows[:0]


def _group(names: TensorNames, use: int, rows: list[int]) -> ParameterGroup:
    return ParameterGroup(
        modules=_with_ranges([_module(names.name[row]) for row in rows])[:_LONGEST_NAME],
        use=ParameterUse(use).name.lower(),
        count=len(rows),
        bytes=int(names.size_bytes[rows].sum()),
        digest=sum(_digest(names, row) for row in rows) % DIGEST_MODULUS,
        dtype=_dtype(names, rows),
        parts=_parts(names, rows),
    )


def _dtype(names: TensorNames, rows: list[int]) -> str:
    types = {names.dtype[row] for row in rows} if names.dtype else set()
    return types.pop() if len(types) == 1 else ""


def _parts(names: TensorNames, rows: list[int]) -> int:
    """Of how many ranks each has a part, as most of their bytes do."""
    if not names.parts:
        return 0
    bytes_of: dict[int, int] = defaultdict(int)
    for row in rows:
        bytes_of[names.parts[row]] += int(names.size_bytes[row])
    return max(bytes_of, key=bytes_of.__getitem__)


def _digest(names: TensorNames, row: int) -> int:
    text = f"{_without_root(names.name[row])} {int(names.size_bytes[row])}"
    hashed = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(hashed, "little")


def _module(name: str) -> str:
    """The module that has a parameter; of a name without one, all of it."""
    return name.rpartition(".")[0] or name


def _without_root(name: str) -> str:
    return name.partition(".")[2]


def _with_ranges(modules: Iterable[str]) -> str:
    """Paths that differ in numbers only as one: each number's place has the range of its numbers."""
    paths = list(modules)
    parts = _NUMBER.split(paths[0])
    columns = zip(*(map(int, _NUMBER.findall(path)) for path in paths), strict=True)
    ranges = [number_range(set(column)) for column in columns]
    return "".join(part + place for part, place in zip(parts, [*ranges, ""], strict=True))
