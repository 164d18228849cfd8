"""SIGTERM under ``vramlens run``: a recording, and the death that it would have been; else as if
nothing watched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.installed import PYTHON_PATH
from support.programs import PLUG_IN, meta_of, recordings

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the native core handles it on Linux"
)

# A torch that is none starts at once; what happens to signals is the same.
STUB = {
    "torch/__init__.py": "from . import optim\nclass OutOfMemoryError(RuntimeError): pass\n",
    "torch/optim/__init__.py": "from . import optimizer\n",
    "torch/optim/optimizer.py": "register_optimizer_step_post_hook = lambda hook: None\n",
}
HEAD = PLUG_IN + "import ctypes, os, signal, sys, time, threading, torch\n"
HEAD += "from vramlens.capture.recording.recorder import Recorder; Recorder.mark_modules = lambda self: None\n"
READY = "print('ready', flush=True)\n"
QUICK = "import vramlens.capture.triggers.sigterm as t; t._WITHIN_S = 0.5\n"
# Reading restarts after a signal; PyDLL keeps the interpreter's lock.
IN_C = "ctypes.CDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)\n"
IN_C_WITH_THE_LOCK = "ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)\n"

PATIENCE_S = 40
"""What does not end at once sleeps for a minute: how quick it is on a free machine is measured
in benchmarks/.
"""


class Program:
    """A program under ``vramlens run``; several run at once."""

    def __init__(self, folder: Path, text: str, *options: str) -> None:
        for name, content in {**STUB, "train.py": HEAD + text}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vramlens", "run", *options, "-o", "out/run.vram", "train.py"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH, "PYTHONWARNINGS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._ends = threading.Thread(target=self._end)
        self.pid, self._out, self._began = self._process.pid, folder / "out", 0.0

    def terminate(self, *, times: int = 1, by: signal.Signals = signal.SIGTERM) -> Program:
        """Sends SIGTERM, or another signal, when what the program does after it has said that it
        is ready has begun.
        """
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == "ready\n", (said, self._process.communicate()[1])
        time.sleep(0.3)
        self._began = time.monotonic()
        for _ in range(times):
            os.kill(self.pid, by)
            time.sleep(0.3 if times > 1 else 0)
        self._ends.start()
        return self

    def _end(self) -> None:
        self._errors = self._process.communicate(timeout=300)[1]
        self._seconds = time.monotonic() - self._began

    def end(self) -> tuple[int, list[str], str, float]:
        """The exit status, the files that it left, its standard error and the seconds from the
        signal on.
        """
        self._ends.join()
        files = recordings(self._out) if self._out.exists() else []
        return self._process.returncode, files, self._errors, self._seconds


def several(folder: Path, programs: Sequence[tuple[str, tuple[str, ...]]]) -> list[Program]:
    """Programs and their options, each in a folder of its own, when all of them have been sent
    SIGTERM.
    """
    started = [
        Program(folder / str(number), text, *options)
        for number, (text, options) in enumerate(programs)
    ]
    return [each.terminate() for each in started]


def test_a_recording_is_written_then_the_process_dies_of_it(tmp_path: Path) -> None:
    texts = [
        IN_C.strip(),
        "while True: time.sleep(0)",
        "threading.Thread(target=ctypes.CDLL(None).pause).start()",
    ]
    programs = [(f"def waits():\n    {text}\ngpu.use()\n{READY}waits()\n", ()) for text in texts]
    for number, program in enumerate(several(tmp_path, programs)):
        status, files, errors, seconds = program.end()
        assert (status, files) == (-signal.SIGTERM, ["run.vram"])
        assert errors.startswith(f"vramlens: wrote {tmp_path}/{number}/out/run.vram (")
        assert errors.count("\n") == 1
        assert seconds < PATIENCE_S
        meta = meta_of(tmp_path / f"{number}/out/run.vram")
        assert meta["trigger"] == "sigterm"
        if number < 2:
            line = HEAD.count("\n") + 2
            assert meta["ending"] == f"SIGTERM, at {tmp_path}/{number}/train.py:{line} in waits"


def test_a_second_one_and_an_end_meanwhile_change_nothing(tmp_path: Path) -> None:
    slow = "gpu.snapshot = lambda old=gpu.snapshot: (time.sleep(1), old())[1]\ngpu.use()\n"
    texts = [f"{slow}{READY}while True: time.sleep(0)\n", f"{slow}{READY}time.sleep(0.6)\n"]
    programs = [
        Program(tmp_path / str(number), text).terminate(times=2)
        for number, text in enumerate(texts)
    ]
    for program in programs:
        status, files, errors, _ = program.end()
        assert (status, files, errors.count("wrote")) == (-signal.SIGTERM, ["run.vram"], 1)


def test_one_that_comes_while_the_end_is_written_waits_for_it(tmp_path: Path) -> None:
    """Another rank fails, this one raises in its collective, and the launcher ends it at once."""
    text = (
        "import vramlens.capture.recording.recorder as r\n"
        "write = r.write_recording\n"
        f"def slowly(*parts, **options): {READY.strip()}; time.sleep(2); write(*parts, **options)\n"
        "r.write_recording = slowly\n"
        "gpu.use()\nraise RuntimeError('connection closed by peer')\n"
    )
    status, files, errors, _ = Program(tmp_path, text).terminate().end()
    assert (status, files) == (-signal.SIGTERM, ["run.vram"])
    assert errors.count("vramlens: wrote ") == 1
    assert meta_of(tmp_path / "out/run.vram")["trigger"] == "error"


def test_it_is_over_within_the_bound(tmp_path: Path) -> None:
    late = (
        "import vramlens.capture.recording.recording_file as r\n"
        "class Late(r.pickle.Pickler):\n"
        "    def dump(self, x): time.sleep(60)\n"
        "r.pickle.Pickler = Late\n"
    )
    # The lock is lost when the recording is being written already, as in a call that waits for the
    # GPU.
    lost = f"def snapshot():\n    {IN_C_WITH_THE_LOCK}gpu.snapshot = snapshot\n"
    bounds = {
        f"{QUICK}{late}gpu.use()\n{READY}{IN_C}": (0.4, PATIENCE_S),
        f"{QUICK}gpu.use()\n{READY}{IN_C_WITH_THE_LOCK}": (0.55, PATIENCE_S),
        f"{QUICK}{lost}gpu.use()\n{READY}{IN_C}": (0.55, PATIENCE_S),
    }
    programs = several(tmp_path, [(text, ()) for text in bounds])
    said = [["vramlens: SIGTERM: no recording, because it would take longer than 0.5 s"], [], []]
    for program, (low, high), told in zip(programs, bounds.values(), said, strict=True):
        status, files, errors, seconds = program.end()
        assert (status, files, errors.splitlines()) == (-signal.SIGTERM, [], told)
        assert low < seconds < high


def test_the_programs_own_handler_is_its_own(tmp_path: Path) -> None:
    handlers = {
        "def own(*_):\n    print('mine', file=sys.stderr); sys.exit(9)\nsignal.signal(signal.SIGTERM, own)\n": 9,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nthreading.Timer(0.6, os._exit, (8,)).start()\n": 8,
        "import faulthandler; faulthandler.register(signal.SIGTERM, chain=True)\n": -signal.SIGTERM,
    }
    use = "gpu.use()\n"
    programs = [
        text + READY + "time.sleep(60)\n" for own in handlers for text in (own + use, use + own)
    ]
    for number, program in enumerate(several(tmp_path, [(text, ()) for text in programs])):
        status, files, errors, seconds = program.end()
        assert status == list(handlers.values())[number // 2]
        triggers = [meta_of(tmp_path / f"{number}/out" / name)["trigger"] for name in files]
        # faulthandler passes SIGTERM on to the handler that it found: ours, where that came first.
        assert triggers == (
            ["exit"] if status == 9 else ["sigterm"] if number == len(programs) - 1 else []
        )
        assert seconds < PATIENCE_S
        assert errors.startswith("mine\n") == (status == 9)
        assert errors.count("train.py") == (status < 0)  # the traceback that it asked for, once


def test_with_nothing_to_write_it_dies_at_once(tmp_path: Path) -> None:
    programs = [
        (f"{READY}time.sleep(60)", ()),  # no GPU used
        (
            "gpu.use()\nfrom vramlens.capture.recording.session import current_session as s\n"
            f"s().recorder.steps._ended(2)\n{READY}{IN_C}",
            ("--steps", "0:2"),  # written already
        ),
        (  # it sees the default, and what it sets stays
            "gpu.use()\nassert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
            "assert signal.signal(signal.SIGTERM, lambda *_: None) is signal.SIG_DFL\n"
            f"signal.signal(signal.SIGTERM, signal.SIG_DFL)\n{READY}{IN_C}",
            (),
        ),
    ]
    for number, program in enumerate(several(tmp_path, programs)):
        status, files, errors, seconds = program.end()
        assert status == -signal.SIGTERM
        assert len(files) == errors.count("wrote") == (number == 1)
        assert seconds < PATIENCE_S


def test_children_die_of_it_at_once_and_write_nothing(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        "gpu.use()\n"
        "import subprocess, multiprocessing\n"
        "child = os.fork()\n"
        "if not child: time.sleep(60)\n"
        "worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)); worker.start()\n"
        "other = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        "time.sleep(0.3)\n"
        "began = time.monotonic()\n"
        "os.kill(child, signal.SIGTERM); worker.terminate(); other.terminate()\n"
        "assert os.waitpid(child, 0)[1] == signal.SIGTERM\n"
        "worker.join(); assert worker.exitcode == -signal.SIGTERM\n"
        "assert other.wait() == -signal.SIGTERM\n"
        "assert time.monotonic() - began < 40\n"
        f"assert not os.path.exists('out')\ntime.sleep(0.5)\n{READY}{IN_C}",
    )
    assert program.terminate().end()[:2] == (-signal.SIGTERM, ["run.vram"])


def test_an_exception_is_told(tmp_path: Path) -> None:
    text = f"gpu.use()\ndef step():\n    raise ValueError('bad\\n batch')\n{READY}time.sleep(0.5)\nstep()\n"
    assert Program(tmp_path, text).terminate(times=0).end()[:2] == (1, ["run.vram"])
    meta = meta_of(tmp_path / "out/run.vram")
    line = HEAD.count("\n") + 3
    assert meta["trigger"] == "error"
    assert meta["ending"] == f"ValueError: bad batch, at {tmp_path}/train.py:{line} in step"


def test_a_spawned_rank_that_its_parent_ends_leaves_a_recording(tmp_path: Path) -> None:
    text = (
        "import multiprocessing\n"
        "def work(ready):\n"
        "    os.environ['RANK'] = '1'\n"
        f"    gpu.use(); ready.set(); {IN_C}"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    ready = context.Event()\n"
        "    child = context.Process(target=work, args=(ready,)); child.start()\n"
        "    ready.wait(); time.sleep(0.3); child.terminate(); child.join()\n"
        f"    assert child.exitcode == -signal.SIGTERM\n    {READY}    time.sleep(0.5)\n"
    )
    assert Program(tmp_path, text).terminate(times=0).end()[:2] == (0, ["run-rank00001.vram"])
    assert meta_of(tmp_path / "out/run-rank00001.vram")["trigger"] == "sigterm"


def test_a_terminal_that_closes_leaves_a_recording(tmp_path: Path) -> None:
    handles_sigterm = "signal.signal(signal.SIGTERM, lambda *_: None)\n"  # as servers do: SIGHUP is another matter
    ignores = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nthreading.Timer(0.6, os._exit, (8,)).start()\n"  # nohup
    texts = ["", handles_sigterm, ignores]
    programs = [
        Program(tmp_path / str(number), f"{text}gpu.use()\n{READY}{IN_C}")
        for number, text in enumerate(texts)
    ]
    for program in programs:
        program.terminate(by=signal.SIGHUP)
    statuses = [program.end()[:2] for program in programs]
    assert statuses == [(-signal.SIGHUP, ["run.vram"])] * 2 + [(8, [])]
    meta = meta_of(tmp_path / "0/out/run.vram")
    assert (meta["trigger"], str(meta["ending"]).partition(",")[0]) == ("sighup", "SIGHUP")


def test_descriptors_that_the_program_closes_are_its_own(tmp_path: Path) -> None:
    """Daemons close all that they do not know; the numbers are soon other files."""
    text = (
        "gpu.use()\ntime.sleep(0.2)\nos.closerange(3, 256)\n"
        "files = [os.open(f'own{{number}}', os.O_RDWR | os.O_CREAT) for number in range(8)]\n"
        "pairs = [socket.socketpair() for _ in range(4)]\n"
        "for one, other in pairs: one.send(b'word')\n"
        "listener = socket.socket(socket.AF_UNIX); listener.bind('own.sock'); listener.listen(1)\n"
        "caller = socket.socket(socket.AF_UNIX); caller.connect('own.sock')\n"
        "os.kill(os.getpid(), signal.SIGUSR2)\n"
        "while not os.path.exists('out/run.vram'): time.sleep(0.05)\n"
        "time.sleep(1.2)\n"  # longer than the thread's round
        "assert [other.recv(99) for one, other in pairs] == [b'word'] * 4\n"
        "assert listener.accept() and all(os.fstat(file).st_size == 0 for file in files)\n"
        "assert all(one.send(b'x') for one, other in pairs)\n"
        "os.unlink('out/run.vram')\n"
        f"{READY}{{0}}\n"
    )
    head = "import socket\n"
    ended = [
        Program(tmp_path / str(number), head + text.format(last))
        for number, last in enumerate((IN_C, "sys.exit(5)"))
    ]
    ended[0].terminate()
    ended[1].terminate(times=0)
    for program, status in zip(ended, (-signal.SIGTERM, 5), strict=True):
        assert program.end()[:2] == (status, ["run.vram"])
    assert [program.end()[2].count("\n") for program in ended] == [2, 2]


# What ctypes calls has let go of the interpreter's lock, as NCCL's watchdog has none.
ABORTS = "time.sleep(0.3); ctypes.CDLL(None).abort()"


def aborted(folder: Path, texts: Sequence[str]) -> list[Program]:
    """Programs that abort by themselves, in folders of their own."""
    programs = [Program(folder / str(number), text) for number, text in enumerate(texts)]
    return [each.terminate(times=0) for each in programs]


def test_an_abort_leaves_a_recording(tmp_path: Path) -> None:
    in_thread = f"def aborts():\n    {ABORTS}\nthreading.Thread(target=aborts).start()\n"
    texts = [
        f"gpu.use()\n{READY}{ABORTS}\n",
        f"gpu.use()\n{in_thread}{READY}{IN_C}",
        f"import faulthandler\ngpu.use()\nfaulthandler.enable()\n{READY}{ABORTS}\n",
        f"import faulthandler\nfaulthandler.enable()\ngpu.use()\n{READY}{ABORTS}\n",
    ]
    for number, program in enumerate(aborted(tmp_path, texts)):
        status, files, errors, seconds = program.end()
        assert (status, files) == (-signal.SIGABRT, ["run.vram"])
        assert errors.count("vramlens: wrote") == 1
        assert errors.count("Fatal Python error: Aborted") == (number >= 2)
        assert seconds < PATIENCE_S
        meta = meta_of(tmp_path / f"{number}/out/run.vram")
        assert meta["trigger"] == "sigabrt"
        assert meta["ending"].startswith(f"SIGABRT, at {tmp_path}/{number}/train.py:")


def test_a_second_abort_and_one_that_is_no_longer_watched_change_nothing(tmp_path: Path) -> None:
    slow = "gpu.snapshot = lambda old=gpu.snapshot: (time.sleep(1), old())[1]\n"
    aborts = f"def aborts():\n    {ABORTS}\n"
    two = "for _ in range(2): threading.Thread(target=aborts).start()\n"
    stacks = (
        "for _ in range(60): threading.Thread(target=time.sleep, args=[9], daemon=True).start()\n"
    )
    faults = f"import faulthandler\nfaulthandler.enable()\n{stacks}"
    disarmed = (
        "import faulthandler\nfrom vramlens.capture.recording.session import current_session\n"
        "gpu.use()\nfaulthandler.enable()\ncurrent_session()._termination.disarm()\n"
    )
    texts = [
        f"{slow}gpu.use()\n{aborts}{two}{READY}{IN_C}",
        f"{faults}{slow}gpu.use()\n{aborts}{two}{READY}{IN_C}",
        f"{disarmed}{READY}{ABORTS}\n",
    ]
    ended = [program.end()[:3] for program in aborted(tmp_path, texts)]
    files = ["run.vram"]
    assert [end[:2] for end in ended] == [(-signal.SIGABRT, kept) for kept in (files, files, [])]
    assert [end[2].count("Fatal Python error") for end in ended] == [0, 1, 1]


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: print('mine', flush=True)"])
def test_a_handler_beside_faulthandler_stays_the_programs(tmp_path: Path, handler: str) -> None:
    own = f"import faulthandler\nfaulthandler.enable()\nsignal.signal(signal.SIGABRT, {handler})\n"
    kills = "os.kill(os.getpid(), signal.SIGABRT)\n"
    (program,) = aborted(tmp_path, [f"{own}gpu.use()\n{READY}{kills}time.sleep(0.2)\n{kills}"])
    status, files, errors, _ = program.end()
    assert status == 0
    assert files == ["run.vram"]
    assert "SIGABRT" not in errors


def test_an_abort_is_over_within_the_bound(tmp_path: Path) -> None:
    """With the interpreter's lock nothing can be written; nor in a child; nor by a slow disk."""
    slow = "gpu.snapshot = lambda: time.sleep(60)\n"
    forked = "child = os.fork()\nif not child: ctypes.CDLL(None).abort()\n"
    forked += "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGABRT\n"
    texts = [
        f"gpu.use()\n{READY}os.abort()\n",
        f"{READY}{ABORTS}\n",
        f"{QUICK}{slow}gpu.use()\n{READY}{ABORTS}\n",
        f"{QUICK}gpu.use()\n{READY}{forked}os.abort()\n",
    ]
    for program in aborted(tmp_path, texts):
        status, files, _, seconds = program.end()
        assert (status, files) == (-signal.SIGABRT, [])
        assert seconds < PATIENCE_S
