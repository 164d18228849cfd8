"""One process that runs mutants through the command line, and says what each came to."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from mutants import seeds
from mutants.formats import FORMATS, LAKE_VERBS, Arguments
from mutants.lakes import write_lake

MOST_SECONDS = 10
MOST_BYTES = 200_000_000
MOST_TIMES_THE_INPUT = 6
_INTERPRETER_BYTES = 70_000_000
"""What a process of the command line takes before it reads anything; here it is there before the
first mutant.
"""
_RECYCLED_BYTES = 350_000_000
"""From here on memory that is taken again would hide what a mutant takes: the process is
replaced.
"""
_MAKERS = FORMATS | {"lake": (write_lake, LAKE_VERBS)}
NAMES = tuple(_MAKERS)
_CODES = (0, 1, 2, 3)
_COLLECTS_EVERY = 16


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant.

    Attributes:
        index: its number.
        form: its format.
        arguments: the command line.
        fault: "" where all is well, else what kind of fault it is.
        detail: the innermost place of a traceback, or the figure.
        seconds, taken_bytes: of the processor, and of memory at most.
    """

    index: int
    form: str
    arguments: Arguments
    fault: str
    detail: str
    seconds: float
    taken_bytes: int


def run_mutant(seed: int, index: int, only: str | None = None) -> Outcome:
    """Makes a mutant in a folder of its own and runs one verb on it, here."""
    random = Random(f"{seed}:{index}")
    form = only or NAMES[index % len(NAMES)]
    make, verbs = _MAKERS[form]
    folder = Path(tempfile.mkdtemp(prefix="vramlens-mutant-"))
    before = os.getcwd()
    try:
        file = make(folder, random)
        (folder / "budget.toml").write_text('[budget]\npeak_allocated = "20 GiB"\n')
        words = {
            "file": file,
            "other": str(seeds.DATA / "captured" / "graphs.vram"),
            "budget": "budget.toml",
        }
        arguments = [word.format(**words) for word in random.choice(verbs)]
        os.chdir(folder)
        input_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return _run(index, form, arguments, input_bytes)
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def _run(index: int, form: str, arguments: Arguments, input_bytes: int) -> Outcome:
    from vramlens.cli.main import main

    outputs = io.StringIO(), io.StringIO()
    resident = _reset_peak()
    started = time.process_time()
    fault = detail = ""
    code: object = None
    try:
        with contextlib.redirect_stdout(outputs[0]), contextlib.redirect_stderr(outputs[1]):
            code = main(arguments)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "vramlens" in frame.filename]
        place = ours[-1] if ours else frames[-1]
        fault = "traceback"
        detail = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:80]!r}"
    seconds = time.process_time() - started
    taken = max(0, _peak() - resident)
    allowed = MOST_BYTES - _INTERPRETER_BYTES + MOST_TIMES_THE_INPUT * input_bytes
    if not fault:
        fault, detail = _judged(code, outputs[0].getvalue(), outputs[1].getvalue())
    if not fault and seconds > MOST_SECONDS:
        fault, detail = "slow", f"{seconds:.1f} s"
    if not fault and taken > allowed:
        fault, detail = "memory", f"{taken:,} bytes of {allowed:,}"
    return Outcome(index, form, arguments, fault, detail, seconds, taken)


def _judged(code: object, out: str, err: str) -> tuple[str, str]:
    """The fault in what was said, and where."""
    if code not in _CODES:
        return "exit code", repr(code)
    if "Traceback (most recent" in err:
        return "traceback", err.strip().splitlines()[-1][:120]
    if code == 3 and err.count("\n") > 1:
        return "several lines", err[:200]
    for text in (out, err):
        raw = next((at for at, letter in enumerate(text) if _is_raw(letter)), None)
        if raw is not None:
            return "raw escape", repr(text[max(0, raw - 40) : raw + 10])
    return "", ""


def _is_raw(letter: str) -> bool:
    code = ord(letter)
    return (
        (code < 32 and letter not in "\n\t")
        or 127 <= code < 160
        or letter in "\u202a\u202b\u202d\u202e\u2066\u2067"
    )


def _reset_peak() -> int:
    """Begins to measure the most memory anew; what is taken now, in bytes."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def serve(seed: int, indices: range, only: str | None) -> None:
    """Runs mutants and prints one line before and one after each, until memory makes a new
    process better.
    """
    import duckdb  # noqa: F401
    import rich.console  # noqa: F401

    channel = os.fdopen(os.dup(1), "w", buffering=1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for index in indices:
        print(json.dumps({"starts": index}), file=channel)
        print(json.dumps(asdict(run_mutant(seed, index, only))), file=channel)
        if index % _COLLECTS_EVERY == 0:
            gc.collect()
        if _status("VmRSS") > _RECYCLED_BYTES:
            return


if __name__ == "__main__":
    first, stop, step = map(int, sys.argv[2:5])
    serve(int(sys.argv[1]), range(first, stop, step), sys.argv[5] if len(sys.argv) > 5 else None)
