"""Recovery: training that survives out of memory with the same gradients, and sizes and strategies by measurement."""

from __future__ import annotations

from vramlens.recovery.balanced_batches import BalancedBatchSampler
from vramlens.recovery.batch_loader import AdaptiveBatchLoader
from vramlens.recovery.batch_size import find_batch_size
from vramlens.recovery.chunking import retry
from vramlens.recovery.comparing import strategies
from vramlens.recovery.drill import inject_oom
from vramlens.recovery.guarding import guard
from vramlens.recovery.placing import place
from vramlens.recovery.planning import plan
from vramlens.recovery.trainer import guard_trainer

__all__ = [
    "AdaptiveBatchLoader",
    "BalancedBatchSampler",
    "find_batch_size",
    "guard",
    "guard_trainer",
    "inject_oom",
    "place",
    "plan",
    "retry",
    "strategies",
]
