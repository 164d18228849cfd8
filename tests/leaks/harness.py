"""Runs a program of the corpus under a watch and says what is wrong with the answer."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from leaks.corpus import Leak, Program
from support.installed import PYTHON_PATH

GOOD_ENOUGH = 0.05  # of the bytes per step
DETECTED = ("proven", "likely")


def missing(program: Program) -> str | None:
    """What the program needs and is not there."""
    return next(
        (package for package in program.needs if importlib.util.find_spec(package) is None), None
    )


class Nursery:
    """A process with torch in which programs are run, each in a fork of its own."""

    def __enter__(self) -> Nursery:
        self._folder = tempfile.TemporaryDirectory(prefix="corpus")
        paths = [PYTHON_PATH, os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).with_name("nursery.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(300)
        self._process.stdout.close()
        self._folder.cleanup()

    def run(
        self,
        program: Program,
        watcher: str = "vramlens",
        fixed: bool = False,
        perturb: str | None = None,
    ) -> dict[str, Any]:
        """What the watch reported: {report, facts, cpu_s, program_cpu_s} or {error}."""
        path = Path(self._folder.name) / ("fixed" if fixed else "code") / f"{program.name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(program.fixed_text if fixed else program.text)
        request = {"path": str(path), "watcher": watcher, "perturb": perturb}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(
            self._process.stdout.readline() or '{"error": "the nursery died"}'
        )
        return answer


def judge(program: Program, answer: dict[str, Any]) -> dict[str, str]:
    """What is wrong with the answer to a program with leaks: {what: "expected …, got …"}; empty
    when all is right.

    A leak may be answered by several entries, if each names it rightly and their bytes sum to it: a
    metric's two lists are one leak or two, as one likes.
    """
    if "error" in answer:
        return {"detected": answer["error"].strip()}
    entries = list(answer["report"]["leaks"])
    wrong: dict[str, str] = {}
    for leak in program.leaks:
        named = _entries_for(leak, program, entries)
        if not named:
            others = [_words(each) for each in entries]
            wrong["detected"] = (
                f"expected {'/'.join(leak.verdicts)}, got {'; '.join(others) or 'nothing'}"
            )
            continue
        entries = [each for each in entries if each not in named]
        for entry in named:
            wrong |= _compare(leak, program, entry)
        total = sum(each["bytes_per_step"] for each in named)
        if abs(total - leak.bytes_per_step) > GOOD_ENOUGH * leak.bytes_per_step:
            wrong["bytes per step"] = f"expected {leak.bytes_per_step}, got {total}"
    if extra := [_words(each) for each in entries if each["verdict"] in DETECTED]:
        wrong["extra"] = f"also called a leak: {'; '.join(extra)}"
    return wrong


def false_alarms(answer: dict[str, Any]) -> list[str]:
    """What a look-alike (or a cured program) is wrongly called."""
    if "error" in answer:
        return [answer["error"].strip()]
    return [_words(each) for each in answer["report"]["leaks"] if each["verdict"] in DETECTED]


def _entries_for(
    leak: Leak, program: Program, entries: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The entries that are about this leak: those of the right line, else the one whose bytes
    come closest.
    """
    called = [each for each in entries if each["verdict"] in leak.verdicts]
    of_line = [each for each in called if (each.get("owner") or {}).get("line") in leak.keeps]
    if program.lines and of_line:
        return of_line
    return sorted(called, key=lambda each: abs(each["bytes_per_step"] - leak.bytes_per_step))[:1]


def _compare(leak: Leak, program: Program, entry: dict[str, Any]) -> dict[str, str]:
    wrong = {}
    owner = entry.get("owner") or {}
    if entry["class"] not in leak.classes:
        wrong["class"] = f"expected {'/'.join(sorted(leak.classes))}, got {entry['class']}"
    if program.lines and (not _is_here(owner, program) or owner.get("line") not in leak.keeps):
        wrong["owner line"] = (
            f"expected {sorted(leak.keeps)}, got {owner.get('file')}:{owner.get('line')} ({owner.get('name')})"
        )
    if not any(word in str(owner.get("name")) for word in leak.owner):
        wrong["owner name"] = f"expected {'/'.join(leak.owner)} in it, got {owner.get('name')}"
    if program.lines and (not _is_here(entry, program) or entry["line"] not in leak.allocates):
        wrong["allocating line"] = (
            f"expected {sorted(leak.allocates)}, got {entry['file']}:{entry['line']}"
        )
    if not entry.get("fix"):
        wrong["fix"] = "none"
    return wrong


def _is_here(place: dict[str, Any], program: Program) -> bool:
    return Path(str(place.get("file"))).name == f"{program.name}.py"


def _words(entry: dict[str, Any]) -> str:
    owner = entry.get("owner") or {}
    return (
        f"{entry['verdict']} {entry['class']} {entry['bytes_per_step']} B a step,"
        f" line {entry['line']}, owner {owner.get('name')} line {owner.get('line')}"
    )
