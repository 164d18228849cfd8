"""The Python interface: opening every kind of file, and asking it."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.oracle import MIB
from support.recordings import DATA, data_of, truth_of
from vramlens import InputError, NotARecording, UsageError, explain, load
from vramlens.analyses.attribution.attribution import attribute
from vramlens.api import Recording, example_path

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GPT = DATA / "recordings/gpt.pickle.xz"
META = {"torch": "2.11.0", "device_name": "NVIDIA H200", "total_bytes": {"0": 150_109_880_320}}


def vram(path: Path, data: bytes, meta: Any = META) -> Path:
    """A ``.vram`` file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("snapshot.pickle", data)
        if meta is not None:
            archive.writestr("meta.json", json.dumps(meta))
    return path


def test_every_compression_gives_the_same(tmp_path: Path) -> None:
    data = data_of("recordings/gpt")
    packed = {
        "": data,
        ".xz": lzma.compress(data),
        ".gz": gzip.compress(data),
        ".zst": zstd.compress(data),
    }
    heaps = []
    for ending, content in packed.items():
        path = tmp_path / f"gpt.pickle{ending}"
        path.write_bytes(content)
        recording = load(path)
        assert recording.source == str(path)
        assert recording.complete
        heaps.append(recording.peak())
    heaps.append(load(vram(tmp_path / "gpt.vram", data)).peak())
    assert all(heap == heaps[0] for heap in heaps)
    assert (
        heaps[0].requested_bytes == truth_of("recordings/gpt")["stats"]["requested_bytes.all.peak"]
    )


def test_the_content_counts_and_not_the_name(tmp_path: Path) -> None:
    path = tmp_path / "recording.txt"
    path.write_bytes(data_of("recordings/graphs"))
    assert load(path).peak().requested_bytes > 0


def test_a_recordings_own_facts(tmp_path: Path) -> None:
    path = vram(tmp_path / "rank00000.vram", data_of("recordings/oom_train"))
    recording = load(path)
    assert (recording.torch_version, recording.device_name) == ("2.11.0", "NVIDIA H200")
    explanation = recording.explain()
    assert (explanation.recording.torch, explanation.recording.device) == ("2.11.0", "NVIDIA H200")
    assert sum(row.bytes for row in explanation.ledger) == 150_109_880_320  # known without --total


@pytest.mark.parametrize("meta", [None, [], {}, {"torch": 5, "total_bytes": "much"}])
def test_facts_that_are_none(tmp_path: Path, meta: Any) -> None:
    recording = load(vram(tmp_path / "run.vram", data_of("recordings/oom_train"), meta))
    assert (recording.torch_version, recording.device_name) == (None, None)
    assert recording.explain().ledger == ()


def test_a_zip_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "other.vram"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "nothing")
    with pytest.raises(NotARecording, match="not a vramlens recording"):
        load(path)


def test_the_readmes_questions() -> None:
    recording = load(DATA / "recordings/oom_train.pickle.xz")
    lines = recording.peak().by_line
    assert [row.bytes for row in lines] == sorted((row.bytes for row in lines), reverse=True)
    assert str(lines[0].place) == "train/workloads.py:39 in forward"
    assert recording.explain().findings
    oom = recording.oom()
    assert oom is not None
    assert oom.requested_bytes == 256 * MIB
    fragmentation = recording.fragmentation()
    assert fragmentation is not None
    assert fragmentation.event == oom.event
    assert recording.devices[0].allocations.requested_bytes.dtype == np.int64


def test_nothing_failed() -> None:
    assert load(GPT).oom() is None


def test_explain_opens_what_it_is_given(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"epoch 1\n{truth_of('recordings/oom_train')['oom_message']}\n")
    of_text, of_recording = explain(log), explain(GPT)
    assert of_text.oom is not None
    assert (of_text.oom.wall, of_text.oom.tried_bytes) == ("process_limit", 256 * MIB)
    assert (of_text.peak, of_text.heap, of_text.fragmentation) == (None, None, None)
    assert of_recording.peak == load(GPT).explain().peak


@pytest.mark.parametrize("at", [None, "peak", "end", "0", "1234"])
def test_moments(at: str | None) -> None:
    explanation = explain(GPT, at=at)
    assert explanation.at == ("peak" if at is None else at)
    assert explanation.peak is not None
    assert explanation.heap is not None
    events = {"peak": explanation.peak.heap.event, "end": explanation.recording.events - 1}
    assert explanation.heap.event == (
        events[explanation.at] if explanation.at in events else int(explanation.at)
    )


