"""Many ranks: how quickly recordings become a lake, and how quickly the lake answers.

    python benchmarks/fleet.py [RANKS] [FOLDER]

takes the recording ``million`` (830,003 events) as each of RANKS ranks (default 64), by links to one file, since what
is measured is reading, summarising and writing. Prints one JSON object: events a second on 1, 2, ... processes, the
time of the comparison and of two questions in SQL, and the highest memory of this process and of its largest child.
"""

from __future__ import annotations

import json
import lzma
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from vramlens.fleet import Lake, compare_files, export_lake, find_ranks, read_job

DATA = Path(__file__).parents[1] / "tests/data/recordings/million.pickle.xz"
EVENTS = 830_003
QUESTIONS = {
    "line by rank": "SELECT file, line, rank, max(peak_bytes) AS peak FROM lines GROUP BY ALL ORDER BY 4 DESC LIMIT 10",
    "skew": "SELECT max(peak_requested_bytes) - median(peak_requested_bytes) FROM ranks",
}


def cpu_seconds() -> float:
    """Of this process and its children that have ended."""
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def summary_only(source: Path) -> dict[str, int]:
    """What comparing without a lake costs: reading and summarising, on one process."""
    some = [str(path) for path in sorted(source.iterdir())[:4]]
    began, cpu = time.perf_counter(), cpu_seconds()
    read_job(find_ranks(some))
    events = EVENTS * len(some)
    return {
        "events_per_second": round(events / (time.perf_counter() - began)),
        "events_per_cpu_second": round(events / (cpu_seconds() - cpu)),
    }


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    first = source / "rank00000.pickle"
    first.write_bytes(lzma.decompress(DATA.read_bytes()))
    for rank in range(1, ranks):
        os.link(first, source / f"rank{rank:05d}.pickle")
    found: dict[str, object] = {"ranks": ranks, "cores": os.cpu_count()}
    scaling = {}
    for workers in range(1, (os.cpu_count() or 1) + 1):
        lake = folder / f"lake{workers}"
        began, cpu = time.perf_counter(), cpu_seconds()
        done = export_lake([source], str(lake), "benchmark", where=str(workers))
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
        scaling[workers] = {
            "seconds": round(seconds, 1),
            "cpu_seconds": round(cpu, 1),
            "events_per_second": round(done.events / seconds),
            "events_per_cpu_second": round(done.events / cpu),
        }
    found["export"] = scaling
    found["summary"] = summary_only(source)
    began = time.perf_counter()
    found["differences"] = len(compare_files([lake]).differences)
    found["compare_seconds"] = round(time.perf_counter() - began, 2)
    for name, question in QUESTIONS.items():
        began = time.perf_counter()
        Lake(lake).sql(question)
        found[f"sql_{name}_seconds"] = round(time.perf_counter() - began, 3)
    size = sum(path.stat().st_size for path in lake.rglob("*.parquet"))
    found["bytes_per_event"] = round(size / max(1, done.events), 2)
    found["memory_mib"] = {
        "here": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "largest worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
    }
    print(json.dumps(found, indent=1))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
