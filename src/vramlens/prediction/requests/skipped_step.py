"""The requests of a program whose first step a gradient scaler skips.

With float16 the scale is so high at first (65,536) that gradients may be infinite: then the step is
skipped, and the optimizer makes its states in the next one (torch/amp/grad_scaler.py). By then blocks
are cached that the states take, so that less is reserved: ``u03_roberta_mlm`` (benchmarks/prediction)
reserved 8.7 instead of 9.5 GiB.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramlens.prediction.requests.request_log import ALLOCATE, FREE, RequestLog

_SCALER = "torch/amp/grad_scaler.py"


def with_skipped_step(log: RequestLog) -> Iterator[RequestLog]:
    """The requests with what the first scaled step keeps made in the second; nothing where no scaler
    steps twice.
    """
    steps = _scaled_steps(log)
    if len(steps) < 2:
        return
    first, second = steps[:2]
    freed = {row: place for place, (kind, row) in enumerate(log.events) if kind == FREE}
    next_place = log.events.index((ALLOCATE, second.start))
    lasting = [row for row in first if freed.get(row, len(log.events)) > next_place]
    if lasting:
        yield log.with_later_requests(lasting, next_place)


def _scaled_steps(log: RequestLog) -> list[range]:
    """The rows of each call of a scaler's ``step``, as far as it requests anything."""
    in_step = [
        any(frame["name"] == "step" and _is_of_scaler(frame["filename"]) for frame in stack)
        for stack in log.stack_table.stacks
    ]
    rows = [row for row, stack in enumerate(log.stacks) if in_step[stack]]
    begins = [row for row in rows if row == 0 or not in_step[log.stacks[row - 1]]]
    ends = [
        row + 1 for row in rows if row + 1 == len(log.stacks) or not in_step[log.stacks[row + 1]]
    ]
    return [range(begin, end) for begin, end in zip(begins, ends, strict=True)]


def _is_of_scaler(file: str) -> bool:
    return file.replace("\\", "/").endswith(_SCALER)
