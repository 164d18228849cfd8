"""Which run a recording comes from, in a few words; nothing for a bare snapshot."""

from __future__ import annotations

import io
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.documents import markdown, print_answer
from support.recordings import DATA
from support.samples import EVIL, failed, run
from support.vram_files import GptMarks, in_validation, marked, vram
from vramlens import explain
from vramlens.analyses.explanation import Explanation, Overwritten
from vramlens.report.explain.json import to_json
from vramlens.report.explain.origin import command_of, duration, origin_of
from vramlens.trace import DecisionsMeta, DeviceMeta, Meta
from vramlens.units import GIB

MADE = Meta(torch="2.11.0", command=("python", "train.py", "a b"), trigger="oom", rank=3, world_size=8,
            device_name="H200", step=1812, max_events=100_000)  # fmt: skip


def with_meta(explanation: Explanation, meta: Meta, **more: Any) -> Explanation:
    return replace(explanation, recording=replace(explanation.recording, meta=meta, **more))


def text_of(
    explanation: Explanation, by: str = "line", *, whole: bool = True, width: int = 100
) -> str:
    out = io.StringIO()
    print_answer(explanation, Console(file=out, width=width), by=by, whole=whole)
    return out.getvalue()


def test_a_bare_snapshot_says_nothing_of_its_making() -> None:
    assert origin_of(run().recording) == ()


@pytest.mark.parametrize(
    ("lines", "sure_bytes", "told"),
    [
        ((7,), GIB, "A made-up number decides /a/train.py:7: if a run does the least that it can there,"
                    " it needs 1.00 GiB at its peak;"),
        ((7, 9), None, "Made-up numbers decide /a/train.py:7, /a/train.py:9: a run may take more or"),
    ],
)  # fmt: skip
def test_a_prediction_says_what_made_up_numbers_decide(
    lines: tuple[int, ...], sure_bytes: int | None, told: str
) -> None:
    places = tuple(("/a/train.py", line) for line in lines)
    meta = Meta(command=("vramlens", "predict"), decisions=DecisionsMeta(places, sure_bytes))
    (sentence,) = origin_of(with_meta(run(), meta).recording)
    assert sentence.startswith(told)


def test_what_a_recording_says() -> None:
    ring = Overwritten(0, 5, 3 * 3_600_000_000 + 61_000_000)
    assert origin_of(with_meta(run(), MADE, overwritten=(ring,)).recording) == (
        "Recorded on H200, torch 2.11.0, rank 3 of 8; written when memory ran out, after step 1,812.",
        "The ring of 100,000 events was full: the first 3 h 1 min is overwritten, and only memory that was still in use is known.",
    )


@pytest.mark.parametrize(
    "words",
    [
        ("python", "train.py", "a b"),
        ("vramlens", "predict", "--cards", "2G,3G,4G,8G", "--steps", "3", "--conf", "a:1,b:2", "train.py"),
        ("python", "train.py", "--note", "it's --long, " * 9),
    ],
)  # fmt: skip
def test_the_command_is_printed_alone_so_that_it_can_be_pasted(words: tuple[str, ...]) -> None:
    lines = text_of(with_meta(run(), replace(MADE, command=words)), width=60).splitlines()
    start = lines.index("Command:") + 1
    end = next(at for at in range(start, len(lines)) if not lines[at].endswith("\\")) + 1
    pasted = "\n".join(lines[start:end]).replace("\\\n", "")  # as a shell joins such lines
    assert tuple(shlex.split(pasted)) == words
    assert f"\n{shlex.join(words)}\n```" in markdown(with_meta(run(), replace(MADE, command=words)))


@pytest.mark.parametrize(
    "meta", [Meta(), Meta(trigger="none such"), Meta(step=5), Meta(rank=0, world_size=1)]
)
def test_a_recording_that_says_next_to_nothing(meta: Meta) -> None:
    assert origin_of(with_meta(run(), meta).recording) == ()


