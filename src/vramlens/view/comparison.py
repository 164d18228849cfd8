"""What differs between the ranks of a page, as ``vramlens ranks`` says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vramlens.ranks import compare, summarise
from vramlens.report.ranks import headline
from vramlens.report.wording import sentence
from vramlens.view.texts import one_line
from vramlens.view.verdict import LONGEST_WORDS, place_data

if TYPE_CHECKING:
    from vramlens.trace import Trace
    from vramlens.view.collectives import RankFlight


def comparison_of(
    recordings: Sequence[Trace],
    ranks: Sequence[int | None],
    flights: Sequence[RankFlight | None],
    tracks: Sequence[int],
) -> dict[str, Any] | None:
    """The answer about the ranks as data; None where the recordings are not several ranks of one job.

    Args:
        recordings: one a rank.
        ranks: their numbers, as far as known.
        flights: their flight records, as far as there are any.
        tracks: the first track of each recording.
    """
    numbers = [rank for rank in ranks if rank is not None]
    if len(recordings) < 2 or len(set(numbers)) < len(recordings):
        return None
    summaries = [summarise(trace, rank) for trace, rank in zip(recordings, numbers, strict=True)]
    found = compare(summaries, {one.rank: one.record for one in flights if one is not None})
    track_of = dict(zip(numbers, tracks, strict=True))
    return {
        "headline": one_line(headline(found), LONGEST_WORDS),
        "findings": [
            {
                "verdict": one.verdict,
                "title": one_line(one.title, LONGEST_WORDS),
                "place": place_data(one.place),
                "evidence": [one_line(sentence(text), LONGEST_WORDS) for text in one.evidence],
                "fix": one_line(sentence(one.fix), LONGEST_WORDS) if one.fix else None,
                "track": next((track_of[rank] for rank in one.ranks if rank in track_of), None),
            }
            for one in found.differences
        ],
    }
