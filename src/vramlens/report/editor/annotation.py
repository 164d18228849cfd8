"""An annotation: a finding with its level, its file as the checkout names it, and its words."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vramlens.foreign_text import visible
from vramlens.report.wording import sentence

if TYPE_CHECKING:
    from vramlens.analyses.finding import Finding

Level = Literal["error", "warning", "note"]
FORMATS = ("github", "sarif", "gcc")
_FAILURES = frozenset(
    (
        "device_full",
        "fragmented_request",
        "other_process",
        "process_limit",
        "profile_out_of_memory",
        "request_too_large",
    )
)


@dataclass(frozen=True, slots=True)
class Annotation:
    """A finding on its line. All texts are one line each and safe to print.

    Attributes:
        id: the finding's slug.
        level: error for a failure, warning for what is proven or likely, else note.
        file: relative to the checkout where it lies in it, else as it was recorded; None where the
            finding has no line.
        is_inside: whether the file lies in the checkout.
        line: from 1; None where unknown.
        title: the claim.
        words: what it rests on, and last what to do.
        verdict: how certain it is.
    """

    id: str
    level: Level
    file: str | None
    is_inside: bool
    line: int | None
    title: str
    words: tuple[str, ...]
    verdict: str


def annotated(
    format_name: str, source: str, findings: Sequence[Finding], environment: Mapping[str, str]
) -> str:
    """Findings in one of FORMATS.

    Args:
        source: the recording's name: findings without a line stand there.
        environment: ``GITHUB_WORKSPACE`` names the checkout; else it is the current folder.
    """
    root = os.path.realpath(environment.get("GITHUB_WORKSPACE") or ".")
    annotations = [_annotation(finding, root) for finding in findings]
    if format_name == "sarif":
        from vramlens.report.editor.sarif import to_sarif

        return to_sarif(annotations)
    if format_name == "github":
        from vramlens.report.editor.github_annotations import to_github

        return to_github(visible(source), annotations)
    from vramlens.report.editor.gcc import to_gcc

    return to_gcc(visible(source), annotations)


def _annotation(finding: Finding, root: str) -> Annotation:
    file, is_inside = None, False
    if finding.place is not None:
        inside = relative_to(finding.place.file, root)
        is_inside = inside is not None
        file = visible(inside or finding.place.file)
    words = [sentence(visible(text)) for text in finding.evidence]
    if finding.fix:
        words.append(f"Do: {sentence(visible(finding.fix))}")
    return Annotation(
        id=finding.id,
        level=_level(finding),
        file=file,
        is_inside=is_inside,
        line=(finding.place.line or None) if finding.place is not None else None,
        title=visible(finding.title),
        words=tuple(words),
        verdict=str(finding.verdict),
    )


def _level(finding: Finding) -> Level:
    if finding.id in _FAILURES:
        return "error"
    return "warning" if finding.verdict.is_sure else "note"


def relative_to(file: str, root: str) -> str | None:
    """A path relative to the checkout; None for one that is not in it."""
    if "\0" in file:
        return None
    path = os.path.realpath(file if os.path.isabs(file) else os.path.join(root, file))
    if not path.startswith(root + os.sep) or not os.path.isfile(path):
        return None
    return os.path.relpath(path, root).replace(os.sep, "/")
