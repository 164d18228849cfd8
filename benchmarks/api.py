"""Time the Python API, imports done, against the bare opcode walk, and see whether time is linear
in events.

    python benchmarks/api.py FILE.pickle[.xz] [--events N ...] [--setup CODE] [--statement CODE]
    [--runs 5]

For each N, `grow.py` makes a recording of about N events. Then, alternating: one run of
`opcode_walk.c` and one fresh Python process that runs `--setup` untimed and `--statement` timed,
with `path` bound to the file.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SETUP = "import vramlens"
STATEMENT = "vramlens.load(path).peak()"
EVENTS = [100_000, 830_003, 1_000_000, 10_000_000]  # the second is the shared `million` itself
HEADER = """\
| events | MB | opcode walk ms (min–max) | API ms (min–max) | API ÷ walk | walk ns/event | API ns/event |
|---:|---:|---:|---:|---:|---:|---:|"""
TIMED = """\
import sys, time
path = sys.argv[1]
{setup}
start = time.perf_counter()
result = {statement}
print(time.perf_counter() - start)
"""


def printed(*command: str | Path) -> str:
    """What a command prints. Raises SystemExit with its last word if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise SystemExit(f"api: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout


def spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:,.0f} ({min(seconds) * 1e3:,.0f}–{max(seconds) * 1e3:,.0f})"


def row(path: Path, events: int, walker: Path, code: str, runs: int) -> str:
    """One line of the table: the medians of alternating runs on one file."""
    walks: list[float] = []
    calls: list[float] = []
    for _ in range(runs + 1):
        walks.append(float(printed(walker, path).split()[0]))
        calls.append(float(printed(sys.executable, "-c", code, path)))
    walk, call = (
        statistics.median(walks[1:]),
        statistics.median(calls[1:]),
    )  # the first run warms the cache
    cells = [
        f"{events:,}",
        f"{path.stat().st_size / 1e6:,.1f}",
        spread(walks[1:]),
        spread(calls[1:]),
    ]
    cells += [f"{call / walk:.2f}", f"{walk / events * 1e9:.0f}", f"{call / events * 1e9:.0f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=keep_lines)
    parser.add_argument("recording", type=Path, help="a snapshot that grow.py can repeat steps of")
    parser.add_argument(
        "--events", type=int, nargs="+", default=EVENTS, help="sizes (default: %(default)s)"
    )
    parser.add_argument("--setup", default=SETUP, help="not timed (default: %(default)s)")
    parser.add_argument("--statement", default=STATEMENT, help="timed (default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=5, help="counted runs a size (default: %(default)s)"
    )
    args = parser.parse_args()
    code = TIMED.format(setup=args.setup, statement=args.statement)
    printed(sys.executable, "-c", args.setup)  # fails before the work where it is not installed
    with tempfile.TemporaryDirectory() as folder:
        walker, path = Path(folder) / "opcode_walk", Path(folder) / "snapshot.pickle"
        printed("cc", "-O2", "-o", walker, HERE / "opcode_walk.c")
        machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
        print(f"`{args.statement}`, {args.runs} alternating runs;", end=" ")
        print(f"{machine}, Python {platform.python_version()}.\n")
        print(HEADER)
        for wanted in args.events:
            grown = printed(
                sys.executable, HERE / "grow.py", args.recording, path, "--events", str(wanted)
            )
            events = int(grown.split()[1].replace(",", ""))
            print(row(path, events, walker, code, args.runs), flush=True)


if __name__ == "__main__":
    main()
