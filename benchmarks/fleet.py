"""Many ranks: how quickly recordings become a summary and a lake, how quickly those answer, and in
how much memory.

    python benchmarks/fleet.py                                # 1,024 ranks of 500,000 events, on all cores
    python benchmarks/fleet.py --ranks 64 --events 100000     # a quick look
    python benchmarks/fleet.py --minutes 20 --folder DIR      # bounds; DIR takes some gigabytes

cuts the recording ``million`` to so many events and makes of it two ranks: a usual one, and one
that keeps 8 MiB more after each of 40 moments. The job is links to these two files: what is
measured is reading, summarising, comparing and writing, not storage (both files stay in memory);
the lake is written in full. Every eighth of a thousand ranks leaks, and the answer must name
exactly those.

Prints a table in Markdown, and to standard error what is being done. What does not fit in the time
is measured on fewer ranks and said to be extrapolated.
"""

from __future__ import annotations

import argparse
import lzma
import os
import pickle
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vramlens.fleet import Lake, compare_files, export_lake, find_ranks, read_job, read_lake
from vramlens.fleet.workers import workers
from vramlens.ranks import compare

DATA = Path(__file__).parents[1] / "tests/data/recordings/million.pickle.xz"
LEAKING = 125
LEAK_BYTES, LEAKS = 8 << 20, 40
LARGEST = 16_384
SAMPLE = 32
QUESTIONS = {
    "the lines that hold most": "SELECT file, line, rank, max(peak_bytes) FROM lines GROUP BY ALL ORDER BY 4 DESC"
    " LIMIT 10",
    "the ranks above the median": "SELECT rank, peak_requested_bytes FROM ranks WHERE peak_requested_bytes >"
    " 1.02 * (SELECT median(peak_requested_bytes) FROM ranks) ORDER BY 2 DESC LIMIT 20",
    "the worst step": "SELECT step, max(peak_bytes) - min(peak_bytes) FROM steps GROUP BY 1 ORDER BY 2 DESC LIMIT 5",
    "one rank's events by line": "SELECT s.file, s.line, count(*), sum(e.size_bytes) FROM events e JOIN stacks s USING"
    " (stack) WHERE e.rank = 7 AND e.action = 'alloc' GROUP BY ALL ORDER BY 4 DESC LIMIT 10",
}  # fmt: skip


@dataclass(frozen=True)
class Took:
    """Wall and processor seconds of something, on this process and its children that have ended."""

    seconds: float
    cpu_seconds: float


def timed(action: Callable[[], Any]) -> tuple[Took, Any]:
    """What an action took and returned."""
    began, cpu = time.perf_counter(), cpu_seconds()
    result = action()
    return Took(time.perf_counter() - began, cpu_seconds() - cpu), result


def cpu_seconds() -> float:
    """Of this process and its children that have ended."""
    mine, theirs = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def memory_mib() -> tuple[int, int]:
    """The most that this process has had, and the largest of its children."""
    mine, theirs = (
        resource.getrusage(who).ru_maxrss >> 10
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return mine, theirs


def say(line: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


def make_two(folder: Path, events: int) -> tuple[Path, Path]:
    """The usual rank's file and the leaking one's, made by a process that nobody waits for: it
    is no worker.
    """
    usual, leaking = folder / "usual.pickle", folder / "leaking.pickle"
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        began = time.monotonic()
        while not leaking.exists():
            if time.monotonic() - began > 300:
                sys.exit("the ranks' files could not be made")
            time.sleep(0.1)
        return usual, leaking
    if not os.fork():
        snapshot = pickle.loads(lzma.decompress(DATA.read_bytes()))
        trace = snapshot["device_traces"][0][:events]
        for path, extra in ((usual, 0), (leaking, LEAKS)):
            kept = list(trace)
            sample = next(
                one for one in reversed(trace) if one["action"] == "alloc" and one["frames"]
            )
            for number in range(extra):
                at = len(trace) * (number + 1) // (extra + 1) + number
                event = {**sample, "addr": (1 << 46) + number * LEAK_BYTES, "size": LEAK_BYTES}
                kept.insert(at, event | {"time_us": kept[at - 1]["time_us"]})
            partial = path.with_suffix(".part")
            with partial.open("wb") as file:
                pickle.dump({**snapshot, "segments": [], "device_traces": [kept]}, file, 4)
            partial.rename(path)
    os._exit(0)


def job(folder: Path, two: tuple[Path, Path], ranks: int) -> Path:
    """A folder of so many ranks."""
    folder.mkdir()
    for rank in range(ranks):
        os.link(two[rank % LEAKING == LEAKING - 1], folder / f"rank{rank:05d}.pickle")
    return folder


def summarised(source: Path, count: int) -> Any:
    """The comparison of a folder, on so many processes."""
    with workers(str(count)) as executor:
        return read_job(find_ranks([source]), executor=executor).compare()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--events", type=int, default=500_000, help="of each rank")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="the most to use")
    parser.add_argument(
        "--minutes", type=float, default=20, help="about how long all of it may take"
    )
    parser.add_argument("--folder", type=Path, help="where its files go for the time being")
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=wanted.folder))
    try:
        measure(wanted, folder)
    finally:
        shutil.rmtree(folder)


