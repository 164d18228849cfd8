"""What differs between the recordings of a page, as ``vramlens ranks`` and ``vramlens diff`` say
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vramlens.ground.place import base_name
from vramlens.ranks.rank_words import rank_in_name
from vramlens.read.values import MOST_RANKS
from vramlens.view.findings import finding_data, place_data, words

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.ranks import RankSummary
    from vramlens.trace import Trace
    from vramlens.view.timeline.collective_calls import RankFlight


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
    if any(trace.meta is not None and trace.meta.rank is not None for trace in recordings):
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
            finding_data(difference)
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
    from vramlens.analyses.compare.run_diff import diff_runs
    from vramlens.report.diff.story import story_of

    before, after = (run_of(trace) for trace in recordings)
    diff = diff_runs([before], [after])
    story = story_of(diff)
    return {
        "headline": words(story.headline),
        "sentences": [words(text) for text in story.sentences],
        "lines": [
            {
                "place": place_data(line.place),
                "was": place_data(line.was),
                "before": line.before_bytes,
                "after": line.after_bytes,
            }
            for line in diff.by_line
        ],
        "notes": [words(text) for text in (*story.notes, *story.differences)],
        "unattributed": diff.unattributed_bytes,
    }
