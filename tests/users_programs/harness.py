"""Small programs run plain and under vramlens, on several Pythons: what differs is a fault of
vramlens.

A program is one entry of programs/*.txt::

    #### name needs=torch,numpy modes=run,leaks python=3.12 stdin=two\\nlines args=a,b by=-m
    signal=SIGTERM its text
    ## file pkg/__init__.py
    another file's text

``needs``: modules without which it is skipped. ``modes``: instead of all that make sense for it.
    ``by``: what is run in
the place of ``train.py``: ``-m,pkg`` or a file. ``open``: nothing is compared but the exit code and
    that it ends.
``quiet``: state.py's facts are not allocated at its end.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import vramlens

HERE = Path(__file__).parent
_LIMIT_S = 60.0
_FACTOR, _MORE_CPU_S = 3.0, 6.0
"""CPU seconds that a program may take under vramlens: so many times its own, and so many more."""
_MORE_BYTES = 400 << 20
_OWN_LINE = re.compile(r"^vramlens: ")
_OWN_FRAME = re.compile(r'\s*File "(?:[^"]*/vramlens/[^"]*|<frozen runpy>|[^"]*/runpy\.py)"')
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_TIME_AND_PROCESS = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+|[WIE]\d{4} \d\d:\d\d:\d\d\.\d+ \d+"
)
_PREFIX = {
    "install": "import vramlens; vramlens.install('out')",
    "record": "import contextlib, vramlens; _block = contextlib.ExitStack(); "
    "_block.enter_context(vramlens.record('out/block'))",
}
_SUFFIX = {"record": "_block.close()"}
_TEST = "import runpy\ndef test_it():\n    runpy.run_path('train.py', run_name='program')\n"
_OPTIONS = {"run": [], "leaks": ["--leaks"], "profile": ["--profile", "--steps", "1:2"]}
MODES = ("run", "leaks", "profile", "install", "record", "guard", "pytest")
_UNDER_EVERY = MODES[:5]
_GUARDED = {
    False: "def take_step(model, optimizer, batch, loss_fn):\n"
    "    optimizer.zero_grad(); loss = loss_fn(model, batch); loss.backward(); optimizer.step(); return loss.detach()\n",
    True: "import vramlens\n_guards = {}\ndef take_step(model, optimizer, batch, loss_fn):\n"
    "    made = _guards.setdefault(id(model), vramlens.guard(model, optimizer))\n    return made.step(batch, loss_fn)\n",
}


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name, text, files: what it is called, its text, and other files beside it.
        options: what its header says.
    """

    name: str
    text: str
    files: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes in which it makes sense."""
        if "modes" in self.options:
            return tuple(self.options["modes"].split(","))
        more = ("pytest",) if "pytest" in self.options else ()
        return (*_UNDER_EVERY, *(("guard",) if "take_step(" in self.text else ()), *more)

    @property
    def needs(self) -> list[str]:
        """The modules that it needs."""
        return [name for name in self.options.get("needs", "").split(",") if name]


@dataclass(frozen=True)
class Outcome:
    """What one run did."""

    status: int
    stdout: str
    stderr: str
    cpu_s: float
    peak_bytes: int
    ended: bool


@dataclass(frozen=True)
class Result:
    """One program in one mode on one Python; ``faults`` is empty where it is as plain."""

    python: str
    program: str
    mode: str
    faults: tuple[str, ...]


def read_programs() -> list[Program]:
    """All programs, in the order of the files."""
    programs = []
    for path in sorted((HERE / "programs").glob("*.txt")):
        for part in re.split(r"(?m)^#### ", path.read_text(encoding="utf-8"))[1:]:
            head, _, body = part.partition("\n")
            name, *words = head.split(" ")
            text, *others = re.split(r"(?m)^## file ", body)
            files = dict(other.split("\n", 1) for other in others)
            options = {
                key: value for key, _, value in (word.partition("=") for word in words if word)
            }
            programs.append(Program(name, text, files, options))
    assert len({program.name for program in programs}) == len(programs)
    return programs


class Harness:
    """Runs programs on one Python."""

    def __init__(self, python: str, folder: Path) -> None:
        self._python, self._folder = python, folder
        facts = "import sys, importlib.util as u; print('%d.%d' % sys.version_info[:2])\n"
        facts += "for n in sys.argv[1:]: print(n, u.find_spec(n) is not None)"
        asked = {name for program in read_programs() for name in program.needs} | {
            "numpy",
            "rich",
            "psutil",
            "pytest",
        }
        asked.add("vramlens")
        bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [python, "-c", facts, *asked], env=bare, capture_output=True, text=True, check=True
        )
        self.version, *rows = done.stdout.splitlines()
        self.modules = {row.split()[0] for row in rows if row.endswith("True")}
        # Where it is not installed, that of the Python that runs this.
        self._path = "" if "vramlens" in self.modules else str(Path(vramlens.__path__[0]).parent)

    @property
    def can_run(self) -> bool:
        """Whether what vramlens needs is there."""
        return {"numpy", "rich", "psutil"} <= self.modules

    def can_try(self, program: Program) -> bool:
        """Whether this Python has what a program needs."""
        least = tuple(map(int, program.options.get("python", "3.10").split(".")))
        return (
            set(program.needs) <= self.modules and tuple(map(int, self.version.split("."))) >= least
        )

    def compare(self, program: Program, modes: Sequence[str]) -> Iterator[Result]:
        """How it runs in each of these modes, beside how it runs plain."""
        wanted = [mode for mode in modes if mode in program.modes]
        if not wanted or not self.can_try(program):
            return
        plain: dict[str, Outcome] = {}
        for mode in wanted:
            if mode == "pytest" and "pytest" not in self.modules:
                continue
            like = "pytest" if mode == "pytest" else "plain"
            if like not in plain:
                plain[like] = self._run(program, like, is_plain=True)
            outcome = self._run(program, mode, is_plain=False)
            faults = tuple(_faults(program, plain[like], outcome, mode))
            yield Result(self.version, program.name, mode, faults)

    def _run(self, program: Program, mode: str, *, is_plain: bool) -> Outcome:
        # The same name for all: paths are in tracebacks. One program after the other in its own
        #     folder.
        folder = self._folder / f"{self.version}-{program.name}" / "job"
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, content in {"train.py": _text(program, mode), **program.files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
        shutil.copy(HERE / "state.py", folder / "state.py")
        (folder / "test_it.py").write_text(_TEST)
        try:
            return _measured(
                self._command(program, mode, is_plain=is_plain), folder, program, self._path
            )
        finally:
            shutil.rmtree(folder.parent, ignore_errors=True)

    def _command(self, program: Program, mode: str, *, is_plain: bool) -> list[str]:
        words = [word for word in program.options.get("by", "train.py").split(",") if word]
        words += [word for word in program.options.get("args", "").split(",") if word]
        if mode == "pytest":
            plugin = ["-p", "vramlens.pytest_plugin", "--vramlens"] if not is_plain else []
            return [
                self._python,
                "-m",
                "pytest",
                "-q",
                "-s",
                "-p",
                "no:cacheprovider",
                *plugin,
                "test_it.py",
            ]
        if mode in _OPTIONS and not is_plain:
            return [self._python, "-m", "vramlens", "run", *_OPTIONS[mode], "-o", "out", *words]
        return [self._python, *words]


def _text(program: Program, mode: str) -> str:
    """The program as it is written for a mode: one line before it, and the facts of its end."""
    lines = [f"import random; random.seed(1); {_PREFIX.get(mode, 'pass')}"]
    if "take_step(" in program.text:
        lines.append(_GUARDED[mode == "guard"].rstrip("\n"))
    lines.append(program.text.rstrip("\n"))
    lines.append(_SUFFIX.get(mode, "pass"))
    if "quiet" not in program.options:
        lines.append("if __name__ == '__main__': import state; state.tell()")
    return "\n".join(lines) + "\n"


def _measured(command: list[str], folder: Path, program: Program, path: str) -> Outcome:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VRAMLENS", "PYTEST"))
    }
    environment |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    with (
        open(folder.parent / "out.txt", "wb+") as out,
        open(folder.parent / "err.txt", "wb+") as errors,
    ):
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(program.options.get("stdin", "").replace("\\n", "\n").encode())
        process.stdin.close()
        is_late = threading.Event()
        timer = threading.Timer(
            _LIMIT_S, lambda: (is_late.set(), os.killpg(process.pid, signal.SIGKILL))
        )
        timer.start()
        if "signal" in program.options:
            _send(process.pid, program.options["signal"], folder)
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        texts = [file.read().decode("utf-8", "backslashreplace") for file in (out, errors)]
    cpu_s = usage.ru_utime + usage.ru_stime
    return Outcome(process.returncode, *texts, cpu_s, usage.ru_maxrss * 1024, not is_late.is_set())


def _send(pid: int, name: str, folder: Path) -> None:
    """Sends a signal as soon as the program says that it is ready, by a file of that name."""
    end = time.monotonic() + _LIMIT_S
    while not (folder / "ready").exists() and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(pid, signal.Signals[name])


def _faults(program: Program, plain: Outcome, outcome: Outcome, mode: str) -> Iterator[str]:
    if outcome.status != plain.status:
        yield f"exit code {outcome.status}, plain {plain.status}: {_last(outcome.stderr)}"
    if not outcome.ended or not plain.ended:
        yield "it did not end" if plain.ended else "it does not end plain either"
    if "open" not in program.options:
        is_pytest = mode == "pytest"
        yield from _difference(
            "standard output", _kept(plain.stdout, is_pytest), _kept(outcome.stdout, is_pytest)
        )
        if mode in (
            "leaks",
            "guard",
            "profile",
        ):  # they print reports, and PyTorch's profiler lines of its own
            printed = _kept(outcome.stderr, is_pytest)
            missing = [line for line in _kept(plain.stderr, is_pytest) if line not in printed]
            if missing:
                yield f"standard error lacks {missing[0]!r}"
        else:
            yield from _difference(
                "standard error", _kept(plain.stderr, is_pytest), _kept(outcome.stderr, is_pytest)
            )
    if outcome.cpu_s > _FACTOR * plain.cpu_s + _MORE_CPU_S:
        yield f"{outcome.cpu_s:.1f} s of CPU, plain {plain.cpu_s:.1f} s"
    if outcome.peak_bytes > plain.peak_bytes + _MORE_BYTES:
        yield f"{outcome.peak_bytes >> 20} MiB at its peak, plain {plain.peak_bytes >> 20} MiB"


def _kept(text: str, is_pytest: bool) -> list[str]:
    """Lines that are the program's: not vramlens's own, and not pytest's timing."""
    text = _TIME_AND_PROCESS.sub("", _ADDRESS.sub("0x", text))
    lines = [line for line in text.splitlines() if not _OWN_LINE.match(line)]
    lines = list(_without_our_frames(lines))
    if is_pytest:
        lines = [re.sub(r" in [0-9.]+s", "", line) for line in lines]
        lines = [line for line in lines if "vramlens" not in line and line]
    return lines


