"""Redaction: whatever the recording holds, nothing in the file tells who, where and with what."""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support.fake_gpu import FakeGpu
from vramlens.capture.recording.output_path import RecordingPaths
from vramlens.capture.recording.private_facts import PrivateFacts, private_facts
from vramlens.capture.recording.recorder import Recorder, WriteRequest
from vramlens.capture.recording.redact import Redaction
from vramlens.capture.recording.redaction_check import check_redacted

HOME = "/home/jane doe"
FACTS = PrivateFacts(
    folders=(("/srv/team/project x", "."), (HOME, "~")),
    words=(
        ("--key=s3cret-value", "argument"),
        ("s3cret-value", "argument"),
        ("node17", "host name"),
        ("jane", "user name"),
    ),
    local_folders=("My data",),
)
TEXTS = [
    (f"load {HOME}/My Files/train set.csv now", "load train set.csv now"),
    ("load ~/My Files/a.csv", "load a.csv"),
    ("load ~jane/x/a.csv", "load a.csv"),
    ("load My data/sub set/a.csv", "load a.csv"),
    ("load ../runs/one/a.csv", "load a.csv"),
    ("load runs/one/a.csv", "load a.csv"),
    (r"load C:\Users\jane\a.csv", "load a.csv"),
    ("file:///srv/team/project x/b.py", "b.py"),
    ("by jane on node17 with s3cret-value", "by *** on *** with ***"),
    (
        "janet's forward/backward at 3 tokens/s, a / b",
        "janet's forward/backward at 3 tokens/s, a / b",
    ),
    (
        '  File "/mnt/jane/a b/c.py", line 3, in f\n    x = g(y) / 2',
        '  File "c.py", line 3, in f\n    x = g(y) / 2',
    ),
    (
        "/opt/env/lib/python3.11/site-packages/torch/nn/x.py:3",
        "/lib/python3.11/site-packages/torch/nn/x.py:3",
    ),
    ("/usr/lib/python3.11/x.py in /mnt/secret/y.py", "y.py"),
    (HOME, "~"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS, ids=[text[:30] for text, _ in TEXTS])
def test_a_text_loses_what_is_private(text: str, expected: str) -> None:
    assert Redaction(facts=FACTS).text(text) == expected
    assert Redaction(facts=FACTS).text(expected) == expected


def snapshot_of(text: str) -> dict[str, Any]:
    """A snapshot with a text wherever PyTorch or a program may put one."""
    fx = {
        "fx_original_trace": text,
        "fx_node_name": text,
        "fx_node_op": text,
        "more": [text, {"deep": text}],
    }
    frames = [{"filename": f"{HOME}/train.py", "line": 3, "name": "forward", **fx}]
    block = {
        "address": 0,
        "size": 512,
        "requested_size": 512,
        "state": "active_allocated",
        "frames": frames,
    }
    segment = {
        "address": 0,
        "total_size": 512,
        "device": 0,
        "segment_type": "small",
        "frames": frames,
        "blocks": [block],
    }
    event = {
        "action": "alloc",
        "addr": 0,
        "size": 512,
        "frames": frames,
        "user_metadata": text,
        "compile_context": text,
    }
    return {
        "segments": [segment],
        "host_segments": [{**segment, "user_metadata": text}],
        "device_traces": [[event, {**event, "action": text}]],
        "host_traces": [[dict(event)]],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "last_allocator_settings": text,
        },
        "external_annotations": [{"name": text, "stage": "START", "device": 0}],
        "unknown_section": {"a": [text]},
    }


SECRETS = ("jane", "project x", "My Files", "s3cret", "node17")