def measure(wanted: argparse.Namespace, folder: Path) -> None:
    """Measures and prints."""
    end = time.monotonic() + 60 * wanted.minutes
    say("making two recordings")
    two = make_two(folder, wanted.events)
    most = wanted.workers
    counts = sorted(
        {1 << power for power in range(most.bit_length()) if 1 << power <= most} | {most}
    )
    sample = job(folder / "sample", two, min(SAMPLE, wanted.ranks))
    size = len(list(sample.iterdir()))

    def row(count: int) -> tuple[str, float]:
        """A row about so many processes; and the seconds of a rank, for both."""
        say(f"{size} ranks on {count} processes")
        plain, _ = timed(lambda: summarised(sample, count))
        lake, _ = timed(
            lambda: export_lake([sample], str(folder / f"lake{count}"), "x", where=str(count))
        )
        shutil.rmtree(folder / f"lake{count}")
        events = size * wanted.events / 1e6
        speeds = [
            events / each for took in (plain, lake) for each in (took.seconds, took.cpu_seconds)
        ]
        cells = " | ".join(f"{speed:.2f}" for speed in speeds)
        return f"| {count} | {cells} |", (plain.seconds + lake.seconds) / size

    # The most at first: fewer would leave their memory behind in this process, which one process
    #     is.
    scaling = {most: row(most)}
    others = size * scaling[most][1] * sum(most / count for count in counts[:-1])
    fits = int(max(0.0, (end - time.monotonic() - others) * 0.8) / scaling[most][1])
    ranks = max(min(wanted.ranks, fits), size)
    say(f"{ranks} ranks on {most} processes, of {wanted.ranks} wanted")
    source = job(folder / "source", two, ranks)
    plain, found = timed(lambda: summarised(source, most))
    right = {rank for one in found.differences for rank in one.ranks} == set(
        range(LEAKING - 1, ranks, LEAKING)
    )
    say(f"found {[(one.ranks[:3], one.cause) for one in found.differences]}")
    mine, child = memory_mib()
    say("the same into a lake")
    lake = folder / "lake"
    written, done = timed(lambda: export_lake([source], str(lake), "x", where=str(most)))
    bytes_ = sum(path.stat().st_size for path in lake.rglob("*.parquet"))
    say("asking the lake")
    answer, again = timed(lambda: compare_files([lake]))
    same = [(one.ranks, one.cause, one.bytes) for one in again.differences] == [
        (one.ranks, one.cause, one.bytes) for one in found.differences
    ]
    asked = {
        name: timed(lambda text=text: Lake(lake).sql(text))[0].seconds
        for name, text in QUESTIONS.items()
    }
    few = read_lake(Lake(lake)).summaries
    many = [replace(few[rank % len(few)], rank=rank) for rank in range(LARGEST)]
    large, _ = timed(lambda: compare(many))
    here, largest = memory_mib()

    def estimate(seconds: float, ranks_wanted: int) -> str:
        return f"{seconds / ranks * ranks_wanted / 60:.1f} minutes"

    for count in counts[:-1]:
        scaling[count] = row(count)
    events = ranks * wanted.events
    print(
        f"{ranks:,} ranks of {wanted.events:,} events, {most} processes on {os.cpu_count()} cores:\n"
    )
    print("| | figure | |\n|---|---|---|")
    for what, took in (("comparing the ranks", plain), ("writing them into a lake", written)):
        speed = f"{events / took.seconds / 1e6:.2f} million events a second, {took.seconds / 60:.1f} minutes"
        print(f"| {what} | {speed} | measured |")
    if ranks < wanted.ranks:
        print(
            f"| the same of {wanted.ranks:,} ranks | {estimate(plain.seconds, wanted.ranks)} | extrapolated |"
        )
        print(f"| … into a lake | {estimate(written.seconds, wanted.ranks)} | extrapolated |")
    print(
        f"| the ranks that leak are named, and no other | {'yes' if right else 'NO'} | of {ranks // LEAKING:,} |"
    )
    print(
        f"| the lake gives the same answer | {'yes' if same else 'NO'}, in {answer.seconds:.1f} s | measured |"
    )
    for name, seconds in asked.items():
        print(f"| in SQL: {name} | {seconds:.2f} s | measured |")
    print(
        f"| size of the lake | {bytes_ / max(1, done.events):.2f} bytes an event, {bytes_ / 1e9:.2f} GB | measured |"
    )
    print(
        f"| memory: this process while it compares, the largest worker | {mine}, {child} MiB | measured |"
    )
    print(f"| … and with all that follows | {here}, {largest} MiB | measured |")
    print(
        f"| comparing {LARGEST:,} summaries of {len(few[0].lines)} lines | {large.seconds:.1f} s | measured |"
    )
    print(
        f"| {LARGEST:,} ranks: compare, lake | {estimate(plain.seconds, LARGEST)},"
        f" {estimate(written.seconds, LARGEST)} | extrapolated |"
    )
    print(
        "\n| processes | compare: million events a second | … a CPU second | lake: … a second | … a CPU second |"
    )
    print("|---|---|---|---|---|")
    print("\n".join(scaling[count][0] for count in counts))


if __name__ == "__main__":
    main()
