"""``vramlens attach``: into programs that know nothing of it, and out without a trace."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from support.installed import PYTHON_PATH
from vramlens.attach import attachment as attachment_module
from vramlens.attach import target_process as target_module
from vramlens.attach.attachment import Attachment
from vramlens.attach.bootstrap import bootstrap_text
from vramlens.attach.inside.installation import _uses_gpu
from vramlens.attach.inside.segments import segments_summary
from vramlens.attach.stopped_thread import is_supported
from vramlens.attach.story import story
from vramlens.attach.target_process import permission_remedy, target_process
from vramlens.capture.names.tensor_names import NamedTensor
from vramlens.capture.process import process_state
from vramlens.capture.process.process_state import has_ended, state_of
from vramlens.errors import InputError

FOLDER = Path(__file__).parent
SCHEMA = FOLDER.parents[1] / "docs/schema/attach.json"
_LEAKING_LINE = "self.seen_outputs.append(output)"
pytestmark = pytest.mark.skipif(not is_supported(), reason="attach is for Linux on x86-64")


def attach(pid: int, *words: str) -> subprocess.CompletedProcess[str]:
    """What the verb says."""
    return subprocess.run(
        [sys.executable, "-m", "vramlens", "attach", str(pid), *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
    )


def _skip_where_refused(said: str) -> None:
    if "does not let vramlens attach" in said:
        pytest.skip("ptrace is not permitted here")


def answer_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON that the verb printed; skips where the system lets nobody trace."""
    _skip_where_refused(done.stderr)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(answer)] == []
    return answer


