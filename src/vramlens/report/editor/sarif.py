"""Findings as SARIF 2.1.0 (OASIS: sarif-v2.1.0), for SARIF viewers and code scanning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from vramlens import __version__
from vramlens.report.editor.annotation import Annotation

VERSION = "2.1.0"
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def to_sarif(annotations: Sequence[Annotation]) -> str:
    """A log of one run: a rule for each kind of finding, a result for each finding."""
    rules = list(dict.fromkeys(note.id for note in annotations))
    log = {
        "$schema": SCHEMA,
        "version": VERSION,
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
