"""What attaching does to programs, and how often its leak report is right.

    python benchmarks/attach.py stress [--attaches 200] [--python PYTHON...]
    python benchmarks/attach.py leaks [--sample 40]

``stress`` attaches to running programs again and again, at random moments: a training run with a
thread in C, a data loader with workers, asyncio with inference in a thread, and small programs
without PyTorch. It counts crashes, compares losses and random numbers with those of a program
left alone, and prints the pauses; exit code 1 where a program was not entered, or noticed.
``leaks`` runs programs of ``tests/leaks/wild`` as plain processes, attaches at step 18, and counts
owners and lines that are right. These programs have some 40 rounds: so the 18th lasts until
vramlens is in.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from leaks.wild import Wild, wild_programs  # noqa: E402
from vramlens.attach.attachment import Attachment, AttachRequest, attach  # noqa: E402
from vramlens.errors import VramlensError  # noqa: E402

TORCH_PROGRAM = ROOT / "benchmarks" / "attach_program.py"
SMALL_PROGRAM = ROOT / "tests" / "attach" / "small_program.py"
TORCH_MODES = ("threads", "loader", "asyncio")
SMALL_MODES = ("works", "reads", "asyncio", "joins")
_WATCHED_STEPS = 18
_WATCHED_SECONDS = 60.0


@dataclass
class Outcome:
    """What came of attaching to some programs."""

    attaches: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    crashes: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def is_harmless(self) -> bool:
        """Whether every program was entered, and none noticed."""
        return not (self.crashes or self.differences or self.refused)

    def add(self, attachment: Attachment, seconds: float) -> None:
        """Counts one attach."""
        pause = attachment.answer.get("pause") or {}
        self.attaches += 1
        self.ways[attachment.way] += 1
        self.pauses.append(float(pause.get("longest_s", 0.0)))
        self.stops.append(attachment.stopped_s)
        self.seconds.append(seconds)


class Program:
    """A program that runs until its standard input is closed."""

    def __init__(self, python: str, *words: str) -> None:
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [python, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        self.is_ready = self.process.stdout.readline() == "ready\n"

    def end(self) -> tuple[int, str]:
        """Its exit code and last words."""
        out, _ = self.process.communicate(timeout=120)
        return self.process.returncode, out


def stress(pythons: list[str], attaches: int, seed: int) -> Outcome:
    """Attaches so often in all, to each kind of program in turn."""
    chance = random.Random(seed)
    outcome = Outcome()
    programs = []
    for python in pythons:
        modes = [(str(SMALL_PROGRAM), mode) for mode in SMALL_MODES]
        if _has_torch(python):
            modes += [(str(TORCH_PROGRAM), mode) for mode in TORCH_MODES]
        programs += [(python, *mode) for mode in modes]
    each = max(attaches // len(programs), 1)
    for number, (python, script, mode) in enumerate(programs):
        count = each + (attaches - each * len(programs) if number == len(programs) - 1 else 0)
        _attach_often(Program(python, script, mode), max(count, 1), outcome, chance)
        print(f"{Path(python).parts[-3]} {mode}: {outcome.attaches} so far", flush=True)
    return outcome


def _attach_often(program: Program, count: int, outcome: Outcome, chance: random.Random) -> None:
    name = " ".join(map(str, program.process.args)) if program.process.args else ""
    for number in range(count):
        time.sleep(chance.random() * 0.1)
        request = AttachRequest() if number % 4 else AttachRequest("watch", steps=3, seconds=5.0)
        began = time.perf_counter()
        try:
            outcome.add(
                attach(program.process.pid, request, lambda _: None), time.perf_counter() - began
            )
        except VramlensError as error:
            outcome.refused[str(error)[:120]] += 1
        if program.process.poll() is not None:
            outcome.crashes.append(f"{name}: {program.process.returncode}")
            return
    code, out = program.end()
    if code:
        outcome.crashes.append(f"{name}: {code}")
        return
    _compare(name, json.loads(out.splitlines()[-1]), outcome)


def _compare(name: str, said: Any, outcome: Outcome) -> None:
    """Notes what differs from a program that was left alone, and what was left in it."""
    if isinstance(said, list):  # the state before and after
        before, after = said
    else:
        before, after = said["before"], said["after"]
        if said["losses"] != said["losses_alone"]:
            outcome.differences.append(f"{name}: other losses or random numbers")
    for key, value in before.items():
        if after[key] != value:
            outcome.differences.append(f"{name}: {key} was {value}, is {after[key]}"[:300])


def _has_torch(python: str) -> bool:
    search = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([python, "-c", search], check=False).returncode == 0


def print_outcome(outcome: Outcome) -> None:
    """Prints what came of it."""
    print(f"attaches {outcome.attaches}, ways {dict(outcome.ways)}")
    print(f"crashes {len(outcome.crashes)} {outcome.crashes}")
    print(f"refused {sum(outcome.refused.values())} {dict(outcome.refused)}")
    print(f"differences {len(outcome.differences)} {outcome.differences}")
    for name, values in (
        ("pause", outcome.pauses),
        ("stopped from outside", outcome.stops),
        ("whole attach", outcome.seconds),
    ):
        if len(values) > 1:
            parts = statistics.quantiles(values, n=20)
            print(
                f"{name}: p50 {statistics.median(values):.4f} s, p95 {parts[18]:.4f} s,"
                f" max {max(values):.4f} s"
            )


_WILD_RUNNER = """
import sys, time, types, ctypes
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
path, pace = sys.argv[1], float(sys.argv[2])
count = 0
def tick():
    global count
    count += 1
    if count == 18:
        sys.stderr.write("ready\\n")
        sys.stderr.flush()
        deadline = time.monotonic() + 30
        while "vramlens.attach.inside.step_watch" not in sys.modules and time.monotonic() < deadline:
            time.sleep(0.05)
    time.sleep(pace)
