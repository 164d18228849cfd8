"""Recovery: training that survives out of memory with the same gradients, and sizes and
strategies by measurement.

batch_size: the largest batch that fits.
comparing: what each way to save memory brings.
guarding: training steps that survive out of memory.
losses: what a loss function gives, and what it is made of.
planning: blocks to recompute, and a model on several GPUs.
splitting: the parts of a batch, and the proof that they may be taken.
training: a step, run whole or in parts, and undone.

drill: ``inject_oom``, an out-of-memory error to test recovery with.
memory_errors: which exceptions are out of memory.
meters: bytes that are allocated, reserved and allowed.
"""

from __future__ import annotations

from vramlens.recovery.batch_size.balanced_batches import BalancedBatchSampler
from vramlens.recovery.batch_size.batch_loader import AdaptiveBatchLoader
from vramlens.recovery.batch_size.largest_batch import find_batch_size
from vramlens.recovery.comparing.strategy_comparison import strategies
from vramlens.recovery.drill import inject_oom
from vramlens.recovery.guarding.chunked_retry import retry
from vramlens.recovery.guarding.guard import guard
from vramlens.recovery.guarding.hf_trainer import guard_trainer
from vramlens.recovery.planning.placement import place
from vramlens.recovery.planning.recompute_plan import plan

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
