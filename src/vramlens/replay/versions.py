"""What differs between PyTorch's versions, as data; and which of them a recording was made by.

A version is never guessed silently: it is the recording's word, or the profile under which the
    recording proves exact.
Sources: docs/replay.md, with the pull requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramlens.trace import DeviceTrace, Trace

ADDRESS, OBJECT_COUNTER, SEGMENT_COUNTER = range(3)
"""The order of the free blocks of one size (native/replay_settings.h, TieOrder)."""


@dataclass(frozen=True, slots=True)
class Version:
    """The rules of some versions of PyTorch.

    Attributes:
        name: the versions, for a person.
        since: the first release with them, as (major, minor).
        tie_order: which of several equal free blocks is taken.
        scope_suppresses_release: whether an open pool scope keeps a failing request from releasing
            all cached memory.
        rounds_fraction: whether a memory fraction of 1.0 is no limit, and others are rounded, not
            cut.
        overwrites_last_interval: whether ``>`` in roundup_power2_divisions also changes the last
            interval named.
        large_segment_option: whether large_segment_size_mb exists.
        proven: whether recordings decided it; else it is read from the source alone.
    """

    name: str
    since: tuple[int, int]
    tie_order: int
    scope_suppresses_release: bool
    rounds_fraction: bool
    overwrites_last_interval: bool
    large_segment_option: bool
    proven: bool = False


# Newest first. 2.12 may order by either counter (pull requests 178362 and 183591 lie around its
# branch cut).
VERSIONS = (
    Version("2.13 and newer", (2, 13), SEGMENT_COUNTER, False, True, False, True),
    Version("2.12", (2, 12), OBJECT_COUNTER, True, True, False, True),
    Version("2.11", (2, 11), ADDRESS, True, True, False, True, proven=True),
    Version("2.10", (2, 10), ADDRESS, True, True, False, False),
    Version("2.9 and older", (0, 0), ADDRESS, True, False, True, False),
)
_RECORDED = VERSIONS[2]


def version_named(text: str) -> Version:
    """The rules of a version as ``torch.__version__`` gives it."""
    found = re.match(r"(\d+)\.(\d+)", text)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    return next(version for version in VERSIONS if number >= version.since)


def candidates(trace: Trace, device: DeviceTrace) -> tuple[Version, ...]:
    """The versions that a recording can be of, the likeliest first; one where it says so itself."""
    if trace.torch_version:
        return (version_named(trace.torch_version),)
    if device.events.has_pools:  # events name their pool since pull request 177717 (2.12)
        return (*VERSIONS[:2], _RECORDED)
    return (_RECORDED, VERSIONS[4])