def test_no_member_tells_what_is_private() -> None:
    text = f"jane@node17: {HOME}/My Files/a.csv and /srv/team/project x/b.py, ~/q/c.py, --key=s3cret-value"
    redaction = Redaction(facts=FACTS)
    made = snapshot_of(text)
    made["device_traces"][0][1]["action"] = "free_completed"
    redaction.snapshot(made)
    row = {"kind": "other_processes", "note": "12 (bob's work) 3 GiB"}
    process = {"pid": 12, "bytes": 3, "name": "bob's work", "is_this": False}
    parts = [
        redaction.part(
            {"tensors": [{"name": f"cache['{text}']", "kind": "buffer", "file": f"{HOME}/a.py"}]}
        ),
        redaction.part(
            {"end": {"devices": {"0": {"rows": [row], "notes": [text], "processes": [process]}}}}
        ),
        redaction.part({"columns": ["time_us", "step"], "rows": [[1, 2]]}),
    ]
    meta = {
        "command": [text],
        "host": "node17",
        "folder": HOME,
        "ending": text,
        "oom": {
            "message": text,
            "expression": "read('the unguessed')",
            "source": [{"file": "a.py", "line": 3, "text": "x = 'the unguessed'"}],
        },
        "groups": [text],
    }
    redaction.meta(meta)
    everything = repr((made, parts, meta))
    for secret in (*SECRETS, "bob", "the unguessed"):
        assert secret not in everything
    assert parts[2] == {"columns": ["time_us", "step"], "rows": [[1, 2]]}
    assert made["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert made["device_traces"][0][0]["frames"][0]["name"] == "forward"
    assert list(made) == list(snapshot_of(""))


def test_a_folder_below_the_root_is_not_one_in_a_library(written: Any) -> None:
    redaction = Redaction(facts=PrivateFacts((("/data", "."),), (), ()))
    library = "/site-packages/torch/utils/data/dataloader.py"
    assert redaction.text(f"/opt/env/lib/python3.11{library}:3") == f"/lib/python3.11{library}:3"
    assert redaction.text("cwd=/data and /data/x.csv") == "cwd=. and x.csv"
    check_redacted(written(snapshot_pickle=[library], meta=library), ["/data"], [])
    for text in ("/data", "in /data/x", "cwd=/data"):
        for member in ("snapshot_pickle", "meta"):
            with pytest.raises(OSError, match="one of your folders"):
                check_redacted(written(**{member: [text]}), ["/data"], [])


def test_names_of_code_stay_and_are_no_secrets() -> None:
    """A user who is called as a function is: the recording would not say a thing without its
    functions.
    """
    facts = PrivateFacts(
        (),
        (
            ("train", "user name"),
            ("alloc", "argument"),
            ("frames", "argument"),
            ("bob", "user name"),
        ),
        (),
    )
    redaction = Redaction(facts=facts)
    made = snapshot_of("x")
    made["segments"][0]["frames"][0]["name"] = "train"
    redaction.snapshot(made)
    assert made["segments"][0]["frames"][0]["name"] == "train"
    assert made["device_traces"][0][0]["action"] == "alloc"
    assert redaction.text("train by bob") == "*** by ***"
    assert redaction.private_words() == [("bob", "user name")]


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(**members: Any) -> str:
        path = str(tmp_path / "x.vram")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                is_pickle = name.endswith("_pickle")
                data = pickle.dumps(content, 4) if is_pickle else json.dumps(content)
                archive.writestr(
                    f"{name.removesuffix('_pickle')}.{'pickle' if is_pickle else 'json'}", data
                )
        return path

    return write


@pytest.mark.parametrize("member", ["meta", "names", "snapshot_pickle", "start_pickle"])
@pytest.mark.parametrize("before", ["", "a ", "x" * 40 + " ", "y" * 300 + "-"])
def test_the_search_finds_it_wherever_it_is(written: Any, member: str, before: str) -> None:
    words = [("Zoë", "user name"), ("A1", "argument")]
    for text in ("/home/zoë", "Zoë", "A1"):
        long = f"{before}{text}"
        for content in (
            {"a": [long]},
            {long: 1},
            ["b" * 4194290, long],
            [long.ljust(97, "."), long.ljust(65, ".")],
        ):
            with pytest.raises(OSError, match="would still reveal"):
                check_redacted(written(**{"meta": {}, member: content}), ["/home/zoë"], words)
    for text in ("/home/zoës", "Zoëy", "xZoë", "A12", "BA1", "_A1", "A1_"):
        check_redacted(written(**{member: {"a": f"{before}{text}"}}), ["/home/zoë"], words)


def recorder_at(folder: Path, snapshot: dict[str, Any]) -> Recorder:
    recorder, gpu = (
        Recorder(RecordingPaths(str(folder / "run.vram"), None), redacted=True),
        FakeGpu(),
    )
    gpu.use()
    gpu.snapshot = lambda: snapshot  # type: ignore[method-assign]
    recorder.gpu = gpu  # type: ignore[assignment]
    return recorder


def test_what_would_still_tell_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/home/jane doe")
    made = snapshot_of("x")
    made["device_traces"][0][0]["/home/jane doe/secret"] = 1  # a key, which nothing rewrites
    answer = recorder_at(tmp_path, made).write(WriteRequest("exit"))
    assert "error" in answer
    assert os.listdir(tmp_path) == []
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--redact: snapshot.pickle would still reveal one of your folders" in said
    assert "jane" not in said


def test_a_recording_of_this_process_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this machine's own user, host, folders and arguments, and a program that has gone
    elsewhere.
    """
    (tmp_path / "a folder").mkdir()
    recorder = recorder_at(tmp_path, made := snapshot_of("x"))
    monkeypatch.chdir(tmp_path / "a folder")
    host = socket.gethostname()
    text = f"{os.getcwd()}/a b/c.py {os.path.expanduser('~')}/x {host} {' '.join(sys.orig_argv)}"
    made["external_annotations"][0]["name"] = text
    made["segments"][0]["frames"][0]["fx_original_trace"] = text
    assert "error" not in recorder.write(WriteRequest("exit"))
    with zipfile.ZipFile(tmp_path / "run.vram") as archive:
        everything = b"".join(map(archive.read, archive.namelist()))
    assert b"a folder" not in everything
    assert str(tmp_path).encode() not in everything


def test_private_facts_of_a_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "My data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("USER", "janedoe")
    monkeypatch.setenv("HOME", "/home/janedoe")
    monkeypatch.setattr(socket, "gethostname", lambda: "node17.cluster.example")
    monkeypatch.setattr(sys, "orig_argv", ["/opt/bin/python3", "train.py"])
    monkeypatch.setattr(sys, "argv", ["train.py"])
    command = [
        "train.py",
        "--lr",
        "1e-4",
        "--token=s3cret-value",
        "--data",
        "~/sets/one.csv",
        "/mnt/big set/two.csv",
    ]
    facts = private_facts(command)
    words = {word for word, _ in facts.words}
    assert {"janedoe", "node17", "node17.cluster.example", "s3cret-value", "--data"} <= words
    assert not words & {"train.py", "1e-4", "python3"}
    folders = [folder for folder, _ in facts.folders]
    assert {"/home/janedoe", "/home/janedoe/sets", "/mnt/big set", str(tmp_path)} <= set(folders)
    assert folders == sorted(folders, key=len, reverse=True)
    assert facts.local_folders == ("My data",)


def test_numbers_are_no_words(written: Any) -> None:
    """A million events hold the bytes of every short name somewhere."""
    numbers = [
        int.from_bytes(b"bob\0\1\2", "little"),
        int.from_bytes(b"\1\2bob\0", "little"),
        0x626F62,
    ]
    pickled = pickle.dumps({"a": numbers}, 4)
    assert b"bob" in pickled
    words = [("bob", "user name"), ("true", "argument")]
    check_redacted(written(snapshot_pickle={"a": numbers * 100}), [], words[:1])
    redaction = Redaction(facts=PrivateFacts((), tuple(words), ()))
    check_redacted(written(meta={"is": True, "not": None}), [], redaction.private_words())