def done():
    sys.stdin.read()
module = types.ModuleType("__main__")
module.__file__ = path
sys.modules["__main__"] = module
module.__dict__.update(tick=tick, done=done)
exec(compile(open(path).read(), path, "exec"), module.__dict__)
"""


def leaks(sample: int, seed: int, jobs: int) -> None:
    """Prints how many leaks are found with the right owner and line."""
    programs = [program for program in wild_programs().values() if program.leaks]
    programs = [program for program in programs if program.owners != ("-",)]
    programs = [program for program in programs if not _needs_more(program)]
    chosen = random.Random(seed).sample(programs, min(sample, len(programs)))
    sums: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="attach") as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        results = pool.map(lambda program: _leak_of(program, Path(folder)), chosen)
        for program, right in zip(chosen, results, strict=True):
            sums["programs"] += 1
            sums.update(name for name, is_so in right.items() if is_so is True)
            if not (right["owner"] and right["line"]):
                print(f"{program.bundle}/{program.name}: {right}", flush=True)
    print(dict(sums))


def _needs_more(program: Wild) -> bool:
    """Whether a program needs a framework, or ends a step where nobody outside can see it."""
    return any(
        f"import {name}" in program.text or f"from {name}" in program.text
        for name in ("pandas", "lightning", "transformers", "accelerate", "torchmetrics")
    )


def _leak_of(program: Wild, folder: Path) -> dict[str, Any]:
    """What is right of the answer to one program: owner, line."""
    path = folder / f"{program.name}.py"
    path.write_text(program.text)
    process = subprocess.Popen(
        [sys.executable, "-c", _WILD_RUNNER, str(path), "0.3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
    )
    assert process.stderr is not None
    try:
        while "ready" not in (line := process.stderr.readline()):
            if not line:
                return {"owner": False, "line": False, "said": "the program ended early"}
        request = AttachRequest(
            "watch", steps=_WATCHED_STEPS, seconds=_WATCHED_SECONDS, pause_s=10.0
        )
        answer = attach(process.pid, request, lambda _: None).answer
    except VramlensError as error:
        return {"owner": False, "line": False, "said": str(error)}
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    report = answer.get("leaks") or {"leaks": []}
    alarms = [leak for leak in report["leaks"] if leak["verdict"] in ("proven", "likely")]
    owners = [leak["owner"] or {} for leak in alarms]
    named = [
        any(word in f"{owner.get('name')} {owner.get('source')}" for word in program.owners)
        for owner in owners
    ]
    return {
        "found": bool(alarms),
        "owner": any(named),
        "line": any(owner.get("line") in program.keeps for owner in owners),
        "said": [(leak["verdict"], (leak["owner"] or {}).get("name")) for leak in report["leaks"]],
        "notes": report.get("notes"),
        "steps": answer.get("steps"),
    }


def main() -> int:
    """Runs what was asked for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("stress", "leaks"))
    parser.add_argument("--attaches", type=int, default=200)
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.what == "stress":
        outcome = stress(arguments.python, arguments.attaches, arguments.seed)
        print_outcome(outcome)
        return 0 if outcome.is_harmless else 1
    leaks(arguments.sample, arguments.seed, arguments.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
