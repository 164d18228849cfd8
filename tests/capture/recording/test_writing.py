"""Recording files: whole or not at all, named for their process, bounded, and without what is
private.
"""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import pickle
import sys
import threading
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_gpu import FakeGpu
from support.programs import PLUG_IN, meta_of, run_program
from vramlens.capture.memory.device_ledger import Ledger
from vramlens.capture.process import own_thread
from vramlens.capture.process.undisturbed import no_collection, no_other_thread
from vramlens.capture.recording import recording_file
from vramlens.capture.recording import session as session_module
from vramlens.capture.recording.device_facts import _used_bytes
from vramlens.capture.recording.output_path import RecordingPaths
from vramlens.capture.recording.recorder import Recorder, WriteRequest
from vramlens.capture.recording.recording_file import write_recording
from vramlens.capture.recording.redact import Redaction, redacted_path
from vramlens.capture.recording.ring_size import EVENT_BYTES, default_max_events
from vramlens.capture.recording.sample_rows import SampleRows
from vramlens.capture.recording.session import RecordingPlan, Session
from vramlens.capture.triggers.out_of_memory import RefusedRequest
from vramlens.ground.vocabulary import LedgerRow
from vramlens.whole_file import whole_file

GIB = 1 << 30
SNAPSHOT = {
    "segments": [],
    "device_traces": [[{"action": "alloc", "size": i} for i in range(50_000)]],
}


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "run.vram"
    write_recording(str(path), SNAPSHOT, {"meta": {"a": 1}, "names": {"tensors": []}}, b"start")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["meta.json", "names.json", "start.pickle", "snapshot.pickle"]
        assert pickle.loads(archive.read("snapshot.pickle")) == SNAPSHOT
        assert archive.read("start.pickle") == b"start"


def test_without_new_threads_it_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(own_thread, "_start_new_thread", refuse)
    write_recording(str(tmp_path / "run.vram"), SNAPSHOT, {}, None)
    with zipfile.ZipFile(tmp_path / "run.vram") as archive:
        assert pickle.loads(archive.read("snapshot.pickle")) == SNAPSHOT


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    path = tmp_path / "run.vram"
    path.write_bytes(b"old")
    monkeypatch.setattr(recording_file, "_CHUNK_BYTES", 1 << 16)
    left = [after]
    inner = zipfile.ZipFile.open

    def opened(self: Any, name: Any, mode: str = "r", **options: Any) -> Any:
        member = inner(self, name, mode, **options)
        write = member.write

        def full(data: bytes) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return int(write(data))

        member.write = full
        return member

    monkeypatch.setattr(recording_file.zipfile.ZipFile, "open", opened)
    with pytest.raises(OSError, match="No space left"):
        write_recording(str(path), SNAPSHOT, {}, None)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["run.vram"]
    assert threading.active_count() < 20


def test_the_collector_is_as_it_was() -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        with no_collection():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        with pytest.raises(KeyError), no_collection():
            raise KeyError
        assert gc.isenabled() is enabled
    gc.enable()


def test_an_error_inside_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError), whole_file(str(tmp_path / "x")) as file:
        file.writelines([b"half", "no bytes"])  # type: ignore[list-item]
    assert os.listdir(tmp_path) == []
    with whole_file(str(tmp_path / "x")) as file:
        file.write(b"all")
    (tmp_path / "x").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with whole_file(str(tmp_path / "link")) as file:
        file.write(b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "link").is_symlink()


def write_for(trigger: str, path: Path | str, ending: str | None = None) -> str:
    write_recording(str(path), {}, {"meta": {"trigger": trigger, "ending": ending}}, None)
    return str(path)


def test_failures_are_never_replaced_but_the_eighth(tmp_path: Path) -> None:
    places = RecordingPaths(str(tmp_path / "run.vram"), None)
    names = []
    for _ in range(10):
        names.append(os.path.basename(places.next()))
        places.wrote_failure(write_for("oom", places.next()))
    assert names == [
        "run.vram",
        *(f"run-{number}.vram" for number in range(2, 9)),
        "run-8.vram",
        "run-8.vram",
    ]


