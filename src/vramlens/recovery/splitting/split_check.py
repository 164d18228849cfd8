"""The check on first use: whether the gradient of a split batch equals the gradient of the whole
one.
"""

from __future__ import annotations

from dataclasses import replace

from vramlens.recovery.memory_errors import OutOfMemoryCaught
from vramlens.recovery.splitting.batch_parts import BatchSamples
from vramlens.recovery.splitting.gradient_runs import CheckedTraining, forget
from vramlens.recovery.splitting.split_comparison import SplitComparison
from vramlens.recovery.splitting.split_measurements import SplitCheck
from vramlens.recovery.training.rollback import Buffers, Gradients, RandomState

__all__ = ["SplitCheck", "check_split"]

_MOST_SAMPLES = 16
_CHOICES = 4  # of samples, while those that were chosen tell nothing
_NO_ROOM = (
    "two samples do not fit together, so nothing was compared: call guard.verify(batch, "
    "loss_fn) with smaller samples before training, or use guard(verify=False)"
)


def check_split(training: CheckedTraining, samples: BatchSamples, most: int) -> SplitCheck:
    """Compares the gradient of a few samples whole with that of the same in two unequal parts,
    dropout off in both.

    The samples lie evenly in the batch: neighbours may be alike. Where the gradients are equal, the
    loss of the whole batch is compared with those of its parts as well, without gradients, where
    there is room: a mean over something that these few samples have in like number shows there.
    Gradients, buffers and random numbers are left as they were. Half as many samples are taken as
    long as there is no room for them.

    Args:
        most: at most so many samples.
    """
    parameters = [parameter for _, parameter in training.parameters]
    gradients, random = Gradients(parameters), RandomState(training.devices)
    modules = training.values.modules if training.values is not None else []
    buffers = Buffers(training.model, *modules, all_of_them=True)
    buffers.save()
    if training.values is not None:
        training.values.save()
    count = min(samples.count, most, _MOST_SAMPLES)
    try:
        while count >= 2:
            with OutOfMemoryCaught():
                return _first_decided(training, samples, count, buffers, random)
            forget(parameters)
            training.clean()
            count //= 2
    finally:
        forget(parameters)
        gradients.restore()
        buffers.restore()
        random.restore()
        if training.values is not None:
            training.values.restore()
    return SplitCheck(False, reason=_NO_ROOM, undecided=True)


def _first_decided(
    training: CheckedTraining,
    samples: BatchSamples,
    count: int,
    buffers: Buffers,
    random: RandomState,
) -> SplitCheck:
    """The check with some samples, else with others: those of which all labels are ignored tell
    nothing.
    """
    comparison = SplitComparison(training, samples, buffers, random)
    check = comparison.compare(count, choice=0)
    if check.undecided and training.scale != 1.0:  # as a scaler's first steps, which overflow
        unscaled = replace(training, scale=1.0)
        comparison = SplitComparison(unscaled, samples, buffers, random)
        check = comparison.compare(count, choice=0)
    has_choices = samples.free and count < samples.count
    for choice in range(1, _CHOICES if has_choices else 1):
        if not check.undecided:
            break
        check = comparison.compare(count, choice)
    return check
