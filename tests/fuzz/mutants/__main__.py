"""Structured mutants through every verb; the exit status is 0 where none of them is a fault.

python tests/fuzz/mutants --count 100000
python tests/fuzz/mutants --seed 1 --index 4711      # one of them again, with what it says
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE.parent))

from mutants.worker import MOST_SECONDS, NAMES, run_mutant  # noqa: E402

_TOLD_EVERY = 500
_PATIENCE_S = 10 * MOST_SECONDS
_TICKS = os.sysconf("SC_CLK_TCK")


class Worker:
    """A process that runs mutants one after another."""

    def __init__(self, seed: int, indices: range, only: str | None) -> None:
        command = [
            sys.executable,
            "-m",
            "mutants.worker",
            str(seed),
            *map(str, (indices.start, indices.stop, 1)),
        ]
        paths = os.pathsep.join([str(_HERE.parent), *sys.path])
        environment = os.environ | {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command + ([only] if only else []), stdout=subprocess.PIPE, text=True, env=environment
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def cpu_seconds(self) -> float:
        """What the process has used of the processor."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def run_all(
    seed: int, indices: range, only: str | None
) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Runs the mutants in processes one after another; how many of each format were run, and the
    faults.
    """
    counted: Counter[str] = Counter()
    faults: list[dict[str, Any]] = []
    at, began = indices.start, time.monotonic()
    while at < indices.stop:
        worker = Worker(seed, range(at, indices.stop), only)
        at, ended = _watch(worker, at, counted, faults)
        if ended:
            faults.append(
                {"index": at, "fault": ended, "detail": "", "form": only or NAMES[at % len(NAMES)]}
            )
            print(json.dumps(faults[-1]), flush=True)
            at += 1
        done = sum(counted.values())
        print(
            f"# {done:,} mutants, {len(faults):,} faults, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    return counted, faults


def _watch(
    worker: Worker, at: int, counted: Counter[str], faults: list[dict[str, Any]]
) -> tuple[int, str]:
    """The number of the next mutant, and how the process ended that was at it; "" where it ended
    by itself.
    """
    used, since = worker.cpu_seconds(), time.monotonic()
    while True:
        try:
            line = worker.lines.get(timeout=1)
        except queue.Empty:
            busy = worker.cpu_seconds() - used
            if busy > MOST_SECONDS * 1.5 or time.monotonic() - since > _PATIENCE_S:
                worker.process.send_signal(signal.SIGKILL)
                worker.process.wait()
                return at, "hang"
            continue
        if line is None:
            code = worker.process.wait()
            return at, "" if code == 0 else f"crash ({code})"
        used, since = (
            worker.cpu_seconds() if worker.process.poll() is None else used,
            time.monotonic(),
        )
        message = json.loads(line)
        if "starts" in message:
            at = message["starts"]
            continue
        at = message["index"] + 1
        counted[message["form"]] += 1
        if sum(counted.values()) % _TOLD_EVERY == 0:
            print(f"# {sum(counted.values()):,} mutants, {len(faults):,} faults", flush=True)
        if message["fault"]:
            faults.append(message)
            print(line.rstrip(), flush=True)


def main() -> int:
    """Runs the command line of this module."""
    parser = argparse.ArgumentParser(
        prog="mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--count", type=int, default=1_000, help="how many mutants (default: 1,000)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--format", choices=NAMES, help="of this format only")
    parser.add_argument("--index", type=int, help="only this one, in this process")
    arguments = parser.parse_args()
    if arguments.index is not None:
        print(run_mutant(arguments.seed, arguments.index, arguments.format))
        return 0
    indices = range(arguments.first, arguments.first + arguments.count)
    counted, faults = run_all(arguments.seed, indices, arguments.format)
    kinds = Counter(
        f"{fault['form']}: {fault['fault']}: {fault['detail'].partition(': ')[0][:60]}"
        for fault in faults
    )
    for kind, count in kinds.most_common():
        print(f"{count:6,}  {kind}")
    print(f"{sum(counted.values()):,} mutants ({dict(counted)}), {len(faults):,} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