def test_a_failure_is_shown_first() -> None:
    path = DATA / "recordings/oom_train.pickle.xz"
    assert explain(path).at == "oom"
    assert explain(path) == explain(path, at="oom")
    assert explain(path, at="peak").at == "peak"


@pytest.mark.parametrize("at", ["oom", "-1", "later", "99999999", ""])
def test_moments_that_are_none(at: str) -> None:
    with pytest.raises(UsageError):
        explain(GPT, at=at)


def test_devices() -> None:
    path = DATA / "ranks/wrong_device/wrong_device.rank1.pickle.xz"
    recording = load(path)
    assert recording.peak().device == recording.main_device == 1
    assert recording.peak(0).device == 0
    assert recording.peak(0).requested_bytes < recording.peak().requested_bytes
    assert explain(path, device=0).peak is not None
    for ask in (recording.peak, recording.attribution, lambda device: explain(path, device=device)):
        with pytest.raises(UsageError, match="no device 5"):
            ask(5)


def test_an_attribution_is_made_once() -> None:
    recording = load(GPT)
    assert recording.attribution() is recording.attribution(0)


def test_all_questions_share_the_attribution(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(
        "vramlens.api.attribute", lambda *given: made.append(attribute(*given)) or made[-1]
    )
    monkeypatch.setattr(
        "vramlens.analyses.recording_explanation.attribute", lambda *given: made.append(None)
    )
    recording = load(GPT)
    assert recording.explain().peak is not None
    assert recording.oom() is None
    assert recording.fragmentation() is not None
    assert recording.peak().by_line
    assert len(made) == 1


def test_progress_ends_at_one(tmp_path: Path) -> None:
    path = tmp_path / "gpt.pickle"
    path.write_bytes(data_of("recordings/gpt"))
    shares: list[float] = []
    load(path, progress=shares.append)
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (b"", InputError, "is empty"),
        (b"just a log\n", NotARecording, "is text"),
        (b'{"a": 1}', NotARecording, "is JSON"),
    ],
)
def test_what_is_no_recording(
    tmp_path: Path, content: bytes, error: type[InputError], said: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for ask in (load, explain):
        with pytest.raises(error, match=said) as caught:
            ask(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.pickle"):
        with pytest.raises(InputError, match=path.name):
            load(path)


def test_a_log_without_an_error_in_it(tmp_path: Path) -> None:
    log = tmp_path / "fine.log"
    log.write_text("step 1\nstep 2\n")
    with pytest.raises(NotARecording, match="no out-of-memory error"):
        explain(GPT, log=log)


@pytest.mark.parametrize("kept", [300, 1000, 20_000])
def test_of_a_cut_file_the_rest_is_told_and_nothing_claimed_exact(
    tmp_path: Path, kept: int
) -> None:
    path = tmp_path / "cut.pickle.xz"
    path.write_bytes(GPT.read_bytes()[:kept])
    explanation = load(path).explain()
    assert not explanation.recording.complete
    assert "the file ends early" in explanation.recording.missing[0]
    assert explanation.peak is not None
    assert explanation.peak.exact == ()


def test_of_a_file_cut_before_anything_whole_nothing_is_told(tmp_path: Path) -> None:
    path = tmp_path / "cut.pickle.xz"
    path.write_bytes(GPT.read_bytes()[:100])
    with pytest.raises(InputError, match="damaged or cut short"):
        load(path)


def test_the_example_is_a_failure() -> None:
    recording = load(example_path())
    assert isinstance(recording, Recording)
    oom = recording.oom()
    assert oom is not None
    assert oom.wall == "device"


def test_replay_and_tune_answer_from_python() -> None:
    recording = load(DATA / "recordings/resnet50.pickle.xz")
    (row,) = recording.replay("expandable_segments:True", cap="4GiB").what_if
    assert (row.peak_reserved_bytes, row.cap_bytes) == (2994 * MIB, 4 << 30)
    tuning = recording.tune(conf="max_split_size_mb:48")
    assert tuning.best is not None
    assert tuning.best.row.settings.expandable_segments
    assert "max_split_size_mb:48" in {one.row.settings.conf for one in tuning.tried}
    cards = recording.tune(cards=["3GiB", 2 << 30]).tried[0].cards
    assert [card.size_bytes for card in cards] == [2 << 30, 3 << 30]
    with pytest.raises(UsageError, match="use either cap or cards"):
        recording.tune("4GiB", cards=["8GiB"])
