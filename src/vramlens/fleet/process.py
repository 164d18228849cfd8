"""The process of a rank: which one wrote a recording, when, and for which job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramlens.ranks import RankSummary
from vramlens.trace.meta import Meta

_LONGEST_COMMAND = 500


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a job as its recording, or the summary beside it, tells; None where unknown.

    Attributes:
        rank, world_size: of the job.
        host, pid: which process.
        started_us, written_us: when recording began and when it was written.
        trigger: why it was written.
        torch: the version of PyTorch.
        job, attempt, launcher_pid: the launcher's name for the job, which start of it this is, and
            the launcher's process.
        command: the program and its arguments.
    """

    rank: int | None
    world_size: int | None
    host: str | None
    pid: int | None
    started_us: int | None
    written_us: int | None
    trigger: str | None
    torch: str | None = None
    job: str | None = None
    attempt: int | None = None
    launcher_pid: int | None = None
    command: str = ""

    @property
    def identity(self) -> tuple[str | None, int | None, int | None]:
        """What no two processes have in common: machine, number and start."""
        return self.host, self.pid, self.started_us

    @property
    def launch_key(self) -> str | None:
        """The start of the whole job that it belongs to; None where nothing tells."""
        if self.job is not None:
            return self.job
        if self.launcher_pid is None or (self.world_size or 1) < 2:
            return None
        return f"launcher {self.host}:{self.launcher_pid}"


def process_of_meta(meta: Meta) -> Process:
    """The process that wrote a recording."""
    return Process(
        rank=meta.rank,
        world_size=meta.world_size,
        host=meta.host,
        pid=meta.pid,
        started_us=meta.started_us,
        written_us=meta.written_us,
        trigger=meta.trigger,
        torch=meta.torch,
        job=meta.job,
        attempt=meta.attempt,
        launcher_pid=meta.launcher_pid,
        command=" ".join(meta.command)[:_LONGEST_COMMAND],
    )


def process_of_summary(summary: RankSummary) -> Process:
    """The process that a summary tells of."""
    trigger, written_us = summary.ended or (None, None)
    launch = summary.launch
    return Process(
        rank=summary.rank,
        world_size=summary.world_size,
        host=summary.host,
        pid=summary.pid,
        started_us=summary.started_us,
        written_us=written_us,
        trigger=trigger,
        job=None if launch is None else launch.job,
        attempt=None if launch is None else launch.attempt,
        launcher_pid=None if launch is None else launch.launcher_pid,
        command="" if launch is None else launch.command,
    )


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The identity of a job: what tells it from any other.

    Attributes:
        processes: by rank, (host, pid, start).
        job: the launcher's name for it.
        command, host, world_size, started_us: of its lowest rank, and its first start.
        source: the folder of its files.
    """

    processes: dict[int, tuple[str | None, int | None, int | None]]
    job: str | None
    command: str
    host: str | None
    world_size: int | None
    started_us: int | None
    source: str


def identity_of(processes: Sequence[Process], source: str) -> JobIdentity:
    """The identity of a job from the processes of its ranks."""
    ordered = sorted(processes, key=lambda process: process.rank or 0)
    starts = [process.started_us for process in ordered if process.started_us]
    first = ordered[0] if ordered else None
    return JobIdentity(
        processes={
            process.rank: process.identity
            for process in ordered
            if process.rank is not None and process.started_us is not None
        },
        job=None if first is None else first.launch_key,
        command="" if first is None else first.command,
        host=None if first is None else first.host,
        world_size=max((process.world_size or 0 for process in ordered), default=0) or None,
        started_us=min(starts, default=None),
        source=source,
    )
