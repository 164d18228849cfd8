"""Programs that look at themselves: traces, graphs for a log, and ranges for a profiler."""

from __future__ import annotations

from typing import Any

from vramlens.prediction.card.late_changes import after_import


def put_tracing(torch: Any) -> None:
    """Makes what is traced run as it is, and marks for a profiler do nothing; for good."""

    def trace(function: Any, *args: Any, **options: Any) -> Any:
        return function

    torch.jit.trace = trace
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *args: 0)
    after_import("torch.utils.tensorboard.writer", _leave_graphs_out)


def _leave_graphs_out(writer: Any) -> None:
    """A model's graph is drawn from a trace, in which sizes are tensors."""
    writer.SummaryWriter.add_graph = lambda *args, **options: None