@contextlib.contextmanager
def program(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A program that knows nothing of vramlens, once it has said that it is ready."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed below
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.stdout.close()
            errors.seek(0)
            said = errors.read()
            errors.close()
    assert "Warning" not in said


@pytest.mark.parametrize("mode", ["works", "reads", "asyncio", "joins"])
def test_a_program_without_torch_answers_and_keeps_nothing(mode: str) -> None:
    with program(str(FOLDER / "small_program.py"), mode) as process:
        answer = answer_of(attach(process.pid, "--json"))
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        before, after = json.loads(process.stdout.readline())
        assert process.wait(300) == 0
    assert answer["schema"] == "vramlens/1"
    assert answer["process"]["torch"] is None
    assert answer["holders"] is None
    assert answer["entry"]["way"] in ("pending_call", "thread", "remote_exec")
    assert after == before


def _blocked_signals(pid: int) -> Iterator[set[int]]:
    """Yields the signals that each thread of a process has blocked now."""
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # the thread has ended
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            mask = int(lines["SigBlk"], 16)
            yield {number for number in range(1, 65) if mask >> (number - 1) & 1}


@pytest.mark.parametrize("mode", ["works", "reads", "asyncio", "joins"])
def test_no_thread_keeps_the_c_librarys_own_signal_waiting(mode: str) -> None:
    """setuid() of the program would wait for 33 for ever; and Python warns of its number."""
    masks: list[set[int]] = []
    with program(str(FOLDER / "small_program.py"), mode) as process:
        looking = subprocess.Popen(
            [sys.executable, "-m", "vramlens", "attach", str(process.pid), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        )
        while looking.poll() is None:
            masks += _blocked_signals(process.pid)
        said, errors = looking.communicate()
    answer_of(subprocess.CompletedProcess([], looking.returncode, said, errors))
    # Those that block 32, too, are of the moments in which the C library begins or ends a thread.
    lasting = [blocked for blocked in masks if 32 not in blocked]
    assert any(signal.SIGUSR1 in blocked for blocked in lasting)  # vramlens's own thread was seen
    assert not any(33 in blocked for blocked in lasting)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers of one training run that was looked at, watched, and left in the middle of a
    watch; and what it wrote at its end.
    """
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("attach") / "run.json"
    with program(str(FOLDER / "gpu_program.py"), str(out), "cpu") as process:
        look = answer_of(attach(process.pid, "--json", "--pause", "4"))
        watch = answer_of(attach(process.pid, "--json", "--pause", "4", "--steps", "8"))
        text = attach(process.pid).stdout
        _leave_in_the_middle(process.pid)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
    return {"look": look, "watch": watch, "text": text, "run": json.loads(out.read_text())}


def _hear_interrupts() -> None:
    """What a shell starts in the background ignores SIGINT, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave_in_the_middle(pid: int) -> None:
    """Begins to watch, and interrupts that after the first steps."""
    watching = subprocess.Popen(
        [sys.executable, "-m", "vramlens", "attach", str(pid), "--steps", "100000"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        preexec_fn=_hear_interrupts,
    )
    assert watching.stderr is not None
    assert "step" in watching.stderr.readline()
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 130
    watching.stderr.close()


def test_it_says_who_holds_what_without_any_history(trained: dict[str, Any]) -> None:
    look = trained["look"]
    holders = look["holders"]["holders"]
    assert holders[0]["retained_bytes"] > 0
    assert "trainer" in str(holders[0]["owner"]).lower()
    by_kind = look["names"][0]["bytes_by_kind"]
    width, layers = 64, 8
    assert by_kind["parameter"] == 4 * layers * (width * width + 3 * width)
    # At some moments of a step there are none yet.
    assert by_kind.get("gradient", 0) <= by_kind["parameter"]
    assert look["fragmentation"] == []
    assert look["pause"]["longest_s"] > 0


def test_the_text_begins_with_the_process_and_ends_with_a_next_command(
    trained: dict[str, Any],
) -> None:
    lines = trained["text"].splitlines()
    assert lines[0].startswith("Process ")
    assert any("in tensors." in line for line in lines)
    assert lines[-2] == "Next, watch its steps to see what grows:"
    assert lines[-1].startswith("  vramlens attach ")


_SERVER = """
class Result:
    def __init__(self, scores):
        self.scores = scores

class Server:
    def __init__(self):
        self.model = torch.nn.Linear(64, 64)
        self.results = {number: Result(torch.ones(16, 1 + number % 300)) for number in range(2000)}
        self.queries = [torch.ones(130, 130) for _ in range(600)]

server = Server()
others = [torch.ones(10 + number) for number in range(30)]
print("ready", flush=True)
sys.stdin.read()
"""
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers of a server that keeps thousands of tensors, as data and as text."""
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("attach") / "server.py"
    path.write_text(_MAY_BE_WATCHED + _SERVER)
    with program(str(path)) as process:
        answer = answer_of(attach(process.pid, "--json", "--top", "3"))
        text = attach(process.pid, "--top", "3").stdout
    return {"answer": answer, "text": text}


def test_every_byte_in_tensors_is_in_one_row(served: dict[str, Any]) -> None:
    table, (cpu,) = served["answer"]["holders"], served["answer"]["names"]
    width, results, queries = 64, range(2000), 600
    in_server = 4 * (width * width + width + sum(16 * (1 + number % 300) for number in results))
    everything = in_server + 4 * (queries * 130 * 130 + sum(10 + number for number in range(30)))
    rows = [(row["retained_bytes"], row["storages"]) for row in table["holders"]]
    others = [(row["bytes"], row["storages"]) for row in table["others"]]
    sizes, counts = zip(*rows, *others, strict=True)
    assert sum(sizes) == table["live_bytes"] == cpu["bytes"] == everything
    assert sum(counts) == cpu["storages"] == 2 + 2000 + 600 + 30
    assert sum(cpu["bytes_by_kind"].values()) == everything
    assert cpu["storages_by_kind"] == {"parameter": 2, "tensor": 2630}


def test_rows_of_the_text_sum_to_its_total(served: dict[str, Any]) -> None:
    text = served["text"]
    units = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}

    def size_of(match: re.Match[str]) -> float:
        return float(match[1]) * units[match[2]]

    total = size_of(re.search(rf"{_SIZE} in 2,632 tensors", text.replace("\n  ", " ")))  # type: ignore[arg-type]
    above, below = text.split("On the CPU")
    assert size_of(re.search(rf"of the {_SIZE} in tensors", above)) == total  # type: ignore[arg-type]
    for table in (above, below):
        rows = re.finditer(rf"^ +{_SIZE}  ", table, re.MULTILINE)
        assert sum(map(size_of, rows)) == pytest.approx(total, rel=0.001)
    assert re.search(r"in 2,629 further tensors \(--top 15 shows more\)$", below, re.MULTILINE)
    assert max(map(len, text.splitlines()[1:])) <= 80


def test_watched_steps_name_the_leaking_line(trained: dict[str, Any]) -> None:
    lines = (FOLDER / "gpu_program.py").read_text().splitlines()
    keeping = next(number for number, line in enumerate(lines, 1) if _LEAKING_LINE in line)
    leaks = trained["watch"]["leaks"]["leaks"]
    assert trained["watch"]["steps"] == 8
    assert [leak["owner"]["line"] for leak in leaks if leak["verdict"] == "proven"] == [keeping]


def test_the_program_does_what_it_does_alone(trained: dict[str, Any]) -> None:
    import torch

    trainer_class = runpy.run_path(str(FOLDER / "gpu_program.py"))["Trainer"]
    seen = trained["run"]["losses"]
    threads = torch.get_num_threads()
    state = random.getstate()
    try:
        with torch.random.fork_rng():
            torch.set_num_threads(1)
            torch.manual_seed(0)
            random.seed(0)
            trainer = trainer_class("cpu")
            alone = [[trainer.step(), random.random()] for _ in seen]
    finally:
        torch.set_num_threads(threads)
        random.setstate(state)
    assert alone == seen


def test_nothing_is_left_behind(trained: dict[str, Any]) -> None:
    before, after = trained["run"]["before"], trained["run"]["after"]
    assert after == before


_MAY_BE_WATCHED = """
import ctypes, os, select, sys, time
import torch
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
"""
_TRAINING = """\
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    output = model(torch.ones(64, 64))
    kept.append(output)
    output.sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""
_ENDING_PROGRAM = f"""{_MAY_BE_WATCHED}{_TRAINING}
if "kill" in sys.argv:
    os._exit(0)
"""
_ENDING_MAIN = f"""{_MAY_BE_WATCHED}
def main():
{textwrap.indent(_TRAINING, "    ")}
if __name__ == "__main__":
    main()
"""


def _watch_until_it_ends(
    folder: Path, *words: str, text: str = _ENDING_PROGRAM
) -> subprocess.CompletedProcess[str]:
    """What a watch of more steps says than the program makes."""
    pytest.importorskip("torch")
    path = folder / "ending.py"
    path.write_text(text)
    with program(str(path), *words) as process:
        words = ("attach", str(process.pid), "--steps", "100000")
        watching = subprocess.Popen(
            [sys.executable, "-m", "vramlens", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        )
        assert watching.stderr is not None
        said = watching.stderr.readline()
        _skip_where_refused(said)
        while "step" in said and int(said.split()[2]) < 12:
            said = watching.stderr.readline()
        assert process.stdin is not None
        process.stdin.close()
        out, rest = watching.communicate(timeout=600)
        assert process.wait(60) == 0
    return subprocess.CompletedProcess(words, watching.returncode, out, said + rest)


def test_a_program_that_ends_early_waits_for_the_answer(tmp_path: Path) -> None:
    done = _watch_until_it_ends(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "LEAK proven" in done.stdout
    assert "held by module __main__ > kept" in done.stdout
    assert "Note: the program ended after" in done.stdout
    assert "It has ended." in done.stdout


def test_what_main_had_at_the_programs_end_is_there_for_the_answer(tmp_path: Path) -> None:
    done = _watch_until_it_ends(tmp_path, text=_ENDING_MAIN)
    assert done.returncode == 0, done.stderr
    assert "LEAK proven" in done.stdout
    held = "held by main() (ending.py:11), where the program ended > variable kept"
    assert held in " ".join(done.stdout.split())
    assert "no longer there" not in done.stdout


def test_a_program_that_leaves_at_once_has_ended_after_its_steps(tmp_path: Path) -> None:
    done = _watch_until_it_ends(tmp_path, "kill")
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"vramlens: process \d+ has ended after \d+ watched steps, before it could answer: attach"
        r" earlier, or watch fewer steps",
        last,
    )


def test_who_comes_late_leaves_without_a_trace(tmp_path: Path) -> None:
    before = set(sys.modules)
    names: dict[str, Any] = {}
    exec(bootstrap_text(str(tmp_path / "gone"), "/nowhere", "/nowhere", "0"), names)
    time.sleep(0.2)
    assert {name for name in set(sys.modules) - before if "vramlens" in name} == set()
    assert set(names) == {"__builtins__"}


@pytest.mark.parametrize("is_same", [True, False])
def test_a_vramlens_of_the_programs_own_answers_where_it_is_the_same(
    is_same: bool, tmp_path: Path
) -> None:
    """No module of ours is put among those of another version."""
    script = tmp_path / "with_vramlens.py"
    script.write_text(
        f"""
import ctypes, sys
sys.path.insert(0, {PYTHON_PATH.split(os.pathsep)[0]!r})
import vramlens
if not {is_same}:
    vramlens.__version__ = "9.8"
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
print("ready", flush=True)
sys.stdin.read()
print(sorted(name for name in sys.modules if name.startswith("vramlens.attach")))
"""
    )
    with program(str(script)) as process:
        done = attach(process.pid, "--json")
        _skip_where_refused(done.stderr)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        left = process.stdout.readline().strip()
    if is_same:
        assert done.returncode == 0
        assert "'vramlens.attach.inside.agent'" in left
    else:
        assert "vramlens 9.8 is in it already: attach with that one" in done.stderr
        assert left == "[]"


def test_what_is_no_python_is_refused() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        done = attach(process.pid)
    finally:
        process.kill()
        process.wait()
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert (
        "not run CPython" in done.stderr or "does not let" in done.stderr or "lets" in done.stderr
    )


def test_a_wrapper_is_refused_with_the_python_that_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target_module, "python_descendants", lambda pid: [pid + 1, pid + 2])
    assert target_module.no_python(7).endswith("is (and 1 more): vramlens attach 8")
    monkeypatch.setattr(target_module, "python_descendants", lambda pid: [])
    assert "does not run CPython" in target_module.no_python(7)


def test_a_process_that_ends_meanwhile_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "60"])

    def ended_since(pid: int) -> target_module.TargetProcess:
        target = target_module.target_process(pid)
        process.kill()
        process.wait()
        return target

    monkeypatch.setattr(attachment_module, "target_process", ended_since)
    with pytest.raises(InputError) as refusal:
        attachment_module.attach(process.pid, attachment_module.AttachRequest(), lambda _: None)
    assert str(refusal.value) == f"process {process.pid} has ended"


def test_a_process_on_its_way_out_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "60"])
    assert not has_ended(process.pid)
    process.kill()
    while state_of(process.pid) != "Z":
        time.sleep(0.01)
    # While the system takes back its memory it is called running: only its flags tell.
    with monkeypatch.context() as patch:
        patch.setattr(process_state, "state_of", lambda pid: "R")
        assert has_ended(process.pid)
    process.wait()
    assert has_ended(process.pid)


