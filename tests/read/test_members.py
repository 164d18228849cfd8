"""The parts of a ``.vram`` file beside its snapshot: read where they are whole, passed over
where they are not.
"""

from __future__ import annotations

import json
import pickle
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.recordings import data_of
from support.vram_files import META, TOTAL, vram
from vramlens import load
from vramlens.trace import DecisionsMeta, TensorKind

NAMES = {"tensors": [
    {"device": 0, "address": 4096, "bytes": 8, "name": "model.a.weight", "kind": "parameter"},
    {"device": 1, "address": "0x2000", "bytes": 8, "name": "model.a.weight.grad", "kind": "gradient"},
    {"device": 0, "address": 8192, "bytes": 8, "name": "x", "kind": "something new"},
]}  # fmt: skip
LEDGER = {
    "start": {"devices": {}, "host": {"rss_bytes": 5}},
    "end": {"devices": {"0": {"total_bytes": 100, "rows": [
        {"kind": "pytorch_allocated", "bytes": 60, "confidence": "exact", "note": ""},
        {"kind": "nccl", "bytes": 10, "confidence": "exact", "note": "2 communicators"},
        {"kind": "free", "bytes": 30, "confidence": "surely"}]}}},
}  # fmt: skip
SAMPLES = {
    "interval_s": 1.5,
    "columns": [
        "time_us",
        "step",
        "device",
        "allocated_bytes",
        "reserved_bytes",
        "free_bytes",
        "host_rss_bytes",
    ],
    "rows": [[20, 1, 0, 8, 9, None, 7], [10, 0, 0, 5, 6, 7, 8], [30, 2, 1, 1, 2, 3, 4]],
}
GRAPHS = data_of("recordings/graphs")


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr("snapshot.pickle", GRAPHS)
    return path


def test_all_parts(tmp_path: Path) -> None:
    recording = load(vram(tmp_path / "a.vram", GRAPHS, {"oom": {"device": 0, "requested_bytes": 5, "message": "m"}},
                          names=NAMES, ledger=LEDGER, samples=SAMPLES))  # fmt: skip
    assert recording.complete
    assert recording.members == ("meta.json", "names.json", "ledger.json", "samples.json")
    meta, names, ledgers, samples = (
        recording.meta,
        recording.names,
        recording.ledgers,
        recording.samples,
    )
    assert (meta.rank, meta.world_size, meta.trigger, meta.step) == (3, 8, "exit", 812)
    assert meta.command == ("python", "train.py", "--lr", "1e-4")
    assert meta.wrapped == {0: False}
    assert meta.devices[0].process_limit_bytes is None  # a fraction of 1.0 is no limit
    assert meta.failure is not None
    assert (meta.failure.device, meta.failure.requested_bytes, meta.failure.message) == (0, 5, "m")
    assert recording.total_bytes == {0: TOTAL}
    assert names is not None
    assert names.kind.tolist() == [TensorKind.PARAMETER, TensorKind.GRADIENT, TensorKind.TENSOR]
    assert names.address.tolist() == [4096, 8192, 8192]
    assert ledgers is not None
    assert [(part.kind, part.bytes, part.confidence) for part in ledgers.end[0].parts] == [
        ("pytorch_allocated", 60, "exact"), ("nccl", 10, "exact"), ("free", 30, "unknown")]  # fmt: skip
    assert ledgers.host["start"] == {"rss_bytes": 5}
    assert samples is not None
    assert samples.time_us.tolist() == [10, 20, 30]
    assert samples.of(0).free_bytes.tolist() == [7, -1]


def test_what_made_up_numbers_decide_of_a_prediction(tmp_path: Path) -> None:
    said = {"made_up_decisions": [{"file": "a.py", "line": 7}, {"file": 3, "line": "x"}, 5]}
    meta = load(vram(tmp_path / "a.vram", GRAPHS, {**said, "sure_bytes": 12})).meta
    assert meta.decisions == DecisionsMeta((("a.py", 7), ("", 0), ("", 0)), 12)
    other = load(vram(tmp_path / "b.vram", GRAPHS, {"made_up_decisions": []})).meta
    assert other.decisions is None


