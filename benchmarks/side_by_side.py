"""Time reading and analysing one snapshot: pickle, PyTorch's own viewer, other tools, vramlens.

    python benchmarks/side_by_side.py FILE.pickle[.xz] [--mosaic CHECKOUT] [--ours COMMAND] [--runs
    5]

Every tool runs as a fresh process on the same uncompressed file with a warm cache, one after the
other, `--runs` rounds of that; a first round is not counted and yields what each says the peak is.
A tool that is missing or fails is named below the table. README.md says what each row means.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import lzma
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

LOAD = "import pickle, sys; snapshot = pickle.load(open(sys.argv[1], 'rb'))"
NO_COLLECTOR = "import gc; gc.disable(); "
OURS = "python -m vramlens explain FILE --json"
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass
class Run:
    seconds: float
    rss_bytes: int
    code: int
    output: str
    error: str


@dataclass(frozen=True)
class Tool:
    """A row: the command to time; "FILE" and "OUT" in it stand for the snapshot and an empty
    folder.
    """

    name: str
    command: list[str]
    peak: Callable[[Run], str]  # of the command, or of `then` where there is one
    then: list[str] = field(default_factory=list)  # not timed: asks the result for the peak
    python_path: str = ""
    missing: str = ""  # why it cannot run


def run(command: list[str], snapshot: Path, python_path: str, out: Path) -> Run:
    """One fresh process: wall time from start to reaped, and the kernel's own peak of its
    resident memory.
    """
    words = [word.replace("FILE", str(snapshot)).replace("OUT", str(out)) for word in command]
    path = os.pathsep.join(filter(None, [python_path, os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": path}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        start = time.perf_counter()
        child = subprocess.Popen(words, stdout=output, stderr=error, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for stream in (output, error):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return Run(seconds, usage.ru_maxrss * MAXRSS_UNIT, child.returncode, *texts)


def bytes_text(count: float) -> str:
    return f"{round(count):,}"


def mosaic_peak(done: Run) -> str:
    match = re.search(r"Overall Peak Memory Usage.*: ([\d.]+) GiB", done.error)
    return bytes_text(float(match[1]) * 2**30) if match else "?"


def pt_snap_peak(done: Run) -> str:
    return bytes_text(json.loads(done.output)["peak"]["peak_active"])


def our_peak(done: Run) -> str:
    return bytes_text(json.loads(done.output)["peak"]["requested_bytes"])


def versioned(name: str, package: str) -> tuple[str, str]:
    """The row's name with the installed version, and why it is missing."""
    try:
        return f"{name} {importlib.metadata.version(package)}", ""
    except importlib.metadata.PackageNotFoundError:
        return name, "not installed"


def tools(mosaic: Path | None, ours: str) -> list[Tool]:
    """The rows in the table's order; the first is what the others are compared with."""
    python = sys.executable
    torch, no_torch = versioned("torch", "torch")
    pt_snap, no_pt_snap = versioned("pt-snap", "pt-snap-cli")
    spec = None if no_torch else importlib.util.find_spec("torch")
    viewer = (
        Path(spec.origin).parent / "cuda" / "_memory_viz.py" if spec and spec.origin else Path()
    )
    snap = [python, "-m", "pt_snap_cli.cli"]
    return [
        Tool("`pickle.load`", [python, "-c", LOAD, "FILE"], lambda _: "–"),
        Tool(
            "`pickle.load`, collector off",
            [python, "-c", NO_COLLECTOR + LOAD, "FILE"],
            lambda _: "–",
        ),
        Tool(
            f"{torch} `_memory_viz trace_plot`",
            [python, str(viewer), "trace_plot", "FILE", "-o", "OUT/page.html"],
            lambda _: "a picture",
            missing=no_torch,
        ),
        Tool(
            "mosaic `get_memory_usage_peak`",
            [python, "-m", "mosaic.cmd.get_memory_usage_peak", "--snapshot", "FILE"],
            mosaic_peak,
            python_path=str(mosaic.resolve()) if mosaic else "",
            missing="" if mosaic else "no checkout named with --mosaic",
        ),
        Tool(
            f"{pt_snap} `import`",
            [*snap, "import", "FILE", "-o", "OUT", "--no-focus", "--json"],
            pt_snap_peak,
            then=[*snap, "report", "peak-memory", "OUT/snapshot.pickle.db", "--json"],
            missing=no_pt_snap,
        ),
        Tool(
            f"`{ours}`",
            [python if word == "python" else word for word in shlex.split(ours)],
            our_peak,
        ),
    ]


