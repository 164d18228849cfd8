"""What PyTorch of this process recorded, as a Trace."""

from __future__ import annotations

import io
import pickle
from typing import Any

from vramlens.ground.event_history import leave_out_before
from vramlens.read.snapshot import read_snapshot
from vramlens.trace import Trace


def read_history(snapshot: dict[str, Any], source: str, since_us: int = 0) -> Trace:
    """The history since a moment (microseconds since the epoch), read in memory.

    Args:
        snapshot: ``torch.cuda.memory._snapshot()``; earlier events are taken out of it.
        source: what the trace is of, in words.

    Raises:
        VramlensError: it holds nothing that can be read.
    """
    if since_us:
        leave_out_before(snapshot, since_us)
    pickled = pickle.dumps(snapshot, 4)
    del snapshot  # a large one is let go before it is read
    return read_snapshot(io.BytesIO(pickled), source)