def test_a_bare_snapshot_has_none(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(GRAPHS)
    recording = load(path)
    assert recording.meta.is_empty
    assert (recording.names, recording.ledgers, recording.samples) == (None,) * 3
    assert recording.members == ()


def test_the_state_from_the_start_is_known_to_be_there(tmp_path: Path) -> None:
    assert load(zipped(tmp_path / "a.vram", {"start.pickle": b"\x80"})).members == ("start.pickle",)


@pytest.mark.parametrize(
    ("device", "limit"),
    [
        ({"total_bytes": 1000, "memory_fraction": 0.5, "limit_bytes": 499}, 499),
        ({"total_bytes": 1000, "memory_fraction": 0.5}, 500),
        ({"total_bytes": 1000, "memory_fraction": 1.0, "limit_bytes": 1000}, None),
        ({"total_bytes": 1000, "limit_bytes": 700}, 700),
        ({"total_bytes": 1000, "limit_bytes": 1000}, None),
        ({"limit_bytes": "much", "memory_fraction": -3}, None),
        ("gone", None),
    ],
)
def test_the_limit_of_the_process(tmp_path: Path, device: Any, limit: int | None) -> None:
    meta = load(vram(tmp_path / "a.vram", GRAPHS, {"devices": {"0": device}})).meta
    assert meta.devices[0].process_limit_bytes == limit


@pytest.mark.parametrize("name", ["meta.json", "names.json", "ledger.json", "samples.json"])
@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[" * 100_000, b"[1]", b"7", b"\xff\xfe", b'{"a":' * 5000, b"1" * 5000, b"null"],
)
def test_a_part_that_is_none_is_said_and_left_out(tmp_path: Path, name: str, data: bytes) -> None:
    recording = load(zipped(tmp_path / "a.vram", {name: data}))
    assert recording.peak().requested_bytes > 0
    (said,) = recording.missing
    assert name in said
    assert "\n" not in said
    assert recording.meta.is_empty
    assert (recording.names, recording.ledgers, recording.samples) == (None,) * 3


@pytest.mark.parametrize(
    "data",
    [b'{"tensors": [' + b"{}," * 3_000_000 + b"{}]}", b'{"a": "' + bytes(65) * (1 << 20) + b'"}'],
)
def test_a_part_that_is_too_large_takes_no_time(tmp_path: Path, data: bytes) -> None:
    path = zipped(tmp_path / "a.vram", {"names.json": data})
    start = time.process_time()
    recording = load(path)
    assert time.process_time() - start < 3
    assert "names.json cannot be read" in recording.missing[0]


def test_a_part_with_a_wrong_checksum(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.vram", "w") as archive:
        archive.writestr("names.json", json.dumps(NAMES))
        archive.writestr("snapshot.pickle", GRAPHS)
    data = bytearray((tmp_path / "a.vram").read_bytes())
    data[data.index(b"model.a.weight")] ^= 1
    (tmp_path / "a.vram").write_bytes(data)
    recording = load(tmp_path / "a.vram")
    assert recording.names is None
    assert "names.json" in recording.missing[0]


def test_a_ledger_that_does_not_add_up_is_left_out(tmp_path: Path) -> None:
    wrong = {"end": {"devices": {"0": LEDGER["end"]["devices"]["0"] | {"total_bytes": 101}}}}
    recording = load(vram(tmp_path / "a.vram", GRAPHS, ledger=wrong))
    assert recording.ledgers is not None
    assert recording.ledgers.end == {}
    assert "does not add up" in recording.missing[0]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """A value of which some parts have become something else."""
    if draw(st.integers(0, 9)) == 0:
        return draw(ANYTHING)
    if isinstance(value, dict):
        return {
            key: draw(damaged(inner)) for key, inner in value.items() if draw(st.integers(0, 19))
        }
    if isinstance(value, list):
        return [draw(damaged(inner)) for inner in value]
    return value


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_the_parts_say_the_snapshot_is_explained(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    wrapped = META | {
        "wrapped": {"0": True},
        "oom": {"device": 0, "message": "CUDA out of memory."},
    }
    rows = [[i * 10**9, i, 0, 10**9 + i * 10**8, 10**10, 10**9, 5] for i in range(40)]
    parts = {
        "names": data.draw(damaged(NAMES)),
        "ledger": data.draw(damaged(LEDGER)),
        "samples": data.draw(damaged(SAMPLES | {"rows": rows})),
    }
    path = tmp_path_factory.mktemp("vram") / "a.vram"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", json.dumps(data.draw(damaged(wrapped))))
        for name, value in parts.items():
            archive.writestr(f"{name}.json", json.dumps(value))
        archive.writestr("snapshot.pickle", SMALL)
    explanation = load(path).explain()
    assert explanation.peak is not None
    from support.documents import markdown
    from vramlens.report.explain.json import to_json

    assert json.dumps(to_json(explanation), allow_nan=False)
    assert markdown(explanation, by="module")


def _small() -> bytes:
    snapshot = pickle.loads(GRAPHS)
    for event in snapshot["device_traces"][0]:
        event["user_metadata"] = "model.blocks.3.attn [eval+grad]"
    return pickle.dumps(snapshot)


SMALL = _small()