def _without_our_frames(lines: list[str]) -> Iterator[str]:
    """A traceback's lines without the frames of what runs the program: vramlens, or Python's own
    runpy.
    """
    is_in_ours = False
    for line in lines:
        if line.lstrip().startswith('File "'):
            is_in_ours = bool(_OWN_FRAME.match(line))
        elif not line.startswith("    "):
            is_in_ours = False
        if not is_in_ours:
            yield line


def _difference(where: str, plain: list[str], now: list[str]) -> Iterator[str]:
    for line, other in zip(plain, now, strict=False):
        if line != other:
            yield f"{where}: {other!r}, plain {line!r}"
            return
    if len(plain) != len(now):
        longer = now if len(now) > len(plain) else plain
        extra = longer[min(len(plain), len(now))]
        yield f"{where}: {'more' if longer is now else 'less'}: {extra!r}"


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2][:200]


def compare_all(
    harnesses: Sequence[Harness], programs: Sequence[Program], modes: Sequence[str], jobs: int
) -> list[Result]:
    """All programs in all modes on all Pythons, some at a time; progress on standard error."""
    from concurrent.futures import ThreadPoolExecutor

    def compared(pair: tuple[Harness, Program]) -> list[Result]:
        harness, program = pair
        results = list(harness.compare(program, modes))
        for result in results:
            for fault in result.faults:
                print(
                    f"{result.python} {result.mode:8} {result.program}: {fault}",
                    file=sys.stderr,
                    flush=True,
                )
        return results

    pairs = [(harness, program) for program in programs for harness in harnesses]
    with ThreadPoolExecutor(jobs) as pool:
        return [result for results in pool.map(compared, pairs) for result in results]