@pytest.mark.parametrize("trigger", ["oom", "error", "sigterm", "sighup"])
def test_a_later_run_does_not_replace_a_failure(tmp_path: Path, trigger: str) -> None:
    """Two runs with one ``-o``; torchrun's restart of the same rank."""
    first = write_for(trigger, RecordingPaths(str(tmp_path / "run.vram"), None).next())
    restarted = RecordingPaths(str(tmp_path / "run.vram"), None)
    assert restarted.next() == str(tmp_path / "run-2.vram")
    assert not restarted.may_replace(first)


@pytest.mark.parametrize(
    ("trigger", "ending"), [("exit", None), ("every", None), ("error", "KeyboardInterrupt, at a")]
)
def test_a_later_run_replaces_what_is_no_failure(
    tmp_path: Path, trigger: str, ending: str | None
) -> None:
    path = write_for(trigger, tmp_path / "run.vram", ending)
    assert RecordingPaths(path, None).next() == path
    Path(path).write_bytes(b"something else")
    assert RecordingPaths(path, None).next() == path


def test_failures_of_two_processes_at_once_are_both_kept(tmp_path: Path) -> None:
    recorders = []
    for _ in range(2):
        recorder = Recorder(RecordingPaths(str(tmp_path / "run.vram"), None))
        gpu: Any = FakeGpu()
        recorder.gpu = gpu
        gpu.use()
        recorders.append(recorder)
    one, other = recorders
    taken = one.gpu.snapshot
    one.gpu.snapshot = lambda: (other.write(WriteRequest("oom", failure={})), taken())[1]  # type: ignore[union-attr, method-assign]
    assert one.write(WriteRequest("oom", failure={}))["path"] == str(tmp_path / "run-2.vram")
    assert sorted(os.listdir(tmp_path)) == ["run-2.vram", "run.vram"]


@pytest.mark.skipif(find_spec("torch") is None, reason="the program imports torch")
def test_writing_starts_no_child(tmp_path: Path) -> None:
    """The program may wait for any child of its own, and handle SIGCHLD."""
    write = (
        "import sys\n"
        "sys.addaudithook(lambda event, _: print(event) if event in ('os.fork', 'subprocess.Popen', 'os.system') else None)\n"
        "gpu.use(); import vramlens; vramlens.snapshot('now.vram')\n"
    )
    done = run_program(tmp_path, PLUG_IN + "import torch\n" + write, "-o", "run.vram")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "now.vram").exists()
    assert "Linux-" in str(meta_of(tmp_path / "now.vram")["platform"]) or sys.platform != "linux"


def test_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "run.vram")
    recorder = Recorder(RecordingPaths(str(tmp_path / "run.vram"), None))
    gpu: Any = FakeGpu()
    recorder.gpu = gpu
    gpu.use()
    assert recorder.write(WriteRequest("exit"))["error"].endswith("is not a regular file")
    assert capsys.readouterr().err.count("\n") == 1


def test_places_do_not_follow_the_program_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = RecordingPaths(None, "some/train.py")
    monkeypatch.chdir("/")
    assert places.main() == str(tmp_path / f"train-{os.getpid()}.vram")
    assert RecordingPaths("x.vram", None, is_child=True).main() == f"/x-{os.getpid()}.vram"


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"RANK": "12", "WORLD_SIZE": "16"}, "rank00012.vram"),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, "rank00003.vram"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "train-PID.vram"),
        ({"RANK": "x"}, "train-PID.vram"),
    ],
)
def test_ranks_have_names(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], name: str
) -> None:
    for variable in ("RANK", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert os.path.basename(RecordingPaths("folder", "train.py").main()) == name.replace(
        "PID", str(os.getpid())
    )


def test_the_ring_is_bounded_by_the_hosts_memory() -> None:
    assert default_max_events(1, 1024 * GIB) == GIB // EVENT_BYTES
    assert default_max_events(8, 1024 * GIB) == GIB // EVENT_BYTES // 8
    assert default_max_events(1, 10 * GIB) == 10 * GIB // 50 // EVENT_BYTES
    assert default_max_events(64, GIB) == 10_000
    assert default_max_events(1) >= 10_000


@given(st.integers(1, 20_000))
def test_samples_stay_few_and_span_the_run(count: int) -> None:
    samples = SampleRows(0.0)
    for step in range(count):
        samples.add(step, [(0, step, step, None)], None)
    rows = samples.to_dict()["rows"]
    steps = [row[1] for row in rows]
    assert 0 < len(rows) <= 4096
    assert steps[0] == 0
    assert steps == sorted(set(steps))
    assert steps[-1] >= count - 1 - 2 * (count // 4096 + 1)


def test_samples_slow_down_as_they_grow() -> None:
    samples = SampleRows(1.0)
    assert samples.is_due()
    for _ in range(4097):
        samples.add(0, [(0, 0, 0, 0)], 0)
    assert samples.interval_s == 2.0
    assert not samples.is_due()


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/home/ann/secret/train.py", "train.py"),
        (r"C:\Users\ann\train.py", "train.py"),
        (
            "/home/ann/env/lib/python3.11/site-packages/torch/nn/a.py",
            "/lib/python3.11/site-packages/torch/nn/a.py",
        ),
        ("/opt/dist-packages/torch/x.py", "/dist-packages/torch/x.py"),
        ("/usr/lib/python3.12/threading.py", "/lib/python3.12/threading.py"),
        ("/tmp/torchinductor_ann/tu/ctu77.py", "/torchinductor_/tu/ctu77.py"),
        ("<string>", "<string>"),
        ("", ""),
    ],
)
def test_paths_lose_what_is_private(path: str, kept: str) -> None:
    assert redacted_path(path) == kept


