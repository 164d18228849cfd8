"""The place of a process in its job: machine, job and rank, as alerts and figures carry them."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, replace

from vramlens.capture.recording.output_path import rank_of_process
from vramlens.ground.launcher import job_name


@dataclass(frozen=True, slots=True)
class PlaceInJob:
    """Where something was seen; None is what nobody told.

    Attributes:
        host: the machine's name; in Kubernetes the node's, where NODE_NAME holds it.
        job: the launcher's name for the job: ``slurm:1234``.
        rank: the process's rank.
    """

    host: str | None = None
    job: str | None = None
    rank: int | None = None

    @property
    def words(self) -> str:
        """Who speaks, for a reader elsewhere: ``node7, job slurm:1234, rank 3``."""
        parts = [
            self.host,
            None if self.job is None else f"job {self.job}",
            None if self.rank is None else f"rank {self.rank}",
        ]
        return ", ".join(part for part in parts if part)

    def to_dict(self) -> dict[str, str | int | None]:
        """All of it, ready for JSON."""
        return asdict(self)


NOWHERE = PlaceInJob()
"""Where nothing is known of."""


def place_of_process() -> PlaceInJob:
    """The place of this process."""
    return replace(place_of_machine(), job=job_name(), rank=rank_of_process())


def place_of_machine() -> PlaceInJob:
    """The machine alone: who watches it is of no job."""
    return PlaceInJob(host=os.environ.get("NODE_NAME") or platform.node() or None)
