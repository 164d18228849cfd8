"""Findings on their lines: what a compiler prints, GitHub's commands, SARIF 2.1.0."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from vramlens.analyses.finding import Finding, Place
from vramlens.cli.main import main
from vramlens.ground.verdict import Verdict
from vramlens.report.editor import FORMATS, annotated

DATA = Path(__file__).parents[1] / "data"

# What the schema of SARIF 2.1.0 (errata 01) requires of the parts that are written here, and its
# closed vocabularies.
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"enum": ["2.1.0"]},
        "$schema": {"type": "string", "format": "uri"},
        "runs": {"type": "array", "items": {"$ref": "#/definitions/run"}},
    },
    "definitions": {
        "message": {
            "type": "object",
            "required": ["text"],
            "properties": {"text": {"type": "string", "minLength": 1}},
        },
        "run": {
            "type": "object",
            "required": ["tool"],
            "properties": {
                "tool": {
                    "required": ["driver"],
                    "properties": {
                        "driver": {
                            "required": ["name"],
                            "properties": {
                                "name": {"type": "string"},
                                "rules": {
                                    "type": "array",
                                    "uniqueItems": True,
                                    "items": {
                                        "required": ["id"],
                                        "properties": {
                                            "shortDescription": {"$ref": "#/definitions/message"}
                                        },
                                    },
                                },
                            },
                        }
                    },
                },
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "results": {
                    "type": "array",
                    "items": {
                        "required": ["message"],
                        "properties": {
                            "message": {"$ref": "#/definitions/message"},
                            "ruleIndex": {"type": "integer", "minimum": -1},
                            "level": {"enum": ["none", "note", "warning", "error"]},
                            "locations": {
                                "type": "array",
                                "items": {"$ref": "#/definitions/location"},
                            },
                        },
                    },
                },
            },
        },
        "location": {
            "properties": {
                "physicalLocation": {
                    "required": ["artifactLocation"],
                    "properties": {
                        "artifactLocation": {
                            "properties": {"uri": {"type": "string", "pattern": "^[!-~]*$"}}
                        },
                        "region": {"properties": {"startLine": {"type": "integer", "minimum": 1}}},
                    },
                }
            }
        },
    },
}
GCC = re.compile(r"^(.*):(\d+):(\d+):\s+(warning|error|note):\s+(.*)$")


def finding(**changes):
    return Finding(
        **{
            "id": "leak",
            "verdict": Verdict.PROVEN,
            "title": "train.py leaves 1 MiB behind",
            "place": Place("train.py", 12, "step"),
            "evidence": ("it grew in 8 of 8 steps",),
            "fix": "append `loss.item()`",
            **changes,
        }
    )


def explained(capsys, path, form):
    assert main(["explain", str(path), "--format", form]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "path",
    [
        "captured/oom_forward.vram",
        "recordings/leak_losses.pickle.xz",
        "profiler/train.json.gz",
    ],
)
def test_each_form_of_a_real_recording_names_file_and_line(capsys, path):
    log = json.loads(explained(capsys, DATA / path, "sarif"))
    jsonschema.validate(log, SARIF)
    results = log["runs"][0]["results"]
    assert results
    places = {
        (
            place["physicalLocation"]["artifactLocation"]["uri"].removeprefix("file://"),
            place["physicalLocation"]["region"]["startLine"],
        )
        for result in results
        for place in result["locations"]
        if "region" in place["physicalLocation"]
    }
    assert places
    rows = [GCC.match(line) for line in explained(capsys, DATA / path, "gcc").splitlines()]
    assert all(rows)
    assert places <= {(row[1], int(row[2])) for row in rows if row}
    commands = explained(capsys, DATA / path, "github").splitlines()
    assert len([line for line in commands if line.startswith("::")]) == min(len(results), 10)


def test_a_file_of_the_checkout_is_named_from_its_root(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "my train.py").write_text("x = 1\n")
    place = Place(str(tmp_path / "src" / "my train.py"), 1, "step")
    environment = {"GITHUB_WORKSPACE": str(tmp_path)}
    log = json.loads(annotated("sarif", "run.vram", [finding(place=place)], environment))
    (location,) = log["runs"][0]["results"][0]["locations"]
    assert location["physicalLocation"]["artifactLocation"] == {
        "uri": "src/my%20train.py",
        "uriBaseId": "%SRCROOT%",
    }
    github = annotated("github", "run.vram", [finding(place=place)], environment)
    assert github.startswith("::warning file=src/my train.py,line=1,title=vramlens%3A train.py")
    assert annotated("gcc", "run.vram", [finding(place=place)], environment).startswith(
        "src/my train.py:1:1: warning: "
    )


@pytest.mark.parametrize("form", FORMATS)
def test_a_finding_without_a_line_and_no_finding_at_all(form):
    lone = annotated(form, "run.vram", [finding(place=None, evidence=(), fix=None)], {})
    nothing = annotated(form, "run.vram", [], {})
    if form == "sarif":
        jsonschema.validate(json.loads(lone), SARIF)
        jsonschema.validate(json.loads(nothing), SARIF)
        assert json.loads(lone)["runs"][0]["results"][0]["locations"] == []
    if form == "gcc":
        assert lone == "run.vram:1:1: warning: train.py leaves 1 MiB behind [leak]\n"
        assert nothing == ""


def test_a_level_says_how_bad_it_is():
    findings = [
        finding(id="process_limit"),
        finding(verdict=Verdict.LIKELY),
        finding(verdict=Verdict.POSSIBLE),
    ]
    levels = [
        result["level"]
        for result in json.loads(annotated("sarif", "r", findings, {}))["runs"][0]["results"]
    ]
    assert levels == ["error", "warning", "note"]


def test_what_github_would_drop_is_counted():
    lines = annotated("github", "run.vram", [finding()] * 14, {}).splitlines()
    assert len(lines) == 11
    assert lines[-1].startswith("vramlens: 4 more of level warning")


@pytest.mark.parametrize("form", FORMATS)
def test_names_from_a_file_forge_nothing(form):
    hostile = "x\n::error::forged\n##[command]\x1b[2J\0.py"
    text = annotated(form, hostile, [finding(place=Place(hostile, 3, hostile), title=hostile)], {})
    assert "\x1b" not in text
    assert "\0" not in text
    assert not any(line.startswith(("::error::", "##[")) for line in text.splitlines())


def test_a_form_is_one_of_them(capsys):
    assert main(["explain", str(DATA / "captured/oom_forward.vram"), "--format", "xml"]) == 2
    assert main(["explain", "x.vram", "--json", "--format", "gcc"]) == 2


def test_a_path_is_written_without_dots() -> None:
    """As a program that was started from another folder was recorded."""
    place = Place("/home/me/runs/../code/train.py", 24, "train")
    claim = Finding("leak", Verdict.LIKELY, f"64.00 KiB per step, at {place}", place=place)
    text = annotated("gcc", "run.vram", [claim], {"GITHUB_WORKSPACE": "/elsewhere"})
    assert text.startswith("/home/me/code/train.py:24:1: ")
    assert ".." not in text
