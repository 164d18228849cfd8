"""Small programs plain and under vramlens, on every Python at hand: whether anything of theirs
changes.

    python benchmarks/harmless.py [--python PYTHON ...] [--modes MODE ...] [--programs NAME ...]
    [--jobs N]

Each program runs plain, then under ``run``, ``run --leaks``, ``run --profile``, ``install``,
``record``, the guard and the pytest plugin, where each makes sense. Compared are both outputs (but
for vramlens's own lines), the exit code, random numbers, open descriptors, threads, signal handlers
and settings at the end, CPU time and peak memory. ``--programs few`` are those of the test suite.
The Pythons need NumPy, rich and psutil; PyTorch, gevent and others where a program needs them. Exit
code 1 where something differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from users_programs.harness import MODES, Harness, compare_all, read_programs


def main() -> int:
    """Runs what was asked for and prints the table; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--programs", nargs="+", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    programs = read_programs()
    if arguments.programs == ["few"]:
        programs = [program for program in programs if "few" in program.options]
    elif arguments.programs:
        programs = [program for program in programs if program.name in arguments.programs]
    with tempfile.TemporaryDirectory(prefix="harmless-") as folder:
        harnesses = [Harness(python, Path(folder)) for python in arguments.python]
        unable = [harness.version for harness in harnesses if not harness.can_run]
        harnesses = [harness for harness in harnesses if harness.can_run]
        results = compare_all(harnesses, programs, arguments.modes, arguments.jobs)
    print(f"{len(programs)} programs; {len(results)} runs beside plain ones")
    for version in unable:
        print(f"Python {version}: not tried, it has no NumPy, rich or psutil")
    print(f"{'Python':8} {'mode':8} {'programs':>8} {'differ':>6} {'skipped':>7}")
    ran = Counter((result.python, result.mode) for result in results)
    differ = Counter((result.python, result.mode) for result in results if result.faults)
    for harness in harnesses:
        for mode in arguments.modes:
            wanted = sum(mode in program.modes for program in programs)
            row = (harness.version, mode)
            print(
                f"{harness.version:8} {mode:8} {ran[row]:8} {differ[row]:6} {wanted - ran[row]:7}"
            )
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main())
