"""The recordings of a page together: a recording and a trace of the same run as one, and what differs
between recordings, as ``vramlens ranks`` and ``vramlens diff`` say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vramlens.ground.place import base_name
from vramlens.ranks.rank_words import rank_in_name
from vramlens.read.values import MOST_RANKS
from vramlens.trace import Trace
from vramlens.view.texts import finding_data, place_data, words

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.ranks import RankSummary
    from vramlens.view.timeline.collective_calls import RankFlight

_APART_US = 5_000_000
"""How far the clocks of the two may be apart."""


def ranks_of_a_job(recordings: Sequence[Trace], ranks: Sequence[int | None]) -> list[int]:
    """The recordings' ranks; empty where they are not several ranks of one job.

    Args:
        ranks: their numbers, as far as known.
    """
    numbers = [rank for rank in ranks if rank is not None]
    return numbers if len(recordings) >= 2 and len(set(numbers)) == len(recordings) else []


def ranks_in_names(recordings: Sequence[Trace]) -> list[int]:
    """The ranks that the recordings' names say; empty where the recordings say them, or where not
    each name says another.
    """
    if any(trace.meta.rank is not None for trace in recordings):
        return []
    named = [rank_in_name(base_name(trace.source)) for trace in recordings]
    ranks = [rank for rank in named if rank is not None and rank <= MOST_RANKS]
    return ranks if len(set(ranks)) == len(recordings) > 1 else []


def summary_of(trace: Trace, rank: int, views: Sequence[Attribution]) -> RankSummary:
    """The summary of a rank whose devices are attributed already, as far as the page shows them."""
    from vramlens.ranks import summarise

    return summarise(
        trace,
        rank,
        view=next((view for view in views if view.device.device == trace.main_device), None),
    )


def comparison_of(
    summaries: Sequence[RankSummary], flights: Sequence[RankFlight | None], tracks: Sequence[int]
) -> dict[str, Any] | None:
    """The answer about the ranks as data; None where there are none.

    Args:
        summaries: one a rank.
        flights: their flight records, as far as there are any.
        tracks: the first track of each.
    """
    if not summaries:
        return None
    from vramlens.ranks import compare
    from vramlens.report.ranks.story import headline

    comparison = compare(
        list(summaries), {flight.rank: flight.record for flight in flights if flight is not None}
    )
    track_of = {summary.rank: track for summary, track in zip(summaries, tracks, strict=True)}
    return {
        "headline": words(headline(comparison)),
        "findings": [
            finding_data(difference.finding)
            | {
                "track": next(
                    (track_of[rank] for rank in difference.ranks if rank in track_of), None
                )
            }
            for difference in comparison.differences
        ],
    }


def difference_of(recordings: Sequence[Trace]) -> dict[str, Any] | None:
    """What ``vramlens diff`` says of two recordings as data; None where there are not just two."""
    if len(recordings) != 2 or any(trace.main_device is None for trace in recordings):
        return None
    from vramlens.analyses.compare.compared_run import run_of
    from vramlens.analyses.compare.diff_findings import headline
    from vramlens.analyses.compare.run_diff import diff_runs
    from vramlens.report.diff.diff_notes import notes_of
    from vramlens.report.diff.story import sentences

    before, after = (run_of(trace) for trace in recordings)
    diff = diff_runs([before], [after])
    notes = (*notes_of(diff), *(other.words for other in diff.others))
    return {
        "headline": words(headline(diff)),
        "sentences": [words(text) for text in sentences(diff)],
        "lines": [
            {
                "place": place_data(line.place),
                "was": place_data(line.was),
                "before": line.before_bytes,
                "after": line.after_bytes,
            }
            for line in diff.by_line
        ],
        "notes": [words(text) for text in notes],
        "unattributed": diff.unattributed_bytes,
    }


def joined(recordings: Sequence[Trace]) -> list[Trace]:
    """One recording in the place of a recording and a trace of the same time; else what was given.

    Both tell time since the epoch (a trace from PyTorch 2.4 on), so kernels lie where they ran.
    """
    traces = [recording for recording in recordings if recording.is_profiler_trace]
    without_profile = [recording for recording in recordings if not recording.is_profiler_trace]
    if (
        len(traces) != 1
        or len(without_profile) != 1
        or not _is_same_time(without_profile[0], traces[0])
    ):
        return list(recordings)
    return [replace(without_profile[0], profile=traces[0].profile)]


def _is_same_time(recording: Trace, trace: Trace) -> bool:
    first, second = _times(recording), _times(trace)
    if first is None or second is None:
        return False
    return first[0] <= second[1] + _APART_US and second[0] <= first[1] + _APART_US


def _times(recording: Trace) -> tuple[int, int] | None:
    """The first and the last event's time; None where there is none."""
    clocks = [device.clock_us for device in recording.devices.values() if len(device.events)]
    if not clocks:
        return None
    return min(int(clock[0]) for clock in clocks), max(int(clock[-1]) for clock in clocks)
