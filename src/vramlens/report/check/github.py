"""A check as GitHub's workflow commands: an annotation a broken limit, beside the line that broke
it.

Rules: actions/toolkit, docs/problem-matchers.md (10 errors a step, 50 annotations a job),
packages/core/src/command.ts (what has to be escaped); a step summary holds 1 MiB.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vramlens.foreign_text import shortened, visible, workflow_command
from vramlens.report.editor import relative_to

if TYPE_CHECKING:
    from vramlens.analyses.budget.budget import Check
    from vramlens.analyses.finding import Finding, Place

MOST_ERRORS = 10
MOST_NOTICES = 10
_LONGEST_TITLE = 200
SUMMARY_BYTES = 1 << 20


def check_to_github(check: Check, environment: Mapping[str, str]) -> str:
    """The annotations of a check, the worst first; what GitHub would drop is counted in the last.

    Args:
        environment: the step's: ``GITHUB_WORKSPACE`` tells which files are in the repository.
    """
    notes = [_notice(note) for note in check.notes[:MOST_NOTICES]]
    if check.passed:
        limits = visible(check.budget) or "its limits"
        within = f"vramlens: {visible(check.source)} is within {limits}"
        return "\n".join([within, *notes]) + "\n"
    shown = (
        check.findings if len(check.findings) <= MOST_ERRORS else check.findings[: MOST_ERRORS - 1]
    )
    lines = [_annotation(finding, check, environment) for finding in shown]
    unshown = len(check.findings) - len(shown)
    if unshown:
        message = f"{unshown:,} more limits are broken (the job summary lists all)"
        lines.append(
            workflow_command(
                "error",
                message,
                title="vramlens: more",
                file=_in_repository(check.budget, environment),
            )
        )
    return "\n".join([*lines, *notes]) + "\n"


def _notice(note: str) -> str:
    return workflow_command("notice", visible(note), title="vramlens: note")


def _annotation(finding: Finding, check: Check, environment: Mapping[str, str]) -> str:
    # The title stands above the message, and says what is broken.
    words = list(finding.evidence)
    if finding.fix:
        words.append(f"Do: {finding.fix}")  # may begin with a command, or end with a path: as it is
    words = words or [
        f"the limit is in {check.budget or 'the command'}"
    ]  # a message that is empty is not shown
    file, line = _place(finding.place, environment)
    if file is None:  # a line of a package, or of another machine: the limit itself then
        broken = [
            result
            for result in check.results
            if not result.passed and result.limit.scope in finding.limits
        ]
        file, line = (
            _in_repository(check.budget, environment),
            broken[0].limit.line if broken else None,
        )
    message = "\n".join(visible(text) for text in words)
    return workflow_command(
        "error",
        message,
        file=file,
        line=line,
        title=shortened(f"vramlens: {visible(finding.title)}", _LONGEST_TITLE),
    )


def _place(place: Place | None, environment: Mapping[str, str]) -> tuple[str | None, int | None]:
    """The file as the repository names it, and the line; None where it is not in the repository."""
    if place is None:
        return None, None
    file = _in_repository(place.file, environment)
    return (file, place.line or None) if file is not None else (None, None)


def _in_repository(file: str, environment: Mapping[str, str]) -> str | None:
    """A path relative to the checkout; None for one that is not in it, and for none."""
    if not file:
        return None
    return relative_to(file, os.path.realpath(environment.get("GITHUB_WORKSPACE") or "."))
