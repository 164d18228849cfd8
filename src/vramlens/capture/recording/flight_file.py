"""NCCL's flight record beside a rank's recording: the last collectives that the rank called.

PyTorch keeps it in every job that uses NCCL. It is asked for only when the process is about to die
of a signal, and its recording is written: the question may wait for a lock that nobody gives back.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from vramlens.capture.process_group import initialized_group
from vramlens.capture.recording.output_path import rank_of_process
from vramlens.capture.warn import harmless
from vramlens.whole_file import whole_file


@harmless("writing the flight record")
def write_flight_record(recording: str, since_us: int) -> None:
    """Writes the file beside a recording, by PyTorch's name for it; unless PyTorch has done so.

    Args:
        since_us: when the process began, in microseconds since the epoch: an older file is another
            job's.
    """
    rank, ask = rank_of_process(), _question()
    if rank is None or ask is None:
        return
    path = os.path.join(os.path.dirname(recording), f"nccl_trace_rank_{rank}")
    if os.path.exists(path) and os.path.getmtime(path) * 1e6 >= since_us:
        return
    content = ask()
    if not pickle.loads(content).get("entries"):  # PyTorch's own bytes; it keeps none here
        return
    with whole_file(path, is_private=True) as file:
        file.write(content)


def _question() -> Callable[[], bytes] | None:
    """What gives the flight record; None where there is no job, or no NCCL."""
    if initialized_group() is None:
        return None
    distributed: Any = sys.modules.get("torch._C._distributed_c10d")
    question: Callable[[], bytes] | None = getattr(distributed, "_dump_nccl_trace", None)
    return question
