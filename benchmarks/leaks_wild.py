"""What vramlens says of programs that it was not made for: live, as scripts, and by no_leaks.

    python benchmarks/leaks_wild.py [NAME...] [--ways live script no_leaks] [--bundles loops servers] [-v]

A leak is *found* where it is proven or likely, or where "Cannot tell" says what grew and no owner can be named.
*Owner* and *statement* are right where the answer names the words and lines that ``tests/leaks/wild`` marks; *bytes*
where they are within 5 % of the truth: by construction, or else of what malloc counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from leaks.wild import Wild, wild_programs  # noqa: E402

GOOD_ENOUGH = 0.05
NOISE_BYTES = 4096  # a step: autograd's nodes and Python's objects, which malloc counts too
FRAMEWORKS = ("pandas", "lightning", "transformers", "accelerate", "torchmetrics", "torch_geometric.data")
_SERVE = "from leaks.wild_nursery import serve; serve()"
WAYS = ("live", "script", "no_leaks")


class WildNursery:
    """A process that answers how a program went."""

    def __init__(self, folder: str, frameworks: tuple[str, ...]) -> None:
        self._folder = Path(folder)
        paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SERVE, *frameworks],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"},
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
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"error": "the nursery died"}')
        return answer

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


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
        any(word in f"{owner.get('name')} {owner.get('source')}" for word in program.owners) for owner in owners
    ]
    close = [
        _is_close(leak["bytes_per_step"], true_bytes) or _is_close(leak["bytes"] / report["steps"], true_bytes)
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


def main() -> None:
    """Prints what is wrong of each program, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=(*WAYS, "bytes"))
    parser.add_argument("--bundles", nargs="+")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each answer")
    arguments = parser.parse_args()
    chosen = [
        program
        for name, program in wild_programs().items()
        if (not arguments.names or name in arguments.names)
        and (not arguments.bundles or program.bundle in arguments.bundles)
    ]
    sums: dict[str, Counter[str]] = {way: Counter() for way in arguments.ways}
    with tempfile.TemporaryDirectory(prefix="wild") as folder:
        nurseries = {False: WildNursery(folder, ())}
        for program in chosen:
            needs_frameworks = any(f"import {name.split('.')[0]}" in program.text for name in FRAMEWORKS)
            if needs_frameworks not in nurseries:
                nurseries[needs_frameworks] = WildNursery(folder, FRAMEWORKS)
            nursery = nurseries[needs_frameworks]
            true_bytes = float(program.bytes_per_step or 0)
            if (program.leaks and program.bytes_per_step is None) or arguments.ways == ["bytes"]:
                witness = nursery.run(program, "bytes")
                counted_bytes = slope(witness["bytes"]) if "bytes" in witness else 0.0
                if arguments.ways == ["bytes"]:
                    print(program.name, round(counted_bytes), program.bytes_per_step, witness.get("error", ""))
                    continue
                true_bytes = counted_bytes
            for way in arguments.ways:
                answer = nursery.run(program, way)
                points = score(program, answer, true_bytes)
                sums[way]["programs of " + ("leaks" if program.leaks else "look-alikes")] += 1
                sums[way].update(name for name, is_so in points.items() if is_so)
                wrong = [name for name, is_so in points.items() if is_so == (name == "alarm")]
                if wrong or "error" in answer:
                    print(f"{way:9} {program.name:26} {' '.join(wrong)} (true {true_bytes:,.0f})", flush=True)
                if "error" in answer:
                    print(answer["error"][-700:])
                if arguments.verbose:
                    print(answer.get("text"))
        for nursery in nurseries.values():
            nursery.close()
    for way, counter in sums.items():
        print(way, dict(counter))


if __name__ == "__main__":
    main()
