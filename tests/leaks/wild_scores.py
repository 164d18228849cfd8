"""Runs wild programs and says what is right of the answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from leaks.wild import Wild
from support.installed import PYTHON_PATH

GOOD_ENOUGH = 0.05
NOISE_BYTES = 4096  # a step: autograd's nodes and Python's objects, which malloc counts too
FRAMEWORKS = (
    "pandas",
    "lightning",
    "transformers",
    "accelerate",
    "torchmetrics",
    "torch_geometric.data",
)
_SERVE = "from leaks.wild_nursery import serve; serve()"
WAYS = ("live", "script", "no_leaks")


class WildNursery:
    """A process that answers how a program went."""

    def __init__(self, folder: str, frameworks: tuple[str, ...]) -> None:
        self._folder = Path(folder)
        paths = [PYTHON_PATH, str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SERVE, *frameworks],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"},
        )

    def run(self, program: Wild, way: str) -> dict[str, Any]:
        """The answer to one way of running a program."""
        path = self._folder / way / f"{program.name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(program.script if way == "script" else program.text)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"path": str(path), "way": way}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(
            self._process.stdout.readline() or '{"error": "the nursery died"}'
        )
        return answer

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def slope(counted: list[int]) -> float:
    """Bytes a step over the later two thirds."""
    first = len(counted) // 3
    return (counted[-1] - counted[first]) / (len(counted) - 1 - first)


def score(program: Wild, answer: dict[str, Any], true_bytes: float) -> dict[str, bool]:
    """What is right of an answer; of a look-alike only whether it set off an alarm."""
    report = answer.get("report") or {"leaks": []}
    alarms = [leak for leak in report["leaks"] if leak["verdict"] in ("proven", "likely")]
    unexplained = report.get("unexplained")
    if not program.leaks:
        return {"alarm": bool(alarms or unexplained or answer.get("raised") or "error" in answer)}
    if program.owners == ("-",):
        named = unexplained or next((leak for leak in alarms if leak["class"] == "other"), None)
        close = named is not None and _is_close(named["bytes_per_step"], true_bytes)
        return dict.fromkeys(("found", "owner", "statement"), named is not None) | {"bytes": close}
    owners = [leak["owner"] or {} for leak in alarms]
    is_named = [
        any(word in f"{owner.get('name')} {owner.get('source')}" for word in program.owners)
        for owner in owners
    ]
    close = [
        _is_close(leak["bytes_per_step"], true_bytes)
        or _is_close(leak["bytes"] / report["steps"], true_bytes)
        for leak in alarms
    ]
    total = sum(leak["bytes_per_step"] for leak in alarms)
    return {
        "found": bool(alarms) or bool(unexplained) or answer.get("raised", False),
        "owner": any(is_named),
        "statement": any(owner.get("line") in program.keeps for owner in owners),
        "bytes": any(close) or _is_close(total, true_bytes),
    }


def _is_close(size: float, truth: float) -> bool:
    return abs(size - truth) <= GOOD_ENOUGH * truth + NOISE_BYTES
