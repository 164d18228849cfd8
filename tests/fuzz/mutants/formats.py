"""Formats: how a mutant of each is written into a folder, and what the verbs are asked about it."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from mutants import seeds
from mutants.values import HOSTILE_TEXTS, NUMBERS, as_json, damaged, deepened, mutated

Arguments = list[str]
_DAMAGED_SHARE = 0.1
EXPORTS = ("perfetto", "chrome", "speedscope", "flamegraph", "csv", "parquet", "tensorboard")
RECORDING_VERBS: tuple[Arguments, ...] = (
    ["explain", "{file}"],
    ["explain", "{file}", "--json"],
    ["explain", "{file}", "--by", "module", "--at", "end"],
    ["explain", "{file}", "--format", "markdown"],
    ["leaks", "{file}"],
    ["leaks", "{file}", "--json"],
    ["replay", "{file}", "--conf", "expandable_segments:True"],
    ["replay", "{file}", "--json", "--cap", "1GiB"],
    ["tune", "{file}", "--cap", "2GiB"],
    ["diff", "{file}", "{other}"],
    ["diff", "{other}", "{file}", "--json"],
    ["check", "{file}", "--budget", "{budget}"],
    ["check", "{file}", "--budget", "new.toml", "--update"],
    ["ranks", "{file}", "{other}"],
    ["ranks", "{file}", "--json"],
    ["view", "{file}", "-o", "page.html"],
    ["view", "{file}", "{other}", "-o", "page.html"],
    *(["export", "{file}", "--to", form, "-o", f"out.{form}"] for form in EXPORTS),
)
TRACE_VERBS: tuple[Arguments, ...] = (
    ["explain", "{file}"],
    ["explain", "{file}", "--json"],
    ["explain", "{file}", "--format", "markdown"],
    ["view", "{file}", "-o", "page.html"],
    ["leaks", "{file}"],
)
FLIGHT_VERBS: tuple[Arguments, ...] = (
    ["explain", "{file}"],
    ["explain", "{file}", "--json"],
    ["ranks", "{file}"],
    ["ranks", ".", "--json"],
    ["view", ".", "-o", "page.html"],
    ["ranks", ".", "--html", "ranks.html"],
)
LOG_VERBS: tuple[Arguments, ...] = (
    ["explain", "{file}"],
    ["explain", "{file}", "--json"],
    ["explain", "{file}", "--format", "markdown"],
    ["explain", "{other}", "--log", "{file}"],
)
LAKE_VERBS: tuple[Arguments, ...] = (
    ["ranks", "lake"],
    ["ranks", "lake", "--json"],
    ["ranks", "lake", "--html", "ranks.html"],
    ["ranks", "lake", "--sql", "SELECT * FROM ranks"],
)
BUDGET_VERBS: tuple[Arguments, ...] = (
    ["check", "{other}", "--budget", "{file}"],
    ["check", "{other}", "--budget", "{file}", "--json"],
    ["check", "{other}", "--budget", "{file}", "--format", "github"],
    ["check", "{other}", "--budget", "{file}", "--format", "markdown"],
    ["check", "{other}", "--budget", "{file}", "--update"],
)
JOB_VERBS: tuple[Arguments, ...] = (
    ["ranks", "."],
    ["ranks", ".", "--json"],
    ["view", ".", "-o", "page.html"],
    ["export", ".", "--to", "lake/"],
)


def _write(path: Path, data: bytes, random: Random) -> None:
    path.write_bytes(damaged(data, random) if random.random() < _DAMAGED_SHARE else data)


def write_trace(folder: Path, random: Random) -> str:
    """A trace of the profiler."""
    _write(folder / "trace.json", as_json(mutated(random.choice(seeds.traces()), random)), random)
    return "trace.json"


def write_flight(folder: Path, random: Random) -> str:
    """A flight record as JSON or pickle, beside a second one of the same job."""
    first, second = random.sample(seeds.flights(), 2)
    pickled = random.random() < 0.5
    dump: Callable[[Any], bytes] = pickle.dumps if pickled else as_json
    for rank, value in enumerate((mutated(first, random), second)):
        try:
            data = dump(value)
        except (RecursionError, UnicodeEncodeError):
            data = as_json(value)
        _write(folder / f"nccl_trace_rank_{rank}", data, random)
    shutil.copy(seeds.DATA / "captured" / "steps.vram", folder / "rank0.vram")
    return "nccl_trace_rank_0"


def write_log(folder: Path, random: Random) -> str:
    """A log with an error in it."""
    text = random.choice(seeds.texts())
    words = text.split(" ")
    for _ in range(random.choice((0, 1, 2, 5))):
        at = random.randrange(len(words))
        words[at] = random.choice(
            (*HOSTILE_TEXTS, *map(str, NUMBERS), words[at] * 3, words[at] + "\n", "9" * 400)
        )
    traceback = 'Traceback (most recent call last):\n  File "/srv/train.py", line 12, in step\n    loss.backward()\n'
    text = traceback * random.choice((0, 1, 1, 40)) + " ".join(words) * random.choice((1, 1, 1, 30))
    _write(folder / "train.log", text.encode("utf-8", "surrogatepass"), random)
    return "train.log"


def write_members(folder: Path, random: Random) -> str:
    """A recording whose parts beside the snapshot are not as vramlens writes them."""
    parts = random.choice(seeds.members())
    target = random.choice([name for name in parts if name != "snapshot.pickle"])
    with zipfile.ZipFile(
        folder / "rank0.vram", "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as archive:
        for name, value in parts.items():
            is_bytes = isinstance(value, bytes)
            if name == target:
                archive.writestr(
                    name, damaged(value, random) if is_bytes else as_json(mutated(value, random))
                )
            else:
                archive.writestr(name, value if is_bytes else as_json(value))
    if random.random() < _DAMAGED_SHARE:
        _write(folder / "rank0.vram", (folder / "rank0.vram").read_bytes(), random)
    return "rank0.vram"


def write_snapshot(folder: Path, random: Random) -> str:
    """A bare snapshot."""
    value = mutated(random.choice(seeds.snapshots()), random)
    try:
        data = pickle.dumps(value, random.choice((2, 3, 4, 5)))
    except (RecursionError, UnicodeEncodeError):
        data = pickle.dumps(seeds.snapshots()[0])
    _write(folder / "rank0.pickle", data, random)
    return "rank0.pickle"


def write_budget(folder: Path, random: Random) -> str:
    """A budget file."""
    lines: list[str] = []
    _toml(mutated(seeds.BUDGET, random), (), lines)
    if random.random() < 0.2:
        random.shuffle(lines)
    text = deepened("\n".join(lines))
    _write(folder / "vram.toml", text.encode("utf-8", "surrogatepass"), random)
    return "vram.toml"


def _toml(table: Any, path: tuple[str, ...], lines: list[str]) -> None:
    """Lines of TOML; what TOML has no word for becomes JSON, which it mostly takes."""
    if not isinstance(table, dict):
        lines.append(f"{'.'.join(path) or 'x'} = {json.dumps(table)}")
        return
    if path:
        lines.append("[" + ".".join(json.dumps(key) for key in path) + "]")
    for key, value in table.items():
        if not isinstance(value, dict):
            lines.append(f"{json.dumps(key)} = {json.dumps(value)}")
    for key, value in table.items():
        if isinstance(value, dict) and len(path) < 20:
            _toml(value, (*path, str(key)), lines)


def write_job(folder: Path, random: Random) -> str:
    """A folder of ranks under names that no launcher gives, with an error file."""
    names = (
        "rank{}.vram",
        "r{}.vram",
        "rank[{}].vram",
        "run[1]/rank{}.vram",
        "x\x1b[31m{}.vram",
        "rank{}.pickle",
    )
    numbers = ("0", "1", "2", "00003", "9999999", "999999", "4294967295", "-1")
    for _ in range(random.choice((1, 2, 3))):
        path = folder / random.choice(names).format(random.choice(numbers))
        path.parent.mkdir(exist_ok=True)
        source = (
            seeds.DATA / "captured" / f"{random.choice(('steps', 'graphs', 'oom_forward'))}.vram"
        )
        if path.suffix == ".pickle":
            path.write_bytes(pickle.dumps(random.choice(seeds.snapshots())))
        else:
            path.write_bytes(source.read_bytes())
    attempt = folder / "attempt_0" / random.choice(numbers)
    attempt.mkdir(parents=True)
    _write(attempt / "error.json", as_json(mutated(seeds.ERROR, random)), random)
    return "."


FORMATS: dict[str, tuple[Callable[[Path, Random], str], tuple[Arguments, ...]]] = {
    "trace": (write_trace, TRACE_VERBS),
    "flight": (write_flight, FLIGHT_VERBS),
    "log": (write_log, LOG_VERBS),
    "members": (write_members, RECORDING_VERBS),
    "snapshot": (write_snapshot, RECORDING_VERBS),
    "budget": (write_budget, BUDGET_VERBS),
    "job": (write_job, JOB_VERBS),
}
