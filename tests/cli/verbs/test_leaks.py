"""``vramlens leaks``: the answer first, the contract's data, exit codes."""

from __future__ import annotations

import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from support.recordings import DATA, data_of, event, snapshot
from support.samples import EVIL
from support.vram_files import vram
from vramlens.cli.main import main

CONTRACT = [
    "verdict",
    "class",
    "file",
    "line",
    "function",
    "bytes_per_step",
    "bytes",
    "steps",
    "owner",
    "fix",
]


def recording(name: str) -> str:
    return str(DATA / "recordings" / f"{name}.pickle.xz")


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["leaks", *words]) == code
    out, err = capsys.readouterr()
    assert err == ""
    return out


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_a_failure_that_a_leak_caused(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, recording("oom_leak")).splitlines()
    text = one_line("\n".join(lines))
    assert text.startswith(
        "LEAK proven: 196.42 MiB per step, 1.73 GiB so far in 9 steps; memory ran out in step 9 Alloc"
    )
    assert (
        "Allocated at train/workloads.py:268 in oom_leak. The recording does not show what keeps it"
        in text
    )
    assert "Fix: find what keeps the result of train/workloads.py:268" in text
    assert lines[-1] == "  vramlens run --leaks YOUR_SCRIPT.py"
    assert len(lines) <= 24


def test_the_end_is_predicted_where_the_limit_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    text = one_line(said(capsys, recording("leak_cycle"), "--total", "1GiB"))
    assert text.startswith(
        "LEAK likely: 11.44 MiB per step, 125.89 MiB so far in 11 steps; out of memory in about "
    )
    bare = one_line(said(capsys, recording("leak_cycle")))
    assert "out of memory" not in bare
    assert "Pass it with --total 80GiB" in bare


def test_no_leak_says_over_how_many_steps_and_what_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = one_line(said(capsys, recording("leak_none_warmup")))
    assert text.startswith("No leak: nothing grows with every step (40 steps recorded).")
    assert "optimizer state, allocated once for each parameter" in text
    assert "stopped growing" in text
    assert "vramlens explain" in text
    few = one_line(said(capsys, recording("resnet50")))
    assert few.startswith("Too few steps to tell: 3 steps recorded. 2 more steps would show growth")


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leaks", recording("leak_hook"), "--fail"]) == 1
    assert main(["leaks", recording("leak_hook")]) == 0
    assert main(["leaks", recording("gpt"), "--fail"]) == 1  # too few steps to tell
    assert main(["leaks", recording("leak_none_warmup"), "--fail"]) == 0
    assert (
        main(["leaks", str(DATA / "ranks/rank0_gather/rank0_gather.rank0.pickle.xz"), "--fail"])
        == 0
    )  # possible
    assert main(["leaks", recording("gpt"), "--device", "5"]) == 2
    assert main(["leaks", recording("gpt"), "--total", "1KiB"]) == 2
    assert main(["leaks", recording("gpt"), "--json", "--markdown"]) == 2
    assert main(["leaks", "nowhere.vram"]) == 3
    capsys.readouterr()


def test_four_bytes_a_step_are_one_quiet_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = recording("leak_losses")
    assert main(["leaks", path, "--fail"]) == 0
    text = one_line(capsys.readouterr().out)
    assert text.startswith("No leak that matters (12 steps recorded).")
    assert (
        "Too small to matter: 4 bytes per step at train/workloads.py:59 in lm_loss (--at-least 0 shows it)."
        in text
    )
    assert main(["leaks", path, "--fail", "--at-least", "0"]) == 1
    assert capsys.readouterr().out.startswith("LEAK likely: 4 bytes per step")
    assert (
        main(["leaks", path, "--fail", "--total", "1GiB"]) == 1
    )  # 51 MB of 1 GiB in 100,000 steps
    assert main(["leaks", recording("leak_hook"), "--fail", "--at-least", "1GiB"]) == 0
    capsys.readouterr()
    data = json.loads(said(capsys, path, "--json"))
    assert [leak["small"] for leak in data["leaks"] if leak["bytes_per_step"] == 4] == [True]
    assert data["devices"][0]["least_bytes_per_step"] > 512


