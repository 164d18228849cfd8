"""The verdict in a page: what ``explain`` says, and for each finding where the picture should go
and what it marks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.findings.table import ROWS
from vramlens.report.explain.story import story_of
from vramlens.trace import Frame
from vramlens.view.findings import finding_data, place_data, words


def verdict_of(view: Attribution, explanation: Explanation) -> dict[str, Any]:
    """The words of an explanation as data."""
    story = story_of(explanation, "line")
    failure = explanation.oom.event if explanation.oom is not None else None
    last_step = int(view.steps.starts[-1]) if len(view.steps) else None
    return {
        "failed": story.failed,
        "headline": words(story.headline),
        "sentences": [words(text) for text in story.sentences],
        "figures": [[figure.size_bytes, words(figure.words)] for figure in story.figures],
        "ledger": [[figure.size_bytes, words(figure.words)] for figure in story.ledger],
        "ledger_when": story.ledger_when,
        "findings": [
            _finding(view, explanation, finding, failure, last_step)
            for finding in explanation.findings
        ],
        "steps": story.steps,
        "unknown": [words(text) for text in story.unknown],
        "origin": [words(text) for text in story.origin],
        "next": [words(text) for text in (story.next.why, *story.next.lines)],
        "exact": list(explanation.peak.exact) if explanation.peak is not None else [],
        "limit": explanation.oom.limit_bytes if explanation.oom is not None else None,
    }


def _finding(
    view: Attribution,
    explanation: Explanation,
    finding: Finding,
    failure: int | None,
    last_step: int | None,
) -> dict[str, Any]:
    event = failure if failure is not None else view.device.requested.peak_event
    if finding.id == "leak" and failure is None and last_step is not None:
        event = last_step  # what follows may be the end of the program, where everything goes
    return {
        **finding_data(finding),
        "id": finding.id,
        "bytes": finding.bytes,
        "event": event,
        "mark": _mark(view, finding),
    }


def _mark(view: Attribution, finding: Finding) -> dict[str, Any] | None:
    """What the picture marks: allocations alive at the finding's event, by stack and line or by
    category.
    """
    row = ROWS.get(finding.id)
    if row is not None and row.is_about_all_memory:
        return None
    if row is not None and row.category is not None:
        return {"stacks": [], "place": None, "categories": [int(row.category)]}
    if finding.place is None:
        return None
    stacks, place = view.trace.stacks, finding.place
    # Frames are interned by file, line and function, but may differ in further fields.
    at_line = np.flatnonzero(stacks.frame_line == place.line).tolist()
    is_of_line = np.zeros(len(stacks.frame_line), np.bool_)
    is_of_line[[i for i in at_line if _same(stacks.frame(i), place)]] = True
    through = np.flatnonzero(stacks.any_frame(is_of_line)) + 1
    return {"stacks": through.tolist(), "place": place_data(place), "categories": []}


def _same(frame: Frame, place: Place) -> bool:
    return frame.file == place.file and frame.function == place.function
