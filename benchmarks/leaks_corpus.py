"""Who finds what on the corpus: vramlens, the collector's objects (objgraph's way), torch's cycle
finder.

    python benchmarks/leaks_corpus.py [NAME...] [--markdown docs/leaks_corpus.md]

Every program of ``tests/leaks/programs`` runs once under each, in a fork of its own. A leak is
*found* where the tool says that something grows; *owner* and *line* count where its answer names
the statement that keeps it and the one that allocates; *bytes* where its bytes per step are within 5
% of the truth. The two others are written out in ``tests/leaks/collectors.py``: neither knows
lines, so their owner counts where the chain names the variable.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from leaks.corpus import Program, programs  # noqa: E402
from leaks.harness import GOOD_ENOUGH, Nursery, false_alarms, judge, missing  # noqa: E402

TOOLS = {
    "vramlens": "vramlens",
    "collector": "collector (objgraph's way)",
    "cycles": "torch `_cycles`",
}


BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True)
class Score:
    """What one tool says of one program; of a look-alike only whether it is found counts,
    against the tool.
    """

    found: bool
    owner: bool
    line: bool
    bytes: bool

    def __str__(self) -> str:
        if not self.found:
            return "–"
        return " ".join(
            ["found", *(word for word in ("owner", "line", "bytes") if getattr(self, word))]
        )


def score(tool: str, program: Program, answer: dict[str, Any]) -> Score:
    """The answer of a tool, judged with the same truth for all."""
    if "error" in answer:
        return Score(False, False, False, False)
    if tool == "vramlens":
        if not program.leaks:
            return Score(bool(false_alarms(answer)), False, False, False)
        wrong = judge(program, answer)
        return Score(
            "detected" not in wrong,
            "owner line" not in wrong,
            "allocating line" not in wrong,
            "bytes per step" not in wrong,
        )
    report = answer["report"]
    expected = sum(leak.bytes_per_step for leak in program.leaks)
    named = any(
        word in name for leak in program.leaks for word in leak.owner for name in report["chain"]
    )
    close = abs(report["bytes_per_step"] - expected) <= GOOD_ENOUGH * expected
    return Score(report["found"], named, False, close)


def main() -> None:
    """Prints the table, and a line of sums for each tool."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="also write the table there, between its two comments",
    )
    arguments = parser.parse_args()
    chosen = [
        each for name, each in programs().items() if not arguments.names or name in arguments.names
    ]
    rows, absent = [], []
    sums: dict[str, dict[str, int]] = {tool: defaultdict(int) for tool in TOOLS}
    with Nursery() as nursery:
        for program in chosen:
            if package := missing(program):
                absent.append(f"{program.name} (needs {package})")
                continue
            scores = {tool: score(tool, program, nursery.run(program, tool)) for tool in TOOLS}
            for tool, each in scores.items():
                kind = "leaks" if program.leaks else "look-alikes"
                sums[tool][kind] += each.found
                if program.leaks:
                    for word in ("owner", "line", "bytes"):
                        sums[tool][word] += each.found and getattr(each, word)
            truth = (
                "/".join(sorted({name for leak in program.leaks for name in leak.classes}))
                or "no leak"
            )
            rows.append([program.name, truth, *map(str, scores.values())])
            print(*rows[-1], sep=" | ", flush=True)
    leaks = sum(row[1] != "no leak" for row in rows)
    lines = ["| | " + " | ".join(TOOLS.values()) + " |", "|---|" + "---:|" * len(TOOLS)]
    for kind, total in (
        ("leaks", leaks),
        ("owner", leaks),
        ("line", leaks),
        ("bytes", leaks),
        ("look-alikes", len(rows) - leaks),
    ):
        words = {"leaks": "leaks found", "look-alikes": "look-alikes called a leak"}.get(
            kind, f"… with the right {kind}"
        )
        lines.append(
            f"| {words}, of {total} | " + " | ".join(str(sums[tool][kind]) for tool in TOOLS) + " |"
        )
    lines += [
        "",
        "| program | truth | " + " | ".join(TOOLS.values()) + " |",
        "|---|---|" + "---|" * len(TOOLS),
    ]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    if absent:
        lines += ["", "Left out: " + ", ".join(absent) + "."]
    print("\n".join(lines[: 2 + 5]))
    if arguments.markdown:
        before, _, rest = arguments.markdown.read_text().partition(BEGIN)
        arguments.markdown.write_text(
            f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}"
        )


if __name__ == "__main__":
    main()
