"""The verdict in a page: what ``explain`` says, and for each finding where the picture should go
and what it marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.profile.explained_profile import explain_profile
from vramlens.report.document import Figure
from vramlens.report.explain.advice import next_command
from vramlens.report.explain.answer_words import failure_figures, has_failed, headline, sentences
from vramlens.report.explain.finding_words import (
    ledger_figures,
    ledger_when,
    steps_sentence,
    unknown_sentences,
)
from vramlens.report.explain.origin import command_of, origin_of
from vramlens.report.profile import story as profile_story
from vramlens.trace.profile import ProfilerTrace
from vramlens.view.columns import Columns
from vramlens.view.texts import finding_data, words


def verdict_of(view: Attribution, explanation: Explanation, columns: Columns) -> dict[str, Any]:
    """The words of an explanation as data; what is long goes into columns."""
    command = next_command(explanation)
    failure = explanation.oom.event if explanation.oom is not None else None
    return {
        "failed": has_failed(explanation),
        "headline": words(headline(explanation)),
        "sentences": [words(text) for text in sentences(explanation)],
        "figures": _figures(failure_figures(explanation)),
        "ledger": _figures(ledger_figures(explanation)),
        "ledger_when": ledger_when(explanation),
        "findings": [_finding(view, finding, failure, columns) for finding in explanation.findings],
        "steps": steps_sentence(explanation),
        "unknown": [words(text) for text in unknown_sentences(explanation)],
        "origin": [words(text) for text in _origin(explanation)],
        "next": [words(text) for text in (command.why, *command.lines)],
        "exact": list(explanation.peak.exact) if explanation.peak is not None else [],
        "limit": explanation.oom.limit_bytes if explanation.oom is not None else None,
    }


def _origin(explanation: Explanation) -> Iterator[str]:
    """Yields which run the recording comes from, and its command."""
    yield from origin_of(explanation.recording)
    command = command_of(explanation.recording)
    if command:
        yield f"Command: {command}"


def _figures(figures: Iterable[Figure]) -> list[list[Any]]:
    return [[figure.bytes, words(figure.words)] for figure in figures]


def _finding(
    view: Attribution, finding: Finding, failed_event: int | None, columns: Columns
) -> dict[str, Any]:
    extent = finding.extent
    event = failed_event if failed_event is not None else view.device.requested.peak_event
    return {
        **finding_data(finding),
        "id": finding.id,
        "bytes": finding.bytes,
        "event": event if extent is None else extent.event,
        "mark": None if extent is None else _mark(view, extent, columns),
    }


def _mark(view: Attribution, extent: Extent, columns: Columns) -> dict[str, Any]:
    """What the picture marks: allocations by number, and holes by their address after the lowest
    segment.
    """
    segments = view.device.segments
    base = int(segments.address.min()) if len(segments) else 0
    holes = extent.holes[np.argsort(extent.holes[:, 0], kind="stable")]
    return {
        "rows": columns.add(np.sort(extent.rows), differences=True),
        "addresses": columns.add(holes[:, 0] - base, differences=True),
        "bytes": columns.add(holes[:, 1]),
    }


def with_profile(
    verdict: Mapping[str, Any], trace: ProfilerTrace, view: Attribution, columns: Columns
) -> dict[str, Any]:
    """A verdict with the words of the profile in the place of a recording's."""
    profile = explain_profile(trace)
    command = profile_story.next_command(profile)
    return {
        **verdict,
        "headline": words(profile_story.headline(profile)),
        "sentences": [words(text) for text in profile_story.sentences(profile)],
        "findings": [_finding(view, finding, None, columns) for finding in profile.findings],
        "next": [words(text) for text in (command.why, *command.lines)],
        "exact": [],
    }