def test_names_from_the_recording_do_not_steer_the_terminal() -> None:
    meta = replace(MADE, torch=EVIL, command=(EVIL,), device_name=EVIL)
    recording = with_meta(run(), meta).recording
    assert all(text.isprintable() for text in (*origin_of(recording), command_of(recording)))
    assert "\x1b" not in text_of(with_meta(run(), meta)) + markdown(with_meta(run(), meta))


def test_a_higher_peak_of_which_no_events_are_left() -> None:
    peak = run().peak
    assert peak is not None
    for counted, told in ((peak.allocated_bytes, False), (peak.allocated_bytes + GIB, True)):
        device = DeviceMeta(stats={"allocated_bytes.all.peak": counted})
        text = text_of(with_meta(run(), replace(MADE, devices={peak.device: device})))
        assert ("Memory use was higher at a time" in text) == told
    assert "Memory use was higher" not in text_of(run())


def test_a_failure_still_fits_one_screen() -> None:
    text = text_of(with_meta(failed(), MADE), whole=False)
    assert len(text.splitlines()) <= 24
    assert "Recorded on" not in text
    assert "Recorded on" in text_of(with_meta(failed(), MADE))


@pytest.mark.parametrize(
    ("time_us", "said"),
    [
        (0, "0 s"),
        (59_999_999, "59 s"),
        (60_000_000, "1 min"),
        (3_661_000_000, "1 h 1 min"),
        (90_000_000_000, "1 d 1 h"),
    ],
)
def test_durations(time_us: int, said: str) -> None:
    assert duration(time_us) == said


def test_a_whole_recording_in_words(tmp_path: Path) -> None:
    ledger = {"end": {"devices": {"0": {"total_bytes": 300, "rows": [
        {"kind": "pytorch_allocated", "bytes": 100, "confidence": "exact"},
        {"kind": "nccl", "bytes": 150, "confidence": "exact"},
        {"kind": "this_process_other", "bytes": 50, "confidence": "inferred"}]}}}}  # fmt: skip
    path = vram(tmp_path / "a.vram", marked("found/eval_graph", GptMarks(in_validation)), {"max_events": 4124,
                "wrapped": {"0": True}, "started_us": 1_000_000}, ledger=ledger)  # fmt: skip
    explanation = explain(path)
    text = text_of(explanation, "module")
    assert "Recorded on NVIDIA H200, torch 2.11.0, rank 3 of 8; written" in text
    assert "was full" in text
    assert "Where the GPU's 300 bytes were at the end" in text
    assert "NCCL buffers" in text
    assert "this process, outside PyTorch (CUDA context and libraries) (inferred)" in text
    assert "    blocks" in text
    assert "      {1-2}" in text
    data = to_json(explanation)
    assert data["recording"]["command"] == ["python", "train.py", "--lr", "1e-4"]
    assert data["recording"]["overwritten"][0]["device"] == 0
    assert data["recording"]["members"] == ["meta.json", "ledger.json"]
    assert [row["kind"] for row in data["ledger"]] == [
        "pytorch_allocated",
        "nccl",
        "this_process_other",
    ]
    outside = data["peak"]["requested_bytes"] - sum(
        row["bytes"] for row in data["peak"]["by_module"]
    )
    assert outside > 0


def test_a_bare_snapshots_text_is_as_it_was() -> None:
    text = text_of(explain(DATA / "found/eval_graph.pickle.xz"))
    assert "Recorded" not in text
    assert "Command" not in text
    data = to_json(explain(DATA / "found/eval_graph.pickle.xz"))["recording"]
    assert (data["command"], data["overwritten"], data["members"], data["module_marks"]) == (
        [],
        [],
        [],
        None,
    )


def test_the_names_of_tensors_below_their_line() -> None:
    held = run().heap
    assert held is not None
    lines = (replace(held.by_line[0], names=("model.head.weight", EVIL)), *held.by_line[1:])
    explanation = run(heap=replace(held, by_line=lines))
    text, page = text_of(explanation), markdown(explanation)
    assert "      tensors: model.head.weight, a[bold]b" in text
    assert "`model.head.weight`" in page
    assert "\x1b" not in text + page
