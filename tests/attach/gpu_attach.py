"""Attaches to training runs on a GPU and says whether all is as docs/attach.md promises.

PYTHONPATH=src python tests/attach/gpu_attach.py FOLDER [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("gpu_program.py")
_LEAKING_LINE = "self.seen_outputs.append(output)"
_IGNORED = {"descriptors"}
"""Of the program's state: compared within two, for PyTorch opens files of its own."""


class Run:
    """A program that runs."""

    def __init__(self, folder: Path, name: str, device: str, *words: str) -> None:
        self.name, self.out = name, folder / f"{name}.json"
        self._errors = (folder / f"{name}.err").open("w")
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        environment.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.out), device, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            cwd=folder,
        )

    def wait_until_ready(self) -> None:
        """Returns when the program trains."""
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def record(self) -> dict[str, Any]:
        """What it wrote at its end, which is now."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self._errors.close()
        return dict(json.loads(self.out.read_text())) if self.out.exists() else {}


def attach(run: Run, *words: str) -> tuple[int, str, str, float]:
    """The verb's exit code, answer, errors and seconds."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "vramlens", "attach", str(run.process.pid), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired as late:
        return -1, "", f"no answer in time: {late}", time.perf_counter() - began
    return done.returncode, done.stdout, done.stderr, time.perf_counter() - began


def main() -> None:
    """Runs all, prints a verdict, writes the answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    plain = Run(folder, "plain", arguments.device)
    asked = Run(folder, "asked", arguments.device)
    failing = Run(folder, "failing", arguments.device, "fail")
    for run in (asked, failing, plain):
        run.wait_until_ready()
    checks = Checks()
    look_and_watch(asked, folder, checks)
    code, text, errors, seconds = attach(failing, "--install", "-o", str(folder / "failure.vram"))
    (folder / "install.txt").write_text(text + errors)
    checks.append(("install", f"exit {code}, {seconds:.1f} s {errors.strip()[:200]}"))
    failing.record()
    failure = (folder / "failing.err").read_text()
    checks.append(("verdict in the failure", "recording of this failure" in failure))
    asked_record = asked.record()
    for name, outcome in compare(plain.record(), asked_record):
        checks.append((name, outcome))
    (folder / "verdict.json").write_text(json.dumps(checks, indent=1))


class Checks(list[tuple[str, object]]):
    """What was found, printed as it comes."""

    def append(self, check: tuple[str, object]) -> None:
        """Adds one, and prints it."""
        super().append(check)
        print(f"{check[0]}: {check[1]}", flush=True)


def look_and_watch(run: Run, folder: Path, checks: Checks) -> None:
    """A look and a watch of twenty steps, of one running program."""
    for name, words in (("look", ("--json",)), ("look_text", ())):
        code, text, errors, seconds = attach(run, *words)
        (folder / f"{name}.txt").write_text(text + errors)
        checks.append((name, f"exit {code}, {seconds:.1f} s {errors.strip()[:300]}"))
        if name == "look" and code == 0:
            answer = json.loads(text)
            checks.append(("  way, pause", f"{answer['entry']}, {answer['pause']}"))
            checks.append(("  devices", [gpu["device"] for gpu in answer["memory"]["gpus"]]))
            checks.append(("  names", [part["device"] for part in answer["names"]]))
            checks.append(("  fragmentation", str(answer["fragmentation"])[:200]))
    recording = folder / "watched.vram"
    code, text, errors, seconds = attach(run, "--steps", "20", "--json", "-o", str(recording))
    (folder / "watch.txt").write_text(text + errors)
    checks.append(("watch", f"exit {code}, {seconds:.1f} s {errors.strip()[:300]}"))
    if code == 0:
        answer = json.loads(text)
        leaks = (answer["leaks"] or {}).get("leaks", [])
        owners = [(leak["verdict"], leak["owner"], leak["bytes_per_step"]) for leak in leaks]
        lines = PROGRAM.read_text().splitlines()
        line = next(number for number, text in enumerate(lines, 1) if _LEAKING_LINE in text)
        named = [owner["line"] == line for _, owner, _ in owners if owner is not None]
        checks.append(("  leaking line named", any(named)))
        checks.append(("  leaks", str([(w, size) for w, _, size in owners])[:200]))
        checks.append(("  pause", answer["pause"]))
        checks.append(("  recording", recording.exists() and recording.stat().st_size))
    if recording.exists():
        done = subprocess.run(
            [sys.executable, "-m", "vramlens", "leaks", str(recording)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        (folder / "leaks_of_recording.txt").write_text(done.stdout + done.stderr)
        checks.append(("  vramlens leaks", (done.stdout or done.stderr).strip()[:160]))


def compare(plain: dict[str, Any], asked: dict[str, Any]) -> list[tuple[str, object]]:
    """Whether a program that was attached to did what it does alone, and what was left in it."""
    if not plain or not asked:
        return [("both programs ended well", False)]
    before, after = asked["before"], asked["after"]
    left = {
        name: (before[name], after[name])
        for name in before
        if before[name] != after[name] and name not in _IGNORED
    }
    steps = min(len(plain["losses"]), len(asked["losses"]))
    return [
        ("steps compared", steps),
        ("same losses and random numbers", plain["losses"][:steps] == asked["losses"][:steps]),
        ("left behind", left or "nothing"),
        ("descriptors", (before["descriptors"], after["descriptors"])),
        ("longest step alone", round(plain["longest_step_s"], 3)),
        ("longest step attached", round(asked["longest_step_s"], 3)),
        ("median step", (round(plain["median_step_s"], 4), round(asked["median_step_s"], 4))),
    ]


if __name__ == "__main__":
    main()
