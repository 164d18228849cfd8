"""Out-of-memory errors found in a text of any length: who failed, and every figure that was
printed.

A log is read as a stream: memory stays below a few MiB and time grows linearly, whatever the log
holds. The wordings are in ``oom_wordings``.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from vramlens.trace.engine_log import EngineLog
    from vramlens.trace.stacks import Frame

KEPT = 1000  # distinct messages that are kept: the last ones


@dataclass(frozen=True, slots=True)
class OomMessage:
    """One out-of-memory error as it was printed; what it did not print is None.

    Attributes:
        kind: whose request failed: cuda, hip, xpu, npu, … (a caching allocator), device (an
            allocator that does not say which), mps, driver (the CUDA or HIP runtime itself), nccl,
            cublas, cudnn, cufft, cusolver, cusparse, jax, tensorflow, vllm, sglang, ggml
            (llama.cpp), onnx, cupy, host (not the GPU's memory), triton and fork (not memory).
        text: the message, on one line.
        verdict: ``proven``; ``possible`` where the same words have other causes; ``not a problem``
            of memory.
        device, rank: as the message and its line's prefix tell.
        tried_bytes: what was asked of the driver (a whole segment, not the tensor).
        total_bytes, free_bytes: the device's, as the driver gave them after the failure.
        process_bytes: this process on the device, with what lies outside PyTorch's allocator.
        other_processes: (pid, bytes) each. In a container one of them may be this process.
        hidden_processes: how many processes had a size that the driver would not tell (WSL,
            Windows, MIG).
        allowed_bytes: the process's own limit (``set_per_process_memory_fraction``, MPS's high
            watermark).
        allocated_bytes: as printed: with ``private_pool_bytes``, though they are free; see
            ``live_bytes``.
        unallocated_bytes: reserved by PyTorch, in no live block.
        reserved_bytes: printed by 1.4 to 2.0, else the sum of the two above.
        private_pool_bytes: printed as "allocated in private pools"; really the free blocks inside
            them.
        hint_expandable: whether the message advises expandable segments, whatever the settings are.
        while_pinning: the lines before speak of pinned host memory, which fails with the same
            words.
        cut: the message breaks off where PyTorch goes on, so figures may be missing.
        count: how often the same text was seen (for the same rank).
        roundings: (field, the most by which the printed number may be off) for those that are not
            exact.
        frame: the innermost line of the user's in the traceback that ends in this error; of several
            that are chained, in that of the first such error. None where the log shows none.
        library_frame, library_source: below that line, the innermost one of a library's, outside of
            PyTorch's plumbing, and its text; None and "" where the log shows none.
        logged_at: the date and time before it on its line, as printed; "" where there is none.
    """

    kind: str
    text: str
    verdict: str = "proven"
    device: int | None = None
    rank: int | None = None
    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    process_bytes: int | None = None
    other_processes: tuple[tuple[int, int], ...] = ()
    hidden_processes: int = 0
    allowed_bytes: int | None = None
    allocated_bytes: int | None = None
    unallocated_bytes: int | None = None
    reserved_bytes: int | None = None
    private_pool_bytes: int | None = None
    hint_expandable: bool = False
    while_pinning: bool = False
    cut: bool = False
    count: int = 1
    roundings: tuple[tuple[str, int], ...] = ()
    frame: Frame | None = None
    library_frame: Frame | None = None
    library_source: str = ""
    logged_at: str = ""

    def slack(self, *fields: str) -> int:
        """The most bytes by which the sum (or difference) of these printed fields may be off; 0
        is exact.
        """
        return sum(most_off for field, most_off in self.roundings if field in fields)

    @property
    def live_bytes(self) -> int | None:
        """Bytes in live blocks: the printed figure less the free blocks of private pools that it
        counts in.

        The allocator adds ``pool.blocks`` (free blocks) of every graph pool to what it prints as
        allocated; in the recordings the difference equals ``allocated_bytes.all`` to the printed
        digit.
        """
        if self.allocated_bytes is None:
            return None
        return max(0, self.allocated_bytes - (self.private_pool_bytes or 0))


class OomMessages(list[OomMessage]):
    """The messages in order of their last occurrence; ``total`` counts all, also those no longer
    kept; ``engine_log`` is what serving engines and NCCL print of their memory beside them.
    """

    total: int = 0
    engine_log: EngineLog | None = None


def find_oom_messages(stream: BinaryIO | bytes) -> OomMessages:
    """The out-of-memory errors in a text: the last ``KEPT`` distinct ones, equal ones counted in
    one.

    Args:
        stream: opened in binary mode, or the text itself. Bytes that are not UTF-8 do no harm.
    """
    from vramlens.read.engine_log_reader import EngineLogReader
    from vramlens.read.oom.oom_wordings import (
        messages,  # its patterns take as long to compile as all else to import
    )

    latest: OrderedDict[tuple[str, str, int | None], tuple[OomMessage, int]] = OrderedDict()
    messages_found = OomMessages()
    log = EngineLogReader(io.BytesIO(stream) if isinstance(stream, bytes) else stream)
    for message in messages(log):
        messages_found.total += 1
        key = (message.kind, message.text, message.rank)
        before, count = latest.pop(key, (message, 0))
        if message.frame is None:  # a summary below a traceback says the error again
            message = replace(
                message,
                frame=before.frame,
                library_frame=before.library_frame,
                library_source=before.library_source,
            )
        latest[key] = (message, count + 1)
        if len(latest) > KEPT:
            latest.popitem(last=False)
    messages_found.extend(replace(message, count=count) for message, count in latest.values())
    messages_found.engine_log = log.log
    return messages_found
