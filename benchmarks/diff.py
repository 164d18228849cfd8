"""Diff and check: how fast, and whether they find a planted change and nothing else.

    python benchmarks/diff.py                                     # the figures of docs/keep.md
    python benchmarks/diff.py --only copies --repeat 100
    python benchmarks/diff.py --only speed --recording million.pickle.xz

Speed: two recordings are read once, then compared a few times; reading is not counted. Copies:
resnet50 with one line of its forward pass asking for 1% more, with nothing changed but the order
of segments (all requests made again to an allocator), and with times and addresses shuffled. Each
copy goes through ``diff`` and through ``check`` with the budget that ``check --update`` writes from
the original.
"""

from __future__ import annotations

import argparse
import io
import pickle
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from support.copies import again, forward_lines, planted, shuffled, snapshot_of  # noqa: E402
from vramlens import api  # noqa: E402
from vramlens.analyses.budget.budget import check_run  # noqa: E402
from vramlens.analyses.budget.budget_file import read_budget  # noqa: E402
from vramlens.analyses.budget.budget_update import update  # noqa: E402
from vramlens.analyses.compare.compared_run import Run, run_of  # noqa: E402
from vramlens.analyses.compare.run_diff import diff_runs  # noqa: E402
from vramlens.read.snapshot import read_snapshot  # noqa: E402

RECORDINGS = ROOT / "tests" / "data" / "recordings"


def speed(path: Path, rounds: int) -> None:
    before, after = api.load(path), api.load(path)
    events = sum(len(device.events) for device in before.devices.values())
    seconds, cpu = [], []
    for _ in range(rounds):
        began, began_cpu = time.perf_counter(), time.process_time()
        diff_runs([run_of(before)], [run_of(after)])
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
    spread = f"{min(seconds):.2f}–{max(seconds):.2f}"
    print(
        f"diff of two recordings of {events:,} events, after reading: median {statistics.median(seconds):.2f} s",
        end="",
    )
    print(f" ({spread} s, {rounds} rounds), {statistics.median(cpu):.2f} s of a core")


def run_from(made: dict[str, Any]) -> Run:
    return run_of(read_snapshot(io.BytesIO(pickle.dumps(made, 4)), "copy.pickle"))


def outcomes(repeat: int) -> Iterator[tuple[str, bool, bool]]:
    """By copy its kind, and whether diff and check were right about it."""
    name = "recordings/resnet50"
    snapshot = snapshot_of(name)
    original = run_from(snapshot)
    budget = read_budget(update(original, None).text.encode(), "vram.toml")
    lines = list(forward_lines(snapshot))
    rng = random.Random(0)
    for index in range(repeat):
        line = lines[index % len(lines)]
        copy = run_from(shuffled(planted(snapshot, line), rng.randrange(1 << 30)))
        diff, check = diff_runs([original], [copy]), check_run(copy, budget, original)
        found = [
            change
            for change in diff.by_line
            if change.inner and (change.inner.file, change.inner.line) == line
        ]
        named = [
            finding
            for finding in check.findings
            if f"{line[0]}:{line[1]} " in " ".join(finding.evidence) + " "
        ]
        yield (
            "planted",
            len(diff.by_line) == len(found) == 1 and not diff.elsewhere,
            len(check.findings) == len(named) == 1,
        )
        for kind, made in (
            ("nothing changed", again(snapshot, lambda event: event["size"])),
            ("shuffled", shuffled(snapshot, rng.randrange(1 << 30))),
        ):
            copy = run_from(made)
            diff, check = diff_runs([original], [copy]), check_run(copy, budget, original)
            quiet = not (diff.by_line or diff.elsewhere or diff.findings or diff.others)
            yield kind, quiet, check.passed and not check.findings


def copies(repeat: int) -> None:
    right: Counter[tuple[str, str]] = Counter()
    for kind, diff_right, check_right in outcomes(repeat):
        right[kind, "diff"] += diff_right
        right[kind, "check"] += check_right
    for (kind, verb), count in sorted(right.items()):
        print(f"{verb:<5}  {kind:<15}  right {count} of {repeat}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("speed", "copies"))
    parser.add_argument("--recording", type=Path, default=RECORDINGS / "million.pickle.xz")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeat", type=int, default=100)
    arguments = parser.parse_args()
    if arguments.only != "copies":
        speed(arguments.recording, arguments.rounds)
    if arguments.only != "speed":
        copies(arguments.repeat)


if __name__ == "__main__":
    main()