def test_shared_frames_are_redacted_once() -> None:
    frame = {"filename": "/a/b.py", "name": "f", "line": 1}
    frames = [frame, frame]
    event = {"action": "alloc", "frames": frames}
    snapshot: dict[str, Any] = {
        "segments": [{"frames": frames, "blocks": [{"frames": frames}, {}]}],
        "device_traces": [[event, {"action": "oom"}]],
    }
    meta: dict[str, Any] = {"command": ["x"], "host": "h", "folder": "/a", "torch": "2"}
    redaction = Redaction()
    redaction.snapshot(snapshot)
    redaction.meta(meta)
    assert snapshot["segments"][0]["frames"] == [{"filename": "b.py", "name": "f", "line": 1}] * 2
    assert meta == {"torch": "2", "redacted": True}


def test_no_part_tells_a_folder() -> None:
    path = "/home/jane doe/job one/train.py"
    owners = {
        "owners": [
            {
                "name": "history",
                "file": path,
                "line": 3,
                "chain": ["list", f"history at {path}:3", "D:\\x\\a.py"],
            }
        ],
        "leaks": [
            {
                "file": None,
                "fix": "in /mnt/jane/lib.py: append(loss.item()) / 2; see src/jane/model.py:7, a/b GiB/s",
            }
        ],
        "storages": {"columns": ["device"], "rows": [(0, 5)]},
    }
    redaction = Redaction()
    assert redaction.part(owners) == {
        "owners": [
            {
                "name": "history",
                "file": "train.py",
                "line": 3,
                "chain": ["list", "history at train.py:3", "a.py"],
            }
        ],
        "leaks": [
            {"file": None, "fix": "in lib.py: append(loss.item()) / 2; see model.py:7, a/b GiB/s"}
        ],
        "storages": {"columns": ["device"], "rows": [[0, 5]]},
    }
    torch = {"file": "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"}
    assert redaction.part(torch) == {
        "file": "/lib/python3.11/site-packages/torch/nn/modules/linear.py"
    }


def test_a_redacted_recording_tells_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "jane"
    secret.mkdir()
    monkeypatch.chdir(secret)
    recorder = Recorder(
        RecordingPaths("run.vram", None),
        redacted=True,
        command=["python", str(secret / "train.py")],
    )
    gpu = FakeGpu()
    gpu.use()
    recorder.gpu = gpu  # type: ignore[assignment]
    recorder.owners = lambda _kind: {"owners": [{"file": str(secret / "train.py"), "line": 1}]}
    assert "error" not in recorder.write(
        WriteRequest("api", ending=f"SIGTERM, at {secret / 'train.py'}:1 in step")
    )
    with zipfile.ZipFile(secret / "run.vram") as archive:
        for name in archive.namelist():
            assert b"jane" not in archive.read(name), name
        assert json.loads(archive.read("owners.json")) == {
            "owners": [{"file": "train.py", "line": 1}]
        }


