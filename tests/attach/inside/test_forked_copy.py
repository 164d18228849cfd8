"""A forked copy: it sees what the program held, and the program notices nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.installed import PYTHON_PATH
from vramlens.attach.inside import forked_child, forked_copy
from vramlens.attach.inside.forked_child import ForkedChild
from vramlens.attach.inside.forked_copy import NoCopy
from vramlens.capture.memory.memory_now import HostMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux")


def record_of(program: str) -> dict[str, Any]:
    """What a program beside this file prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(Path(__file__).with_name(program))],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        # NumPy's OpenBLAS ends its threads before any fork: it must have none here.
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """What a program that copies itself has seen."""
    return record_of("copying_program.py")


@pytest.fixture(scope="module")
def signalled() -> dict[str, Any]:
    """What a program has seen that hears a signal at each fork."""
    return record_of("signalled_program.py")


def test_it_sees_the_variables_of_all_threads(record: dict[str, Any]) -> None:
    for names in record["seen"]:
        assert {"looked_for", "waited_for", "is_over"} <= set(names)


def test_it_runs_nothing_of_the_program_and_keeps_no_file_of_it(record: dict[str, Any]) -> None:
    assert record["hooks"] == 0
    assert record["opened"] <= 2  # its pipe, and the folder that it lists
    assert record["large"] == 3_000_000


def test_the_program_is_as_it_was(record: dict[str, Any]) -> None:
    assert record["after"] == record["before"]
    assert record["left"] == []


def test_what_fails_hangs_or_is_late_is_ended(record: dict[str, Any]) -> None:
    refusals = record["refusals"]
    assert "ZeroDivisionError" in refusals["error"]
    assert "without an answer" in refusals["death"]
    assert "no answer" in refusals["hang"]
    assert "no answer" in refusals["late"]


def test_no_copy_is_made_where_the_program_would_notice(record: dict[str, Any]) -> None:
    assert "hears of each child" in record["refusals"]["handler"]
    assert "take long" in record["refusals"]["large"]


def test_a_handler_that_raises_during_the_fork_leaves_nothing(signalled: dict[str, Any]) -> None:
    assert signalled["raised"] == 3
    assert signalled["same"]


def test_no_handler_of_the_program_runs_in_the_copy(signalled: dict[str, Any]) -> None:
    assert signalled["ran_here"] == [True]


def test_a_copy_outlives_the_thread_that_asked_for_it(signalled: dict[str, Any]) -> None:
    assert signalled["ended_thread"] == "done"


def test_what_a_thread_has_alone_is_in_the_copy(signalled: dict[str, Any]) -> None:
    assert signalled["context"] == "of the thread that asks"
    assert signalled["asks"]


@pytest.fixture
def ended_child() -> tuple[subprocess.Popen[bytes], ForkedChild]:
    """A child that has ended and nobody waited for; its pipe is open elsewhere, too."""
    readable, writable = os.pipe()
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    os.write(writable, b"answer")
    return process, ForkedChild(process.pid, readable)


def test_the_answer_does_not_wait_for_others_that_have_the_pipe(
    ended_child: tuple[subprocess.Popen[bytes], ForkedChild],
) -> None:
    process, child = ended_child
    assert child.received(60.0, lambda: True) == b"answer"
    child.end()
    assert process.wait() == 0


def without_descriptor(_pid: int) -> None:
    """As on a system that has no descriptors of processes."""


@pytest.mark.parametrize("descriptor", [forked_child._process_descriptor, without_descriptor])
def test_what_the_program_has_waited_for_is_not_killed(
    descriptor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked_child, "_process_descriptor", descriptor)
    killed: list[int] = []
    process = subprocess.Popen(["true"])
    child = ForkedChild(process.pid, os.open(os.devnull, os.O_RDONLY))
    process.wait()
    monkeypatch.setattr(os, "kill", lambda pid, _signal: killed.append(pid))
    child.end()
    assert killed == []


@pytest.mark.parametrize("descriptor", [forked_child._process_descriptor, without_descriptor])
def test_what_still_runs_is_ended(descriptor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_child, "_process_descriptor", descriptor)
    process = subprocess.Popen(["sleep", "600"])
    ForkedChild(process.pid, os.open(os.devnull, os.O_RDONLY)).end()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    process.wait()


def handler_of_torch(previous: Any) -> Any:
    """A handler such as the one of torch's DataLoader."""

    def handler(*arguments: Any) -> None:
        if previous is not None:
            previous(*arguments)

    handler.__module__ = "torch.utils.data._utils.signal_handling"
    return handler


def test_a_handler_of_the_program_below_torchs_is_the_programs() -> None:
    assert not forked_copy._is_programs(handler_of_torch(None))
    assert not forked_copy._is_programs(handler_of_torch(handler_of_torch(None)))
    assert forked_copy._is_programs(handler_of_torch(print))


@pytest.mark.parametrize(("is_group", "is_room"), [(False, True), (True, False)])
def test_where_all_processes_die_together_there_is_room_for_all(
    is_group: bool, is_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostMemory(rss_bytes=8 << 30, available_bytes=6 << 30)
    monkeypatch.setattr(forked_copy, "host_memory", lambda: host)
    monkeypatch.setattr(forked_copy, "is_killed_as_group", lambda: is_group)
    if is_room:
        forked_copy._check()
        return
    with pytest.raises(NoCopy, match="no memory"):
        forked_copy._check()
