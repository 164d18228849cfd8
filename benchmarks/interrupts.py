"""Ctrl-C at random moments while a recording is read: what becomes of it, on one Python.

    python benchmarks/interrupts.py FILE [--tries 200] [--python PYTHON]

Half of the tries are ``vramlens explain FILE``, which must exit with 130 and say nothing (or die of
the signal, which a shell shows as 130: that is Python's way while it starts and ends); half are
``vramlens.load(FILE)`` in a program, which must raise KeyboardInterrupt. A try that was over before
Ctrl-C came does not count: another is made. Exits with 1 where a try ended otherwise.
PYTHON must be able to import vramlens.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import time

FIRST_WORD = b"."
CLI = """
import sys
from vramlens.cli.main import main
sys.stdout.write("."), sys.stdout.flush()
sys.exit(main(["explain", sys.argv[1], "-o", "/dev/null"]))
"""
PROGRAM = """
import sys, vramlens
vramlens.load
sys.stdout.write("."), sys.stdout.flush()
try:
    vramlens.load(sys.argv[1])
except KeyboardInterrupt:
    sys.exit(77)
"""
WAYS = {
    "vramlens explain": (CLI, (130, -signal.SIGINT)),
    "vramlens.load": (PROGRAM, (77, -signal.SIGINT)),
}
PATIENCE_S = 60


def one_try(python: str, code: str, file: str, wait_s: float | None) -> tuple[int, bytes, float]:
    """The exit code, what was said, and how long it took from its first word on; Ctrl-C comes
    ``wait_s`` after that.
    """
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
    program = subprocess.Popen(
        [python, "-c", code, file],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert program.stdout is not None
    assert program.stdout.read(1) == FIRST_WORD, program.communicate()[1].decode()
    began = time.perf_counter()
    if wait_s is not None:
        time.sleep(wait_s)
        program.send_signal(signal.SIGINT)
    try:
        _, said = program.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        program.kill()
        return -signal.SIGKILL, b"hangs", PATIENCE_S
    return program.returncode, said, time.perf_counter() - began


def outcomes(python: str, file: str, tries: int, seed: int) -> dict[str, collections.Counter[str]]:
    """By way, how often each outcome came."""
    moments = random.Random(seed)
    found = {}
    for name, (code, expected) in WAYS.items():
        whole_s = max(one_try(python, code, file, None)[2] for _ in range(2))
        counts: collections.Counter[str] = collections.Counter()
        over = 0
        while sum(counts.values()) < tries and over < 10 * tries:
            status, said, _ = one_try(python, code, file, moments.uniform(0, whole_s))
            if status == 0:
                over += 1
            elif status in expected and not said:
                counts["right"] += 1
            else:
                last = said.decode(errors="replace").strip().rpartition("\n")[2][:60]
                counts[f"exit {status}, {last or 'silent'}"] += 1
        found[name] = counts
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file")
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    is_right = True
    for name, counts in outcomes(
        arguments.python, arguments.file, arguments.tries // 2, arguments.seed
    ).items():
        print(
            f"{name}: {', '.join(f'{count} {outcome}' for outcome, count in counts.most_common())}"
        )
        is_right &= set(counts) == {"right"}
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
