"""Findings on their lines, as compilers print warnings, as GitHub's workflow commands, or as SARIF.

A finding becomes an annotation first: its level, its file as the checkout names it, its words. Where
a matcher wants a column (VS Code's ``$gcc``, Vim's and Emacs's default error formats), which no
recording has, it is 1. Of a level GitHub shows 10 a step (actions/toolkit: docs/problem-matchers.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from vramlens import __version__
from vramlens.foreign_text import visible, workflow_command
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
_MOST_OF_A_LEVEL = 10
_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
_LONGEST_TITLE = 200
_VERSION = "2.1.0"
_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
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
        return _as_sarif(annotations)
    if format_name == "github":
        return _as_github(visible(source), annotations)

    return _as_gcc(visible(source), annotations)


def _annotation(finding: Finding, root: str) -> Annotation:
    file, is_inside = None, False
    if finding.place is not None:
        inside = relative_to(finding.place.file, root)
        is_inside = inside is not None
        file = visible(inside or _without_dots(finding.place.file))
    texts = [finding.title, *finding.evidence, *filter(None, [finding.fix])]
    if finding.place is not None:  # their sentences name the line as it was recorded
        old, new = finding.place.file, _without_dots(finding.place.file)
        texts = [text.replace(old, new) for text in texts]
    title, *words = [visible(texts[0]), *(sentence(visible(text)) for text in texts[1:])]
    if finding.fix:
        words[-1] = f"Do: {words[-1]}"
    return Annotation(
        id=finding.id,
        level=_level(finding),
        file=file,
        is_inside=is_inside,
        line=(finding.place.line or None) if finding.place is not None else None,
        title=title,
        words=tuple(words),
        verdict=str(finding.verdict),
    )


def _without_dots(file: str) -> str:
    """A path without ``..``; a name that is no path (``<stdin>``, a Windows path here) stays as it is."""
    return os.path.normpath(file) if "/" in file else file


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


def _as_gcc(source: str, annotations: Sequence[Annotation]) -> str:
    """The findings, one line each, and below it a note for what it rests on and what to do."""
    return "".join(f"{line}\n" for note in annotations for line in _lines(source, note))


def _lines(source: str, note: Annotation) -> Iterator[str]:
    file = note.file if note.file is not None else source
    place = f"{file}:{note.line or 1}:1"
    yield f"{place}: {note.level}: {note.title} [{note.id}]"
    yield from (f"{place}: note: {text}" for text in note.words)


def _as_github(source: str, annotations: Sequence[Annotation]) -> str:
    """The annotations, those that GitHub would drop counted at the end."""
    lines: list[str] = []
    for level, command in _LEVELS.items():
        of_level = [note for note in annotations if note.level == level]
        lines += [_command(command, note) for note in of_level[:_MOST_OF_A_LEVEL]]
        left_out = len(of_level) - _MOST_OF_A_LEVEL
        if left_out > 0:
            lines.append(f"vramlens: {left_out} more of level {command}: vramlens explain {source}")
    return "".join(f"{line}\n" for line in lines) or f"vramlens: no findings in {source}\n"


def _command(kind: str, note: Annotation) -> str:
    """One annotation. A file outside of the checkout would be refused: its name goes into words."""
    words = list(note.words)
    if not note.is_inside and note.file is not None:
        words.insert(0, f"{note.file}:{note.line or 1}")
    title = f"vramlens: {note.title}"
    return workflow_command(
        kind,
        "\n".join(words) or note.title,
        file=note.file if note.is_inside else None,
        line=note.line if note.is_inside else None,
        title=title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…",
    )


def _as_sarif(annotations: Sequence[Annotation]) -> str:
    """A log of one run: a rule for each kind of finding, a result for each finding."""
    rules = list(dict.fromkeys(note.id for note in annotations))
    log = {
        "$schema": _SCHEMA,
        "version": _VERSION,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "vramlens",
                        "version": __version__,
                        "rules": [_rule(rule) for rule in rules],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(note, rules.index(note.id)) for note in annotations],
            }
        ],
    }
    text = json.dumps(log, indent=2, allow_nan=False) + "\n"
    return text.replace("##", "#\\u0023")  # no command to who reads a log of it


def _rule(rule: str) -> dict[str, Any]:
    return {"id": rule, "shortDescription": {"text": rule.replace("_", " ")}}


def _result(note: Annotation, rule_index: int) -> dict[str, Any]:
    return {
        "ruleId": note.id,
        "ruleIndex": rule_index,
        "level": note.level,
        "message": {"text": "\n".join((note.title, *note.words))},
        "locations": [] if note.file is None else [_location(note.file, note)],
        "properties": {"verdict": note.verdict},
    }


def _location(file: str, note: Annotation) -> dict[str, Any]:
    """A place. A path becomes a reference: relative to the checkout, or a file on its machine."""
    artifact: dict[str, Any] = {"uri": quote(file.replace("\\", "/"))}
    if note.is_inside:
        artifact["uriBaseId"] = "%SRCROOT%"
    elif file.startswith("/"):
        artifact["uri"] = f"file://{quote(file)}"
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if note.line is not None:
        physical["region"] = {"startLine": note.line}
    return {"physicalLocation": physical}
