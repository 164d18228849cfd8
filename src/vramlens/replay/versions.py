"""What differs between PyTorch's versions, as data; and which of them a recording was made by.

A version is never guessed silently: it is the recording's word, or the profile under which the
    recording proves exact.
Sources: docs/replay.md, with the pull requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens._layout import TieOrder

if TYPE_CHECKING:
    from vramlens.trace import DeviceTrace, Trace


@dataclass(frozen=True, slots=True)
class Version:
    """The rules of some versions of PyTorch.

    Attributes:
        name: the versions, for a person.
        since: the first release with them, as (major, minor).
        tie_order: which of several equal free blocks is taken.
        scope_suppresses_release: whether an open pool scope keeps a failing request from releasing
            all cached memory.
        rounds_fraction: whether a memory fraction of 1.0 is not a limit, and others are rounded, not
            cut.
        overwrites_last_interval: whether ``>`` in roundup_power2_divisions also changes the last
            interval named.
        large_segment_option: whether large_segment_size_mb exists.
        proven: whether recordings decided it; else it is read from the source alone.
    """

    name: str
    since: tuple[int, int]
    tie_order: TieOrder
    scope_suppresses_release: bool
    rounds_fraction: bool
    overwrites_last_interval: bool
    large_segment_option: bool
    proven: bool = False


# Newest first. 2.12 may order by either counter (pull requests 178362 and 183591 lie around its
# branch cut).
VERSIONS = (
    Version(
        name="2.13 and newer",
        since=(2, 13),
        tie_order=TieOrder.SEGMENT_COUNTER,
        scope_suppresses_release=False,
        rounds_fraction=True,
        overwrites_last_interval=False,
        large_segment_option=True,
    ),
    Version(
        name="2.12",
        since=(2, 12),
        tie_order=TieOrder.OBJECT_COUNTER,
        scope_suppresses_release=True,
        rounds_fraction=True,
        overwrites_last_interval=False,
        large_segment_option=True,
    ),
    Version(
        name="2.11",
        since=(2, 11),
        tie_order=TieOrder.ADDRESS,
        scope_suppresses_release=True,
        rounds_fraction=True,
        overwrites_last_interval=False,
        large_segment_option=True,
        proven=True,
    ),
    Version(
        name="2.10",
        since=(2, 10),
        tie_order=TieOrder.ADDRESS,
        scope_suppresses_release=True,
        rounds_fraction=True,
        overwrites_last_interval=False,
        large_segment_option=False,
    ),
    Version(
        name="2.9 and older",
        since=(0, 0),
        tie_order=TieOrder.ADDRESS,
        scope_suppresses_release=True,
        rounds_fraction=False,
        overwrites_last_interval=True,
        large_segment_option=False,
    ),
)
_RECORDED = VERSIONS[2]


def version_named(text: str) -> Version:
    """The rules of a version as ``torch.__version__`` gives it."""
    match = re.match(r"(\d+)\.(\d+)", text)
    number = (int(match[1]), int(match[2])) if match else (0, 0)
    return next(version for version in VERSIONS if number >= version.since)


def candidates(trace: Trace, device: DeviceTrace) -> tuple[Version, ...]:
    """The versions that a recording can be of, the likeliest first; one where it says so itself."""
    if trace.torch_version:
        return (version_named(trace.torch_version),)
    if device.events.has_pools:  # events name their pool since pull request 177717 (2.12)
        return (*VERSIONS[:2], _RECORDED)
    return (_RECORDED, VERSIONS[4])
