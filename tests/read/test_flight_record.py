"""Flight records and the small pickle reader behind them: real files, every protocol, and
hostile ones.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.recordings import DATA
from vramlens.errors import InputError, NotARecording, UnsafeInput
from vramlens.read.flight_record import flight_record, read_flight_record
from vramlens.read.pickle_values import read_values

FILES = sorted((DATA / "ranks").rglob("*.nccl.pickle.xz"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner)
        | st.tuples(inner)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_values_are_those_that_pickle_gives(path: Path) -> None:
    data = lzma.decompress(path.read_bytes())
    assert read_values(data, "test") == pickle.loads(data)


@given(VALUES, st.integers(3, 5))  # protocol 2 makes bytes by a call
def test_every_value_in_every_protocol(value: object, protocol: int) -> None:
    assert read_values(pickle.dumps(value, protocol), "test") == value


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize("protocol", range(2, 6))
def test_nothing_is_executed(protocol: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnsafeInput, match="refused at byte"):
        read_values(pickle.dumps({"entries": [Evil()]}, protocol), "evil")
    assert capsys.readouterr().out == ""


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_value_or_an_error(data: bytes) -> None:
    with contextlib.suppress(UnsafeInput, NotARecording):
        read_values(b"\x80\x04" + data, "fuzz")


@given(st.data())
def test_a_damaged_record_is_an_error_or_a_record(data: st.DataObject) -> None:
    whole = bytearray(lzma.decompress(FILES[0].read_bytes()))
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    with contextlib.suppress(UnsafeInput, NotARecording):
        flight_record(bytes(whole[:cut]), "fuzz")


@pytest.mark.parametrize("close", [b"}%bNs.", b"}(%bNu.", b"(%bNd."])
def test_other_keys_than_texts_are_passed_over(close: bytes) -> None:
    """To hash this tuple of two tuples of two tuples ... takes 2 ** 60 steps."""
    doubling = b"N\x85\x94" + b"".join(b"0h%ch%c\x86\x94" % (level, level) for level in range(60))
    assert read_values(b"\x80\x04" + close % doubling, "bomb") == {}


def test_what_a_record_names_often_is_made_once() -> None:
    frames = [{"name": "f", "filename": "a.py", "line": 1}] * 100
    shapes = [[1] * 16] * 256
    entry = {
        "profiling_name": "nccl:all_reduce",
        "frames": frames,
        "input_sizes": shapes,
        "output_sizes": shapes,
    }
    groups = {str(number): {"ranks": "[0, 1, 2]"} for number in range(2)}
    record = {
        "version": "2",
        "pg_config": groups,
        "entries": [entry] * 100_000 + [{**entry, "state": "started"}],
    }
    found = flight_record(pickle.dumps(record, 4), "test")
    first, last = found.collectives[0], found.collectives[-1]
    assert len(found.collectives) == 100_001
    assert first is found.collectives[99_999]
    assert first.frames is last.frames
    assert first.input_sizes is last.output_sizes
    assert first.input_sizes == ((1,) * 16,) * 256
    assert [group.ranks for group in found.groups.values()] == [(0, 1, 2)] * 2


def test_ranks_that_no_job_has_are_passed_over() -> None:
    groups = {"0": {"ranks": [0, 1, 1 << 60, -1, True, "2"]}, "1": {"ranks": "[0, 999999999]"}}
    found = flight_record(
        json.dumps({"version": "2", "pg_config": groups, "entries": []}).encode(), "test"
    )
    assert [group.ranks for group in found.groups.values()] == [(0, 1), (0,)]


def test_a_real_record() -> None:
    record = read_flight_record(DATA / "ranks/desync/desync.rank1.nccl.pickle.xz")
    assert record.groups["0"].ranks == (0, 1)
    assert record.last_completed == {"0": 6}
    last = record.collectives[-1]
    assert (last.name, last.seq, last.state, last.input_sizes, last.dtypes) == (
        "all_gather", 6, "completed", ((1048576,),), ("Float",),
    )  # fmt: skip
    assert str(last.user_frame) == "train/multi.py:63 in desync"


def test_what_the_watchdog_gave_up_was_never_complete() -> None:
    """A real hang: after 20 s the calls end as if they were complete, and both ranks go on."""
    waiting = []
    for rank in (0, 1):
        path = DATA / f"ranks/given_up/hang.rank{rank}.nccl.pickle.xz"
        record = read_flight_record(path)
        assert len(record.collectives) < len(read_pickle(path)["entries"])
        waiting.append([(c.group, c.seq, c.name) for c in record.collectives if not c.completed_ns])
        assert record.last_completed == {"0": 93, "1": 1 if rank else 2}
    assert waiting == [
        [("0", number, "all_reduce") for number in (94, 95, 96)],
        [("1", 2, "all_gather")],
    ]


def test_a_slow_call_after_which_the_program_goes_on_is_no_end() -> None:
    value = read_pickle(DATA / "ranks/given_up/hang.rank0.nccl.pickle.xz")
    late = value["entries"][-1]["time_created_ns"] + 1_000_000_000_000
    value["entries"].append({**value["entries"][0], "time_created_ns": late})
    record = flight_record(json.dumps(value).encode(), "x")
    assert len(record.collectives) == len(value["entries"])


def read_pickle(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = pickle.loads(lzma.decompress(path.read_bytes()))
    return value


def test_json_is_read_too() -> None:
    value = pickle.loads(lzma.decompress(FILES[0].read_bytes()))
    assert len(flight_record(json.dumps(value).encode(), "x").collectives) == len(value["entries"])


@pytest.mark.parametrize(
    "data", [b"{}", b"[]", b"nonsense", pickle.dumps([1, 2]), pickle.dumps({"segments": []})]
)
def test_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(NotARecording, match="flight record"):
        flight_record(data, "x")


def test_values_of_wrong_types_are_passed_over() -> None:
    odd = {
        "version": 3,
        "pg_config": {"0": {"ranks": [0, "x", -1, 2.5, 1], "desc": None}, 7: "x"},
        "pg_status": {"0": 5, "1": {"last_completed_collective": "x"}},
        "entries": [
            None,
            {"frames": [{}, 3], "process_group": "x", "input_sizes": [["x", -1, 5], 3]},
            {},
        ],
    }
    record = flight_record(pickle.dumps(odd), "x")
    assert record.groups["0"].ranks == (0, 1)
    assert len(record.collectives) == 2
    assert record.collectives[0].input_sizes == ((5,), ())


def test_a_missing_file() -> None:
    with pytest.raises(InputError, match="no such file"):
        read_flight_record("/nowhere/at/all")
