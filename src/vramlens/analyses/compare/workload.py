"""Workload: whether two runs did the same work, so that a higher peak is the program's doing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramlens.analyses.compare.compared_run import HISTORY_SHARE, Run
from vramlens.analyses.compare.setting_difference import SettingDifference
from vramlens.units import counted


def workload_words(before: Run, after: Run, others: Sequence[SettingDifference]) -> tuple[str, ...]:
    """How the work of the runs differs, one phrase each; none where it is the same.

    Args:
        others: what else is different between the runs.
    """
    words = (difference.words for difference in others if difference.is_of_work)
    return (*words, *_more_steps(before, after))


def _more_steps(before: Run, after: Run) -> Iterator[str]:
    """A phrase where only the steps that one run has more explain the peak."""
    old, new = before.explanation.steps.peak_bytes, after.explanation.steps.peak_bytes
    common = min(len(old), len(new))
    if not common or len(old) == len(new):
        return
    shorter = before if len(old) < len(new) else after
    if shorter.failure is not None:  # the failure ended it: that is not other work
        return
    # The last step of a recording may be cut: what it did not reach says nothing.
    both = common - 1
    if both < 1:
        return
    peaks = max(old[:both]), max(new[:both])
    is_same_so_far = abs(peaks[1] - peaks[0]) <= HISTORY_SHARE * max(peaks)
    is_same_in_all = abs(max(new) - max(old)) <= HISTORY_SHARE * max(max(old), max(new))
    if is_same_so_far and not is_same_in_all:
        yield (
            f"{counted(len(old), 'step')} before and {len(new):,} after; the first "
            f"{counted(both, 'step')} peak alike"
        )
