"""The options of a guard: what it may do, and how far it goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vramlens.errors import UsageError
from vramlens.recovery.losses.part_losses import CountFunction
from vramlens.recovery.meters import Meter
from vramlens.recovery.splitting.batch_parts import SplitFunction

ORDER = ("free_cached", "split", "checkpoint", "offload")
"""Free what is cached where fragmentation is the cause, split, recompute the largest modules,
offload; then stop.
"""


@dataclass(frozen=True, kw_only=True)
class GuardOptions:
    """What ``vramlens.guard`` takes beside the model, the optimizer and the scaler.

    Attributes:
        threshold: a batch is split beforehand when its predicted peak passes this share of what the
            process can have.
        count_fn: batch -> over how many items its mean loss is taken, where these are not samples.
        split: (batch, start, stop) -> a smaller batch, where a batch is something else than tensors, dicts,
            lists and tuples.
        strict: refuse a split that changes gradients (BatchNorm, contrastive losses); False: split,
            and say so.
        verify: check before the first split that it changes nothing.
        order: the remedies, first the one to try first.
        clip: the largest norm of all gradients together, or a function to call before the
            optimizer's step. With a scaler gradients are unscaled before.
        on_change: called with the old and the new samples in a part (None: whole batches) and the
            reason.
        micro_batch: the most samples in a part from the start; by default VRAMLENS_MICRO_BATCH,
            else whole batches.
        grow_after: clean steps before larger parts are tried.
        step_backup: copy parameters and state to the host before each step: one that fails half way
            can be undone.
        timeout_s: how long a rank waits for the others.
        meter: counts bytes; by default the device's own counters.

    Raises:
        UsageError: one of them is out of range.
    """

    threshold: float = 0.9
    count_fn: CountFunction | None = None
    split: SplitFunction | None = None
    strict: bool = True
    verify: bool = True
    order: Sequence[str] = ORDER
    clip: float | Callable[[], Any] | None = None
    on_change: Callable[[int | None, int | None, str], Any] | None = None
    micro_batch: int | None = None
    grow_after: int = 50
    step_backup: bool = False
    timeout_s: float = 600.0
    meter: Meter | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.order if name not in ORDER]
        size = self.micro_batch
        if unknown or not 0 < self.threshold <= 1 or (size is not None and size < 1):
            raise UsageError(
                f"guard: order={list(self.order)}, threshold={self.threshold:g},"
                f" micro_batch={size}: order may contain {', '.join(ORDER)}; threshold must be "
                "between 0 and 1; micro_batch must be 1 or more"
            )
