"""A request that was refused although a free block of its size was there: pytorch/pytorch#189504.

Where the device is full, the allocator waits for blocks that other streams still use, and then asks
only the driver again: it does not look into its own pool, where such a block lies now.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.extent import Extent
from vramlens.analyses.failure.failed_request import Failure
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size


def has_fitting_block(view: Attribution, failure: Failure) -> bool:
    """Whether a free block would have held the request; not with ``max_split_size_mb``, which
    keeps large blocks for large requests.
    """
    limit = view.trace.settings.get("max_split_size")
    is_split_limited = isinstance(limit, int) and limit > 0
    return not is_split_limited and failure.largest_usable_bytes >= failure.request.size_bytes > 0


def _fitting_blocks(failure: Failure) -> NDArray[np.int64]:
    blocks = failure.usable_ranges
    return blocks[blocks[:, 1] >= failure.request.size_bytes]


def allocator_retry(view: Attribution, failure: Failure) -> list[Finding]:
    """The finding that the same request would succeed now."""
    if not has_fitting_block(view, failure):
        return []
    block_bytes, request_bytes = failure.largest_usable_bytes, failure.request.size_bytes
    return [
        Finding(
            id="allocator_retry",
            verdict=Verdict.LIKELY,
            title=f"a free block of {format_size(block_bytes)} was large enough for the "
            f"{format_size(request_bytes)}, but"
            " PyTorch's allocator did not look again (pytorch/pytorch#189504)",
            bytes=request_bytes,
            place=view.place_of_stack(failure.request.stack),
            evidence=(
                "blocks that another stream was still using became free while the request "
                "waited for them",
            ),
            fix="catch torch.OutOfMemoryError around this line and run it again: the same request"
            " then finds the block. Or call torch.cuda.synchronize() before it",
            extent=Extent(failure.request.event, holes=_fitting_blocks(failure)),
        )
    ]