@pytest.mark.parametrize(
    "name", ["leak_cycle", "leak_outputs", "gpt_varlen", "streams", "oom_fragmented"]
)
def test_data_have_the_contracts_keys(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(said(capsys, recording(name), "--json"))
    assert data["schema"] == "vramlens/1"
    for leak in data["leaks"]:
        assert list(leak)[: len(CONTRACT)] == CONTRACT
        assert leak["class"] is None
        assert leak["owner"] is None
        assert (leak["fix"] is None) == (leak["verdict"] == "not a problem")
    assert [one["device"] for one in data["devices"]] == [0]


def test_both_verbs_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("leak_exception", "leak_losses", "gpt"):
        leaks = json.loads(said(capsys, recording(name), "--json"))["leaks"]
        assert main(["explain", recording(name), "--json"]) == 0
        explained = json.loads(capsys.readouterr().out)["leaks"]
        shown = [leak for leak in leaks if leak["verdict"] != "not a problem"]
        assert all(leak.keys() >= set(CONTRACT) for leak in shown)
        assert explained == shown


def test_an_owner_is_named_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot_ = pickle.loads(data_of("recordings/oom_leak"))
    live = [
        b for s in snapshot_["segments"] for b in s["blocks"] if b["state"] == "active_allocated"
    ]
    table: dict[str, Any] = {
        "owners": [{"name": "kept", "kind": "list", "file": "train.py", "line": 268, "class": "graph", "verdict": "proven",
                    "chain": ["oom_leak()", "kept: list of 9"], "fix": "append loss.item()"}],
        "storages": {"columns": ["device", "address", "bytes", "owner"],
                     "rows": [[0, block["address"], block["requested_size"], 0] for block in live]},
    }  # fmt: skip
    path = vram(tmp_path / "run.vram", data_of("recordings/oom_leak"), owners=table)
    text = one_line(said(capsys, str(path)))
    assert re.search(
        r"kept, a list \(train.py:268\), keeps the autograd graph of every step, each with \d+ tensors\. "
        r"Held by oom_leak\(\) > kept: list of 9\. Allocated at train/workloads.py:268 in oom_leak\.",
        text,
    )
    assert "Fix: append loss.item() (saves 196.42 MiB per step)" in text
    assert "vramlens diff" in text
    (leak,) = (
        one for one in json.loads(said(capsys, str(path), "--json"))["leaks"] if one["owner"]
    )
    assert leak["class"] == "graph"
    assert leak["owner"] == {
        "name": "kept", "kind": "list", "file": "train.py", "line": 268, "function": None, "chain": ["oom_leak()", "kept: list of 9"],
    }  # fmt: skip


def test_markdown_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "leaks.md"
    assert said(capsys, recording("leak_hook"), "--markdown", "-o", str(target)) == ""
    text = target.read_text()
    assert text.startswith("**LEAK likely: 2.00 MiB per step, 22.00 MiB so far in 11 steps**")
    assert "```" in text
    assert "train/workloads.py:39" in text


def test_names_that_would_steer_a_terminal_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events, marks = [event("segment_alloc", 1 << 30, 2 << 20, time_us=0)], []
    for step in range(14):
        frames = [{"filename": EVIL, "line": 7, "name": EVIL}]
        events.append(
            event("alloc", (1 << 30) + 512 * step, 512, time_us=10 * step + 1, frames=frames)
        )
        marks.append(
            {"stage": "END", "name": "vramlens.step", "device": 0, "time_us": 10 * step + 5}
        )
    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps(snapshot(events, []) | {"external_annotations": marks}))
    for form in ([], ["--markdown"]):
        text = said(capsys, str(path), *form)
        assert text.startswith(("GROWTH", "**GROWTH"))
        assert "\x1b" not in text
        assert "\u202e" not in text


