"""What a failed step would have needed to finish, and what each setting would have made of it.

The recorded requests, then those that an earlier step made after the point of failure, served by
the replayed
allocator: without a limit for the need, under the run's own limit for the settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens._layout import AddressOrder
from vramlens.analyses.failure.first_step.first_step_need import unseen_optimizer_bytes
from vramlens.analyses.failure.likeness.kept_longer import KeptLonger, kept_longer
from vramlens.analyses.failure.need import EARLIER_STEP, Need, SettingVerdict
from vramlens.analyses.failure.step_evidence import are_steps, may_repeat_first_phase
from vramlens.analyses.failure.step_scaling import Scaling, scaling_of
from vramlens.analyses.failure.step_template import Template, template_of
from vramlens.analyses.leaks.certainty import PATTERN
from vramlens.ground.allocator_sizes import PAGE, in_pages
from vramlens.ground.verdict import Confidence
from vramlens.replay.need.continued_step import Continuation, Continued
from vramlens.replay.settings import Settings

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.replay.proof import Proven
    from vramlens.trace import OutOfMemory

ORDERS = (AddressOrder.DRIVER, AddressOrder.ASCENDING, AddressOrder.DESCENDING)
"""Of new segments, in which a need is looked at."""
_MORE_STEPS = 2
"""Beyond the failed one: what fits once, but not again, does not carry the run."""
_MOST_EVENTS_TO_REPEAT = 50_000
_MARGINS = {"same": 0.004, "learned": 0.01, "guessed": 0.05}
"""Of the limit: how far outcomes may be off where the step is as large as an earlier one, or is
larger.
"""
_SPREADS = {"same": 0.02, "learned": 0.08, "guessed": 0.15}
"""Of the peak, as its range."""
_FARTHEST = 16
"""Times an earlier step: how all of a larger one grows cannot be guessed from it."""
_MANY_STEPS, _LIKE_EARLIER = 8, 1.1
_SEARCHES = 10


@dataclass(frozen=True, eq=False)
class Projection:
    """A failed step, continued to its end by an earlier one.

    Attributes:
        template, scaling: the earlier step, and how much larger the failed one is.
        continued: its requests.
        unseen_bytes: what comes after it that no earlier step shows: an optimizer's first state,
            what this step keeps for longer.
        kept_longer: what this step keeps that the earlier one had given back; None where it is
            nothing that matters.
        of_steps: whether what repeats is known to be all of a program's steps, not a part of one.
        earlier_bytes: the most that was alive at once in an earlier step.
        refused_bytes: the largest request that failed and that the program did without, as cuDNN
            does without a workspace: where there is room, it is served.
        step: the earlier step's number; None where it is a part of one.
    """

    template: Template
    scaling: Scaling
    continued: Continued
    unseen_bytes: int
    kept_longer: KeptLonger | None
    of_steps: bool
    earlier_bytes: int
    refused_bytes: int
    step: int | None = None

    @property
    def margin(self) -> float:
        """The share of a limit by which an outcome has to be clear."""
        return _MARGINS[self._basis]

    @property
    def spread(self) -> float:
        """The share of the peak by which it may be off."""
        return _SPREADS[self._basis]

    @property
    def _basis(self) -> str:
        """What the step's sizes are taken from: they are the ``same``, or their growth is
        ``learned`` from earlier steps, or ``guessed``.
        """
        if self.scaling.is_same:
            return "same"
        return "learned" if self.scaling.learned else "guessed"

    @property
    def tells_what_follows(self) -> bool:
        """Whether steps after the failed one are no larger: all are alike, or it is the largest
        of many, and not by far.
        """
        if not self.of_steps or self.continued.renewed_bytes:
            return False
        if self.scaling.is_same:
            return True
        # Where the largest step so far is far above the others, one still larger may come.
        is_like_earlier = self.continued.floor_bytes <= _LIKE_EARLIER * self.earlier_bytes
        return self.scaling.learned and is_like_earlier and len(self.template.spans) > _MANY_STEPS


def projection_of(view: Attribution, proven: Proven, request: OutOfMemory) -> Projection | None:
    """The failed step continued; None where no earlier step is like it."""
    template = template_of(view, request)
    is_of_steps = are_steps(view)
    if template is None:
        return None
    if template.whole_steps and view.steps.source == PATTERN and not is_of_steps:
        return None
    scaling = scaling_of(view, template, request)
    if scaling.scale > _FARTHEST:
        return None
    longer = kept_longer(view, template)
    if longer is not None:
        scaling = replace(scaling, is_same=False, learned=False)
    span = template.span
    repeat = (
        scaling.is_same and template.whole_steps and span.end - span.start <= _MOST_EVENTS_TO_REPEAT
    )
    continued = Continuation(view, proven, template, scaling).finished(_MORE_STEPS if repeat else 0)
    unseen = 0 if template.whole_steps else unseen_optimizer_bytes(view, request.event)
    unseen += 0 if longer is None else longer.bytes_to_come
    # A pattern without an optimizer may be a loop before the work that needs most.
    of_steps = template.whole_steps and is_of_steps and view.steps.source != PATTERN
    of_steps &= not may_repeat_first_phase(view, request.event)
    return Projection(
        template=template,
        scaling=scaling,
        continued=continued,
        unseen_bytes=unseen,
        kept_longer=longer,
        of_steps=of_steps,
        earlier_bytes=int(view.device.requested_curve[: template.failed.start].max(initial=0)),
        refused_bytes=_most_refused(view),
        step=_number_of(view, template) if of_steps else None,
    )


def _number_of(view: Attribution, template: Template) -> int:
    """Which of the recorded steps the earlier one is."""
    return int(view.steps.of(np.array([template.span.start]))[0])


def _most_refused(view: Attribution) -> int:
    """The largest request that failed before the last that did."""
    return max((failed.size_bytes for failed in view.device.out_of_memory[:-1]), default=0)


def need_of(proven: Proven, projection: Projection, *, searching: bool = True) -> Need:
    """The need of a failed step that an earlier one completes.

    Args:
        searching: whether there is time to search for the least limit.
    """
    continued, scaling, unseen_bytes = (
        projection.continued,
        projection.scaling,
        projection.unseen_bytes,
    )
    native = proven.native()
    peaks_by_order = [_peaks(continued, native, order) for order in ORDERS]
    peaks = [in_step for in_step, _ in peaks_by_order]
    peak = peaks[0]
    least_limit = _least_limit(proven, continued, peak) if searching else None
    low = min(min(peaks), least_limit or peak)
    high = max(later for _, later in peaks_by_order)
    return Need(
        peak_reserved_bytes=peak if not unseen_bytes else None,
        low_bytes=int(low * (1 - projection.spread)),
        high_bytes=int(high * (1 + projection.spread))
        + unseen_bytes
        + continued.renewed_bytes
        + projection.refused_bytes,
        basis=EARLIER_STEP,
        scale=round(scaling.scale, 3),
        step=projection.step,
        done_share=round(continued.done_bytes / max(1, continued.requested_bytes), 3),
        confidence=Confidence.BOUNDED
        if scaling.is_same and not unseen_bytes
        else Confidence.ESTIMATED,
        limit_bytes=least_limit,
        floor_bytes=continued.floor_bytes,
    )


def _peaks(continued: Continued, native: dict[str, Any], order: AddressOrder) -> tuple[int, int]:
    """What is reserved at most, without a limit: up to the end of the failed step, and of the
    steps after it.
    """
    _, curve = continued.unrefused.curve(native, addresses=order, completion=0, seed=0)
    events, reserved = curve["event"], curve["reserved"]
    return int(reserved[events < continued.step_end].max(initial=0)), int(reserved.max(initial=0))


def _least_limit(proven: Proven, continued: Continued, peak: int) -> int | None:
    """The least limit under which the step would have finished, by the recorded settings."""
    limit = proven.recorded.limit
    low = max(limit.bytes or 0, proven.device.reserved.base_bytes)
    high = in_pages(peak) + PAGE
    if low >= high or not _finishes(proven, continued, proven.recorded.settings, high):
        return None
    for _ in range(_SEARCHES):
        if high - low <= max(PAGE, high // 200):
            break
        middle = (low + high) // 2 // PAGE * PAGE
        if _finishes(proven, continued, proven.recorded.settings, middle):
            high = middle
        else:
            low = middle
    return high


def _finishes(proven: Proven, continued: Continued, settings: Settings, limit_bytes: int) -> bool:
    native = proven.native(settings, allowed_maximum=limit_bytes)
    return not _died(continued.run(native, AddressOrder.DRIVER), continued)


# Settings


def verdict_of_setting(
    proven: Proven, projection: Projection, settings: Settings
) -> SettingVerdict:
    """What a setting would have made of the run."""
    continued = projection.continued
    if proven.recorded.limit.bytes is None:
        return SettingVerdict(
            conf=settings.conf,
            lives=None,
            dies_after_bytes=None,
            confidence=Confidence.CONDITIONAL,
            peak_reserved_bytes=0,
        )
    first = next(_runs(proven, continued, settings, [(AddressOrder.DRIVER, 0.0)]))
    died = _died(first, continued)
    aside = projection.margin if died else -projection.margin
    checks = [
        (AddressOrder.ASCENDING, 0.0),
        (AddressOrder.DESCENDING, 0.0),
        (AddressOrder.DRIVER, aside),
    ]
    runs = [first, *_runs(proven, continued, settings, checks)]
    return SettingVerdict(
        conf=settings.conf,
        lives=_lives(runs, projection),
        dies_after_bytes=continued.bytes_until(first["died_at"]) if died else None,
        confidence=Confidence.BOUNDED if projection.scaling.is_same else Confidence.ESTIMATED,
        peak_reserved_bytes=first["peak_reserved"],
        past_failure=not died,
        failed_bytes=first["failed_size"] if died else None,
    )


def _died(run: Mapping[str, int], continued: Continued) -> bool:
    return 0 <= run["died_at"] < continued.step_end


def _lives(runs: Sequence[Mapping[str, int]], projection: Projection) -> bool | None:
    """True where the step finishes; None where the tries do not agree, or say too little."""
    if _died(runs[0], projection.continued):
        return False if all(_died(run, projection.continued) for run in runs) else None
    all_finish = all(run["died_at"] < 0 for run in runs)
    tells_all = projection.tells_what_follows and not projection.unseen_bytes
    return True if all_finish and tells_all else None


def _runs(
    proven: Proven,
    continued: Continued,
    settings: Settings,
    tries: Iterable[tuple[AddressOrder, float]],
) -> Iterator[dict[str, int]]:
    """The run under its own limit, or one a share above or below it, in some order of addresses."""
    limit = proven.recorded.limit
    assert limit.bytes is not None
    assert limit.most_bytes is not None
    for order, aside in tries:
        base = limit.bytes if aside <= 0 else limit.most_bytes
        native = proven.native(settings, **limit.at(int(base * (1 + aside))))
        yield continued.run(native, order)