def test_a_program_may_remove_the_folder_that_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    gpu = FakeGpu()
    gpu.use()
    recorder = Recorder(RecordingPaths("run.vram", None))
    recorder.gpu = gpu  # type: ignore[assignment]
    assert recorder.write(WriteRequest("api"), str(tmp_path / "run.vram"))["path"] == str(
        tmp_path / "run.vram"
    )
    with zipfile.ZipFile(tmp_path / "run.vram") as archive:
        assert json.loads(archive.read("meta.json"))["folder"] is None


def test_a_later_block_has_no_names_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, gpu = (
        Recorder(RecordingPaths(str(tmp_path / "run.vram"), None)),
        FakeGpu(metadata=False),
    )
    gpu.use()
    recorder.gpu = gpu  # type: ignore[assignment]
    monkeypatch.setattr(recorder, "_names", lambda _kind, **_: [{"name": "weight"}])
    counts = []
    for _ in range(2):
        recorder.start()
        if not counts:
            recorder.step_ended(2)
        recorder.write(WriteRequest("api"))
        recorder.stop()
        with zipfile.ZipFile(tmp_path / "run.vram") as archive:
            counts.append(len(json.loads(archive.read("names.json"))["tensors"]))
    assert counts == [2, 1]


def test_the_fullest_moment_is_found_without_the_drivers_figures() -> None:
    """Where nobody says what is free, all of the rest is unknown: it is not in use."""
    kinds = {"pytorch_allocated": 5, "pytorch_cached": 3, "unknown": 92}
    rows = tuple(LedgerRow(kind, size, "exact") for kind, size in kinds.items())
    assert _used_bytes(Ledger(0, total_bytes=100, rows=rows)) == 8
    assert (
        _used_bytes(Ledger(0, total_bytes=140, rows=(*rows, LedgerRow("free", 40, "exact")))) == 100
    )


def test_a_block_that_runs_out_of_memory_leaves_one_recording_on_each_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    session, gpu = Session(RecordingPlan(blocks_only=True), verdict=None, command=None), FakeGpu()
    gpu.use()
    session.recorder.gpu = gpu  # type: ignore[assignment]

    def fails() -> None:
        error = MemoryError()
        error.__vramlens_path__ = session._write_failure(RefusedRequest(0, 1 << 30, 0))  # type: ignore[attr-defined]
        raise error

    with pytest.raises(MemoryError), session.block(str(tmp_path / "run.vram"), None):
        fails()
    assert os.listdir(tmp_path) == ["run-rank00003.vram"]
    with session.block(str(tmp_path / "next.vram"), None):
        pass
    assert sorted(os.listdir(tmp_path)) == ["next-rank00003.vram", "run-rank00003.vram"]


def test_a_block_that_nobody_ends_raises_nothing_when_all_names_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session(RecordingPlan(blocks_only=True), verdict=None, command=None)
    monkeypatch.setattr(session_module, "say", None)
    session._write_block(None, 0, lambda: True)
    with pytest.raises(TypeError):
        session._write_block(None, 0)  # at any other time it has something to say


def test_two_threads_that_look_at_all_objects_leave_the_switch_interval_as_it_was() -> None:
    before = sys.getswitchinterval()
    one, other = no_other_thread(), no_other_thread()
    with one:
        other.__enter__()
    other.__exit__(None, None, None)
    assert sys.getswitchinterval() == before


def test_two_threads_that_write_one_file_leave_a_whole_one(tmp_path: Path) -> None:
    path, written = str(tmp_path / "x"), threading.Barrier(2, timeout=300)

    def write(text: bytes) -> None:
        with whole_file(path) as file:
            for part in range(2):
                file.write(text[5 * part : 5 * part + 5])
                file.flush()
                written.wait()

    threads = [threading.Thread(target=write, args=(text,)) for text in (b"a" * 10, b"b" * 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "x").read_bytes() in (b"a" * 10, b"b" * 10)
    assert os.listdir(tmp_path) == ["x"]


def test_a_stream_needs_no_more_than_write() -> None:
    file = io.BytesIO()
    with recording_file._beside(file) as writer:
        pickle.Pickler(writer, 4).dump(list(range(100_000)))
    assert pickle.loads(file.getvalue()) == list(range(100_000))
