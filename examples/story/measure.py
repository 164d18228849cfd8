"""What the fix brings: memory after some steps, the largest batch that lives, and the speed, before and after.

    python measure.py OUT.json --limit-gib 8

Every try is a process of its own: one that ran out of memory tells nothing about the next.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LARGEST = 4096


def once(program: str, *options: str) -> dict[str, Any] | None:
    """What one run printed; None where it ran out of memory."""
    done = subprocess.run(
        [sys.executable, HERE / program, *options], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if "out of memory" in done.stderr:
        return None
    raise SystemExit(f"{program} {' '.join(options)} failed:\n{done.stderr}")


def largest_batch(program: str, *options: str) -> int:
    """The largest batch with which all steps live."""
    lives, dies = 0, 1
    while dies <= LARGEST and once(program, *options, "--batch", str(dies)) is not None:
        lives, dies = dies, dies * 2
    while dies - lives > max(1, lives // 32):  # to 3%
        middle = (lives + dies) // 2
        if once(program, *options, "--batch", str(middle)) is not None:
            lives = middle
        else:
            dies = middle
    return lives


def main() -> None:
    """Measures both programs and writes what came out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--limit-gib", default="8")
    parser.add_argument("--steps", default="12")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    options = ("--limit-gib", arguments.limit_gib, "--steps", arguments.steps)
    found: dict[str, Any] = {"limit_gib": float(arguments.limit_gib), "steps": int(arguments.steps)}
    programs = ("before.py", "after.py")
    with (
        ThreadPoolExecutor() as both
    ):  # each under its own limit, so that they do not disturb each other's memory
        found_batches = both.map(lambda program: largest_batch(program, *options), programs)
        batches = dict(zip(programs, found_batches, strict=True))
    common = str(batches["before.py"])
    for program, batch in batches.items():
        # In turns would be fairer still; each is repeated, and the median taken.
        same = [once(program, *options, "--batch", common) for _ in range(arguments.rounds)]
        most = [once(program, *options, "--batch", str(batch)) for _ in range(arguments.rounds)]
        found[program] = {
            "largest_batch": batch,
            "at_the_same_batch": {"batch": int(common), **_median(same)},
            "at_its_largest_batch": {"batch": batch, **_median(most)},
        }
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def _median(runs: list[dict[str, Any] | None]) -> dict[str, Any]:
    lived = sorted(
        (run for run in runs if run is not None), key=lambda run: run["samples_per_second"]
    )
    middle = lived[len(lived) // 2] if lived else {}
    return {name: middle.get(name) for name in ("peak_allocated_bytes", "samples_per_second")}


if __name__ == "__main__":
    main()