def many_leaks(tmp_path: Path) -> str:
    """Eight lines that each leave something behind in every step."""
    events, marks = [event("segment_alloc", 1 << 30, 2 << 20, time_us=0)], []
    for step in range(14):
        for line in range(8):
            frames = [{"filename": "train.py", "line": line + 1, "name": "step"}]
            address = (1 << 30) + 512 * (8 * step + line)
            events.append(event("alloc", address, 512, time_us=10 * step + 1, frames=frames))
        marks.append(
            {"stage": "END", "name": "vramlens.step", "device": 0, "time_us": 10 * step + 5}
        )
    path = tmp_path / "many.pickle"
    path.write_bytes(pickle.dumps(snapshot(events, []) | {"external_annotations": marks}))
    return str(path)


def test_top_limits_what_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = many_leaks(tmp_path)
    assert said(capsys, path).count("GROWTH") == 5
    assert "… and 3 more leaks (--top 8 shows them)" in said(capsys, path)
    assert said(capsys, path, "--top", "8").count("GROWTH") == 8


@pytest.mark.parametrize("size", [(80, 24), (60, 24), (140, 30)])
def test_on_a_terminal_it_keeps_to_a_screen_and_says_what_it_left_out(
    size: tuple[int, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer, its fix and the next command stay; into a pipe, or with --top, all of it goes."""
    path = many_leaks(tmp_path)
    files = [recording("leak_hook"), recording("leak_losses"), recording("oom_leak"), path]
    whole = [said(capsys, file).splitlines() for file in files]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    for name, value in zip(("COLUMNS", "LINES"), size, strict=True):
        monkeypatch.setenv(name, str(value))
    for file, piped in zip(files, whole, strict=True):
        lines = re.sub(r"\x1b\[[\d;]*m", "", said(capsys, file)).splitlines()
        assert len(lines) < size[1]
        assert lines[0][:30] == piped[0][:30]
        assert any(line.startswith("Fix: ") for line in lines) == any(
            line.startswith("Fix: ") for line in piped
        )
        assert lines[-1] == piped[-1]
    if size[1] == 24:
        hidden = r"\n  … and \d more places? \(--top 3 shows (?:it|them)\)\n"
        assert re.search(hidden, said(capsys, files[0]))
    assert len(said(capsys, path, "--top", "8").splitlines()) > size[1]


def test_nothing_recorded_asks_for_a_recording(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "empty.pickle"
    path.write_bytes(pickle.dumps(snapshot([], []) | {"device_traces": []}))
    lines = said(capsys, str(path)).splitlines()
    assert lines[0].startswith("Nothing to check")
    assert lines[-1] == "  vramlens run YOUR_SCRIPT.py"


def test_what_is_surer_stands_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Samples prove more here than the events' possible leaks do."""
    rows = [
        [30_000_000 * i, 0, 0, (2 << 30) + (i << 24), 4 << 30, (60 << 30) - (i << 25), 0]
        for i in range(200)
    ]
    columns = [
        "time_us",
        "step",
        "device",
        "allocated_bytes",
        "reserved_bytes",
        "free_bytes",
        "host_rss_bytes",
    ]
    path = vram(
        tmp_path / "a.vram", data_of("recordings/gpt"), {"wrapped": {"0": True}},
        samples={"interval_s": 30.0, "columns": columns, "rows": rows},
    )  # fmt: skip
    text = said(capsys, str(path))
    assert text.startswith("LEAK likely: memory grew by about 32.00 MiB per minute")
    assert "GROWTH, maybe a leak" in text
    assert "vramlens explain FILE --at end --by stack" in one_line(text)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("resnet50", "3 steps recorded, and 2 more steps would show growth"),
        ("cut", "the recording shows no steps"),
    ],
)
def test_fail_passes_nothing_that_it_cannot_tell(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.pickle"
    data = data_of("recordings/gpt")
    path.write_bytes(data[: len(data) // 8])
    source = str(path) if name == "cut" else recording(name)
    assert main(["leaks", source, "--fail"]) == 1
    assert capsys.readouterr().err == f"vramlens: cannot tell whether something leaks: {reason}\n"
    assert main(["leaks", source]) == 0
    assert capsys.readouterr().err == ""
