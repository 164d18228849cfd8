"""Ray Train: memory beside what ``ray.train.report`` reports, in each worker; recordings named
by rank.
"""

from __future__ import annotations

import os
from typing import Any

from vramlens.capture.warn import harmless
from vramlens.integrations.shared.extras import need
from vramlens.integrations.shared.kept_artifacts import handles_of_process
from vramlens.integrations.shared.loop_monitor import LoopMonitor
from vramlens.monitor import Summary
from vramlens.program import install, snapshot


class RayMemory:
    """Follows a training function of Ray Train's, in the worker that calls it:

        def train(config):
            memory = RayMemory("/shared/runs/r1")
            for epoch in range(config["epochs"]):
                for batch in loader:
                    ...
                    memory.step()
                memory.report({"loss": loss})       # as ray.train.report
            memory.finish()

    Attributes:
        monitor: the monitor.
        rank: this worker's rank in the job.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Begins to watch.

        Args:
            folder: where a worker that runs out of memory leaves its recording, as
                ``rank00003.vram``: on storage that outlives the worker. By default nothing is
                recorded.
            options: leaks and on_oom, as ``LoopMonitor`` says; and for ``vramlens.Monitor``:
                interval, alerts, on_alert, command, webhook, quiet.

        Raises:
            UsageError: Ray Train is not installed.
            RuntimeError: this is not a training function of Ray Train's.
        """
        self._train = need("ray.train", "ray", "Ray Train")
        self.rank = int(self._train.get_context().get_world_rank())
        if folder is not None:
            install(folder)
        self._loop = LoopMonitor(0, **options)
        self.monitor = self._loop.monitor
        self._loop.begin()

    def step(self) -> None:
        """Ends a step."""
        self._loop.stepped(0)

    def report(self, metrics: dict[str, Any], checkpoint: Any = None, **options: Any) -> None:
        """Calls ``ray.train.report`` with this worker's scalars beside the metrics, whose own names
        go first.

        As Ray demands, all workers report equally often; of their metrics it keeps rank 0's.
        """
        self._train.report({**(self._scalars() or {}), **metrics}, checkpoint=checkpoint, **options)

    @harmless("reporting memory")
    def _scalars(self) -> dict[str, float]:
        return self._loop.scalars()

    def keep(self, folder: str | os.PathLike[str]) -> str | None:
        """Writes a recording of now into a folder, and gives its path; None, and one line why,
        where there is no GPU.

        In a checkpoint's folder, before it is reported, Ray keeps it with the checkpoint: one file
        a rank.
        """
        return snapshot(os.path.join(folder, f"rank{self.rank:05d}.vram"))

    def finish(self) -> Summary:
        """Ends, and gives the summary."""
        return self._loop.end(handles_of_process)

    def failed(self, error: BaseException) -> None:
        """Hands on the verdict and the recording of an out-of-memory error that ends the training
        function.
        """
        self._loop.end(handles_of_process, error)
