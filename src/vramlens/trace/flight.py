"""A flight record: the collectives that one rank called last, as PyTorch's NCCL backend keeps
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vramlens.trace.stacks import Frame, user_frame_of


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective or point-to-point call of one rank.

    Attributes:
        group: the process group's name; "0" is the default group.
        description: what the program called the group; empty if nothing.
        seq: the number of the collective in its group; for point-to-point, of the call between the
            pair.
        name: what was called, as NCCL names it: ``all_reduce``, ``all_gather``, ``send 0->1``.
        is_p2p: whether it is point-to-point.
        state: scheduled, started or completed.
        input_sizes, output_sizes: the shapes of its tensors.
        dtypes: of its input.
        created_ns, started_ns, completed_ns: nanoseconds since the epoch, by its machine's clock;
            None where unnoticed.
        frames: where it was called, innermost first; empty for those that the backward pass calls.
        timeout_ms: after which the watchdog gives up; None where unknown.
    """

    group: str
    description: str
    seq: int
    name: str
    is_p2p: bool
    state: str
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    created_ns: int | None
    started_ns: int | None
    completed_ns: int | None
    frames: tuple[Frame, ...]
    timeout_ms: int | None = None

    @property
    def user_frame(self) -> Frame | None:
        """The user line that called it: the innermost frame outside of torch, installed packages
        and Python itself.
        """
        return user_frame_of(self.frames)


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A process group as a flight record describes it; ``ranks`` are global ones, empty where
    they are not told.
    """

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class FlightRecord:
    """What one rank's NCCL backend did last.

    Attributes:
        source: the file's name as it was given.
        version: of the record's form.
        library_version: of NCCL; None where it is not told.
        groups: by name.
        last_completed: by group, the number of the last collective that was noticed to be complete.
        collectives: in the order in which they were called.
    """

    source: str
    version: str
    library_version: str | None
    groups: Mapping[str, FlightGroup]
    last_completed: Mapping[str, int]
    collectives: tuple[Collective, ...] = field(repr=False)