def warm_up(tool: Tool, snapshot: Path) -> str:
    """What the tool says the peak is. Raises RuntimeError with the reason if it cannot be run."""
    if tool.missing:
        raise RuntimeError(tool.missing)
    with tempfile.TemporaryDirectory() as folder:
        for command in filter(None, [tool.command, tool.then]):
            done = run(command, snapshot, tool.python_path, Path(folder))
            if done.code:
                last = (done.error.strip() or done.output.strip() or "no message").splitlines()[-1]
                absent = re.fullmatch(r".*No module named (\S+)", last)
                reason = (
                    f"not installed ({absent[1]})" if absent else f"exit code {done.code}: {last}"
                )
                raise RuntimeError(reason)
    return tool.peak(done)


def table(snapshot: Path, rows: list[Tool], rounds: int) -> list[str]:
    """The Markdown lines of the whole comparison."""
    peaks: dict[str, str] = {}
    skipped = []
    for tool in rows:
        try:
            peaks[tool.name] = warm_up(tool, snapshot)
        except (RuntimeError, ValueError, LookupError) as reason:
            skipped.append(f"- not timed: {tool.name}: {reason}")
    timed = [tool for tool in rows if tool.name in peaks]
    runs: dict[str, list[Run]] = {tool.name: [] for tool in timed}
    for _ in range(rounds):
        for tool in timed:
            with tempfile.TemporaryDirectory() as folder:
                runs[tool.name].append(run(tool.command, snapshot, tool.python_path, Path(folder)))
    size = snapshot.stat().st_size
    base = statistics.median(one.seconds for one in runs[timed[0].name])
    lines = [
        "| whole process | median s | min–max s | × `pickle.load` | peak RSS, × file | peak bytes it tells |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for tool in timed:
        seconds = [one.seconds for one in runs[tool.name]]
        middle = statistics.median(seconds)
        rss = statistics.median(one.rss_bytes for one in runs[tool.name]) / size
        spread = f"{min(seconds):.2f}–{max(seconds):.2f}"
        cells = [
            tool.name,
            f"{middle:.2f}",
            spread,
            f"{middle / base:.2f}",
            f"{rss:.1f}",
            peaks[tool.name],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", *skipped] if skipped else lines


def unpack(source: Path, target: Path) -> None:
    with lzma.open(source) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)


def truth(source: Path) -> str:
    """What torch.cuda.memory_stats() said in the recorded process, if a .json beside the
    recording has it.
    """
    notes = source.with_name(source.name.removesuffix(".xz").removesuffix(".pickle") + ".json")
    with contextlib.suppress(OSError, ValueError, LookupError):
        stats = json.loads(notes.read_text())["stats"]
        names = ("requested", "allocated", "active")
        told = ", ".join(f"{name} {bytes_text(stats[f'{name}_bytes.all.peak'])}" for name in names)
        return f"; `memory_stats()` peaks of the recorded process: {told}"
    return ""


def main() -> None:
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=keep_lines)
    parser.add_argument("file", type=Path, help="a snapshot, .pickle or .pickle.xz")
    parser.add_argument("--mosaic", type=Path, help="a checkout of facebookresearch/mosaic")
    parser.add_argument(
        "--ours", default=OURS, help="command of the last row (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=5, help="counted rounds (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder) / "snapshot.pickle"
        if args.file.suffix == ".xz":  # in a process of its own: see README.md, "Memory"
            worker = get_context("spawn").Process(target=unpack, args=(args.file, snapshot))
            worker.start()
            worker.join()
        else:
            snapshot.symlink_to(args.file.resolve())
        size = snapshot.stat().st_size
        machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
        print(f"{args.file.name}, {size:,} bytes{truth(args.file)}.")
        print(f"{args.runs} alternating runs; {machine}, Python {platform.python_version()}.\n")
        print("\n".join(table(snapshot, tools(args.mosaic, args.ours), args.runs)))


if __name__ == "__main__":
    main()