def test_a_process_of_the_kernel_runs_no_python() -> None:
    from vramlens.attach import entry

    kernels = [
        int(name) for name in os.listdir("/proc") if name.isdigit() and _is_kernels(int(name))
    ]
    if not kernels:
        pytest.skip("no process of the kernel is to be seen here")
    with pytest.raises(InputError) as refusal:
        entry._python_version(kernels[0])
    assert "has ended" not in str(refusal.value)


def _is_kernels(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return not Path(f"/proc/{pid}/cmdline").read_bytes() and state_of(pid) in "SI"
    return False


def test_a_stopped_process_is_refused_with_the_remedy() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(InputError, match=f"kill -CONT {process.pid}"):
            target_process(process.pid)
    finally:
        process.kill()
        process.wait()


def test_another_users_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(InputError, match="belongs to another user"):
        target_process(os.getppid())


@pytest.mark.parametrize(
    ("scope", "uid", "remedy"),
    [
        ("1", 1000, "sysctl kernel.yama.ptrace_scope=0"),
        ("2", 0, "ptrace_scope 2"),
        ("3", 0, "only vramlens run works"),
        ("0", 1000, "--cap-add SYS_PTRACE"),
    ],
)
def test_a_refusal_by_the_system_comes_with_its_remedy(
    scope: str, uid: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ptrace_scope"
    path.write_text(scope)
    monkeypatch.setattr(target_module, "_PTRACE_SCOPE", path)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert remedy in permission_remedy(1)
    assert "\n" not in permission_remedy(1)


def test_no_process_and_vramlens_itself_are_refused() -> None:
    with pytest.raises(InputError, match="there is no process"):
        target_process(1 << 22)
    with pytest.raises(InputError, match="vramlens itself"):
        target_process(os.getpid())


def test_functions_are_found_where_the_linker_put_them() -> None:
    from vramlens.attach.python_symbols import mappings_of, python_image

    with open("/proc/self/mem", "rb", buffering=0) as memory:

        def read(address: int, size: int) -> bytes:
            return os.pread(memory.fileno(), size, address)

        image = python_image(mappings_of(os.getpid()), read)
    assert image is not None
    function = ctypes.cast(ctypes.pythonapi.Py_AddPendingCall, ctypes.c_void_p).value
    assert image.elf.addresses["Py_AddPendingCall"] == function
    assert function is not None
    assert image.elf.function_at(function + 4) == "Py_AddPendingCall"
    assert set(image.thread_functions) == {"pthread_create", "pthread_self", "pthread_detach"}


def test_a_thread_is_asked_only_where_it_cannot_hold_the_queues_lock() -> None:
    from vramlens.attach.injection import is_good_place, is_waiting
    from vramlens.attach.python_symbols import ElfFile, PythonImage
    from vramlens.attach.stopped_thread import Registers

    names = {"PyThread_acquire_lock": 0x1000, "PyList_Append": 0x2000}
    elf = ElfFile(names, dict.fromkeys(names, 0x100))
    image = PythonImage(elf, [(0x1000, 0x9000)], [(0x10000, 0x20000)], 0, {})
    nowhere = (1 << 64) - 1

    def at(address: int, call: int = nowhere, operation: int = 0) -> Registers:
        return Registers(rip=address, orig_rax=call, rsi=operation)

    assert is_good_place(at(0x2010), image)  # an exported function that is far from it
    assert is_good_place(at(0x90000), image)  # a library
    assert is_good_place(at(0x10010, call=7), image)  # in poll
    assert not is_good_place(at(0x1010), image)  # a lock is taken
    assert not is_good_place(at(0x3000), image)  # a function that is not exported
    assert not is_good_place(at(0x10010), image)  # in the C library: in malloc, or the lock
    assert is_waiting(at(0x10010, call=202, operation=0x189))  # a semaphore
    assert not is_waiting(at(0x10010, call=202, operation=0x80))  # a mutex: it may be malloc's
    assert not is_waiting(at(0x2010))


def test_segments_are_summed_and_what_pins_them_is_named() -> None:
    blocks = [
        {"address": 4096, "size": 1024, "state": "active_allocated"},
        {"address": 5120, "size": 3072, "state": "inactive"},
    ]
    segments = [
        {"device": 0, "address": 4096, "total_size": 4096, "blocks": blocks},
        {
            "device": 0,
            "address": 65536,
            "total_size": 8192,
            "blocks": [{"size": 8192, "state": "inactive"}],
        },
    ]
    name = NamedTensor(device=0, address=4096, bytes=1000, name="model.weight", kind="parameter")
    (summary,) = segments_summary(segments, [name])
    assert summary["reserved_bytes"] == 12288
    assert summary["allocated_bytes"] == 1024
    assert summary["free_bytes"] == 11264
    assert summary["largest_free_bytes"] == 8192
    assert summary["pinned_by"] == [
        {"free_bytes": 3072, "live_bytes": 1024, "blocks": 1, "names": ["model.weight"]}
    ]


def test_words_of_the_process_stay_on_their_line() -> None:
    hostile = "x\n::error::forged\x1b[31m"
    answer = {
        "process": {"pid": 1, "python": hostile, "torch": "2", "command": ["p", hostile]},
        "names": [
            {
                "device": "cpu",
                "bytes": 8,
                "storages": 1,
                "bytes_by_kind": {hostile: 8},
                "storages_by_kind": {hostile: 1},
                "tensors": [{"name": hostile, "kind": "tensor", "bytes": 8}],
            }
        ],
        "fragmentation": [
            {
                **dict.fromkeys(("device", "segments", "reserved_bytes", "free_bytes"), 1),
                "largest_free_bytes": 1,
                "pinned_by": [{"free_bytes": 1, "live_bytes": 1, "blocks": 1, "names": [hostile]}],
            }
        ],
    }
    text = story(Attachment(answer, "thread", 0.0))
    assert "\x1b" not in text
    assert not any(line.startswith("::error") for line in text.splitlines())
    assert text.count("forged") == 5


@pytest.mark.parametrize(
    "answer",
    [
        {"pause": {"longest_s": "x"}},
        {"names": 5},
        {"names": [{}]},
        {"fragmentation": [{}]},
        {"process": {"command": 5}},
        {"request": "watch", "steps": "x"},
        {"request": "watch", "steps": float("inf")},
    ],
)
def test_an_answer_that_is_none_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="invalid answer"):
        story(Attachment(answer, "thread", 0.0))


def test_texts_of_the_process_draw_nothing_and_give_no_commands() -> None:
    hostile = "\x1b[31mLEAK\r\n::error::forged\n  ok"
    watch = {"request": "watch", "leaks_text": hostile}
    look = {"process": {"torch": "2"}, "holders_text": hostile, "memory_text": hostile}
    for answer in (watch, look):
        text = story(Attachment(answer, "thread", 0.0, notes=[hostile]))
        assert "\x1b" not in text
        assert not any(line.startswith("::error") for line in text.splitlines())
        assert "\n  ok\n" in text


@pytest.mark.parametrize(
    ("uses_gpu", "next_step"),
    [(True, "\n  vramlens dump 7\n"), (False, "\n  vramlens attach 7\n")],
)
def test_what_is_installed_promises_no_recording_without_a_gpu(
    uses_gpu: bool, next_step: str
) -> None:
    answer = {"process": {"pid": 7}, "installed": True, "uses_gpu": uses_gpu}
    text = story(Attachment(answer, "thread", 0.0))
    assert next_step in text
    assert ("does not use a GPU yet" in text) is not uses_gpu


@pytest.mark.parametrize(
    ("torch", "uses_gpu"),
    [
        (SimpleNamespace(), False),  # half imported
        (SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True)), True),
        (
            SimpleNamespace(
                cuda=SimpleNamespace(is_initialized=lambda: False),
                xpu=SimpleNamespace(is_initialized=lambda: True),
            ),
            True,
        ),
    ],
)
def test_a_program_on_any_kind_of_gpu_uses_one(
    monkeypatch: pytest.MonkeyPatch, torch: SimpleNamespace, uses_gpu: bool
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert _uses_gpu() is uses_gpu


def test_the_leak_report_of_a_program_needs_no_numpy() -> None:
    code = "import sys; sys.modules['numpy'] = None; import vramlens.live.leaks.leak_text"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
    )
    assert done.returncode == 0, done.stderr
