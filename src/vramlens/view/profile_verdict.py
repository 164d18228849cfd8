"""The verdict of a page about a profiler's trace: what ``explain`` says of the trace itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.profile.explained_profile import explain_profile
from vramlens.report.profile.story import headline, next_command, sentences
from vramlens.trace.profile import ProfilerTrace
from vramlens.view.findings import finding_data, words


def with_profile(
    verdict: Mapping[str, Any], trace: ProfilerTrace, view: Attribution
) -> dict[str, Any]:
    """A verdict with the words of the profile in the place of a recording's."""
    profile = explain_profile(trace)
    command = next_command(profile)
    event = view.device.requested.peak_event
    return {
        **verdict,
        "headline": words(headline(profile)),
        "sentences": [words(text) for text in sentences(profile)],
        "findings": [
            {
                **finding_data(finding),
                "id": finding.id,
                "bytes": finding.bytes,
                "event": event,
                "mark": None,
            }
            for finding in profile.findings
        ],
        "next": [words(text) for text in (command.why, *command.lines)],
        "exact": [],
    }
