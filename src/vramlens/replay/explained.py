"""What replay adds to an explanation: proven counters, and what settings would have done for
this very run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.explanation import Moment
from vramlens.analyses.failure.need import ADVICE
from vramlens.analyses.failure.oom import settings_variable
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.ranking import FindingRow, with_finding
from vramlens.errors import VramlensError
from vramlens.ground.verdict import Confidence, Verdict
from vramlens.replay.answer import assignment
from vramlens.replay.proof import Proven, prove
from vramlens.replay.tuning import WORTH_TRYING, distinct_settings, simple_first
from vramlens.replay.what_if import WhatIf, ask, question
from vramlens.units import MIB, format_size

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.analyses.explanation import Explanation, Peak
    from vramlens.trace import DeviceTrace, Trace

EVENTS_TO_REPLAY = 20_000_000
"""In all, for one explanation: about a second of one core."""

_ORDERS = 12
"""How often a setting is replayed at most: in several orders of addresses."""
_RUNS_FOR_WHOLE_NEED = 60
"""Six for the need, and of each common setting in all orders of addresses."""
_LEAST_SAVED, _LEAST_SHARE = 64 * MIB, 0.05


def with_replay(
    explanation: Explanation,
    trace: Trace,
    events_to_replay: int = EVENTS_TO_REPLAY,
    *,
    view: Attribution | None = None,
) -> Explanation:
    """The explanation with what the replay of its device proves; as it is where nothing can be
    replayed.

    Args:
        events_to_replay: how many in all: bounds the time. Less is told of a recording that is too
            long for it.
        view: the device's attribution, where it is at hand.
    """
    if explanation.peak is None:
        return explanation
    device = trace.devices[explanation.peak.device]
    runs = events_to_replay // max(1, len(device.events))
    proven = _proven(explanation, trace, device, runs) if runs else None
    if proven is not None:
        explanation = _with_counters(explanation, explanation.peak, proven)
    if explanation.failure is not None:
        return _of_failure(explanation, view or attribute(trace, device), proven, runs)
    if proven is None:
        return explanation
    return _with_savings(_with_whole_need(explanation, proven, runs), trace, proven, runs)


def _of_failure(
    explanation: Explanation, view: Attribution, proven: Proven | None, runs: int
) -> Explanation:
    """The explanation of a failure that ended its program, judged by replays where there is time for them."""
    # Only here: what a failed step needs is a fifth of all modules.
    from vramlens.replay.need.failure_order import with_order_of_sums
    from vramlens.replay.need.verdict_findings import with_judgement

    if proven is None or runs < 2 * len(ADVICE):
        return with_order_of_sums(explanation, view)
    return with_judgement(explanation, view, proven, runs)


def _proven(
    explanation: Explanation, trace: Trace, device: DeviceTrace, runs: int
) -> Proven | None:
    """The recording replayed as it was; None where replay does not come to the same."""
    limit = explanation.oom.limit_bytes if explanation.oom is not None else None
    once = runs < 2 * _ORDERS
    try:
        proven = prove(trace, device, limit, once=once)
        # A limit may have been set later, or be rounded in a text.
        if not proven.recorded.exact and limit is not None:
            proven = prove(trace, device, once=once)
    except VramlensError:
        return None
    return proven if proven.recorded.exact else None


def _with_whole_need(explanation: Explanation, proven: Proven, runs: int) -> Explanation:
    """The explanation with the need of a run that its failure did not end."""
    if explanation.oom is None or proven.recorded.warm or runs < _RUNS_FOR_WHOLE_NEED:
        return explanation
    # Only here, as above.
    from vramlens.replay.need.whole_run import need_of_whole_run, settings_of_whole_run

    verdict = replace(
        explanation.oom,
        need=need_of_whole_run(proven),
        settings=settings_of_whole_run(proven),
    )
    return replace(explanation, oom=verdict)


def _with_counters(explanation: Explanation, peak: Peak, proven: Proven) -> Explanation:
    """The peaks as the allocator itself counts them, and the moment's figures, where nothing
    came before.
    """
    recorded = proven.recorded
    if recorded.warm or not peak.exact:
        return explanation
    names = ("allocated_bytes", "active_bytes")
    exact = replace(
        peak,
        allocated_bytes=recorded.peak_allocated_bytes,
        active_bytes=recorded.peak_active_bytes,
        exact=(*peak.exact, *(name for name in names if name not in peak.exact)),
    )
    return replace(explanation, peak=exact, moment=_moment(explanation, proven))


def _moment(explanation: Explanation, proven: Proven) -> Moment | None:
    heap, device = explanation.heap, proven.device
    if heap is None or heap.device != device.device:
        return None
    alive = device.allocations.alive_after(heap.event)
    is_allocated = device.allocations.free_requested[alive] > heap.event
    taken = proven.taken_bytes[alive]
    segments = device.segments.size_bytes[device.segments.alive_after(heap.event)]
    return Moment(
        allocated_bytes=int(taken[is_allocated].sum()),
        active_bytes=int(taken.sum()),
        reserved_bytes=int(segments.sum()),
    )


# After a run that lived


@dataclass(frozen=True, eq=False)
class ReplayedRun:
    """What finders look at of a run that lived: replays of it, each made when first asked for.

    Attributes:
        trace: the recording.
        proven: its replay under the recorded settings.
        runs: how many more replays there is time for.
        unused_reserve: what the recording alone says of reserved memory; None where nothing.
    """

    trace: Trace
    proven: Proven
    runs: int
    unused_reserve: Finding | None

    @property
    def reserved_bytes(self) -> int:
        """What the run reserved at its peak."""
        return self.proven.recorded.peak_reserved_bytes

    @property
    def least_saved_bytes(self) -> int:
        """The fewest bytes that are worth a change of settings."""
        return max(_LEAST_SAVED, int(_LEAST_SHARE * self.reserved_bytes))

    @property
    def can_be_improved(self) -> bool:
        """Whether there is enough to save, and time to look for it."""
        # No setting reserves less than what is allocated: this is all that there is to save.
        to_save = self.reserved_bytes - self.proven.recorded.peak_allocated_bytes
        return to_save >= self.least_saved_bytes and self.runs >= _ORDERS + len(ADVICE)

    @cached_property
    def tried(self) -> list[WhatIf]:
        """The answers for the settings that are worth trying, each in one order of addresses."""
        has_time_for_all = self.runs >= len(WORTH_TRYING) + 2 * _ORDERS
        return self._answers(WORTH_TRYING if has_time_for_all else ADVICE, quick=True)

    @cached_property
    def best(self) -> WhatIf | None:
        """The best setting in all orders of addresses; None where none is sure to live."""
        living = simple_first([row for row in self.tried if row.oom is False])
        if not living:
            return None
        best = self._answers([living[0].settings.conf])[0]
        return best if best.oom is False else None

    @property
    def saved_bytes(self) -> int:
        """What the best setting reserves less."""
        return 0 if self.best is None else self.reserved_bytes - self.best.high_bytes

    @property
    def worse_advice(self) -> list[WhatIf]:
        """The common advice that would have reserved clearly more."""
        too_many_bytes = self.reserved_bytes + self.least_saved_bytes
        return [
            row
            for row in self.tried
            if row.settings.conf in ADVICE
            and row.oom is False
            and row.peak_reserved_bytes > too_many_bytes
        ]

    def _answers(self, confs: Sequence[str], *, quick: bool = False) -> list[WhatIf]:
        """The answers for those settings that this version knows and that differ from the
        recorded ones.
        """
        is_recent = self.trace.torch_version is not None
        settings = distinct_settings(self.proven, confs, newest=is_recent)
        questions = [question(self.proven, setting.conf) for setting in settings]
        return ask(self.proven, questions, quick=quick)


def _with_savings(explanation: Explanation, trace: Trace, proven: Proven, runs: int) -> Explanation:
    """The explanation with what the best setting would have saved, where that is worth a change."""
    by_id = {finding.id: finding for finding in explanation.findings}
    run = ReplayedRun(trace, proven, runs, by_id.get("unused_reserve"))
    if not run.can_be_improved:
        return explanation
    findings = explanation.findings
    for row in FROM_REPLAY:
        for finding in row.find(run) if row.find is not None else ():
            findings = with_finding(findings, finding, row.takes_place_of)
    by_use = sorted(findings, key=lambda finding: finding.fix is None)
    return replace(explanation, findings=tuple(by_use))


def settings_save(run: ReplayedRun) -> Iterator[Finding]:
    """What the best setting would have reserved less."""
    best, saved = run.best, run.saved_bytes
    if best is None or saved < run.least_saved_bytes:
        return
    unused = run.unused_reserve
    reserved = format_size(best.high_bytes)
    setting = assignment(settings_variable(run.trace), best.settings.conf)
    yield Finding(
        id="settings_save",
        verdict=Verdict.PROVEN if best.confidence == Confidence.EXACT else Verdict.LIKELY,
        title=f"{best.settings.conf} would reserve {format_size(saved)} less: "
        f"{reserved} instead of {format_size(run.reserved_bytes)}",
        bytes=saved,
        place=None if unused is None else unused.place,
        extent=None if unused is None else unused.extent,
        evidence=(
            f"a replay of the recorded requests with it reserves {reserved} ({best.confidence})",
            *(() if unused is None else unused.evidence),
            *(
                f"{row.settings.conf} would make it worse: "
                f"{format_size(row.peak_reserved_bytes)} reserved"
                for row in run.worse_advice
            ),
        ),
        fix=f"run with {setting} to reserve {format_size(saved)} less",
    )


def no_setting_saves(run: ReplayedRun) -> Iterator[Finding]:
    """That much is reserved and no setting would change it much."""
    unused = run.unused_reserve
    # With expandable segments it advises something else than a setting.
    is_advice = unused is not None and not run.proven.recorded.settings.expandable_segments
    if unused is None or not is_advice or run.saved_bytes >= run.least_saved_bytes:
        return
    best = min(run.tried, key=lambda row: row.high_bytes, default=None)
    if best is None:
        return
    saved = run.reserved_bytes - best.high_bytes
    avoids = "avoids much of" if saved > 0 else "avoids"
    less = f", {format_size(saved)} less" if saved > 0 else ""
    yield replace(
        unused,
        verdict=Verdict.NOT_A_PROBLEM,
        title=f"no setting {avoids} the {format_size(unused.bytes or 0)} reserved beyond the "
        f"peak's need: the best of {len(run.tried)} replayed settings, {best.settings.conf}, "
        f"reserves {format_size(best.high_bytes)}{less}",
        fix=None,
    )


FROM_REPLAY: tuple[FindingRow[ReplayedRun], ...] = (
    FindingRow(id="settings_save", find=settings_save, takes_place_of="unused_reserve"),
    FindingRow(id="unused_reserve", find=no_setting_saves, takes_place_of="unused_reserve"),
    FindingRow(id="settings_help"),
    FindingRow(id="settings_may_help"),
    FindingRow(id="settings_do_not_help"),
    FindingRow(id="smaller_batch"),
)
"""What replay finds. Rows without a finder are of a run that died: their findings come with its
verdict (``replay.need.verdict_findings``).
"""
