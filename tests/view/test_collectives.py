"""Collectives in a page's data: recorded marks and flight records, each call once, at its time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.page_data import PageData
from support.recordings import DATA, block, data_of, dump_slowly, event, read, segment, snapshot
from vramlens import api
from vramlens.read.flight_record import flight_record, read_flight_record
from vramlens.view.page import data_of as page_data_of
from vramlens.view.timeline.collective_calls import RankFlight, problems_of
from vramlens.view.timeline.marked_regions import is_collective

RANKS = DATA / "ranks"
AT = 1 << 40
START_US = 1_795_248_403_000_000
"""A little before the first call of the flight records in tests/data/ranks/desync."""


def flight_of(job, rank):
    return RankFlight(rank, read_flight_record(RANKS / job / f"{job}.rank{rank}.nccl.pickle.xz"))


def made_of(*entries, **more):
    """A flight record of these entries, as PyTorch would write it."""
    usual = {
        "process_group": ("0", "default_pg"),
        "profiling_name": "nccl:all_reduce",
        "state": "completed",
        "is_p2p": False,
    }
    record = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "entries": [
            {**usual, "collective_seq_id": n + 1, **entry} for n, entry in enumerate(entries)
        ],
    }
    return flight_record(dump_slowly({**record, **more}), "made")


def marked(*marks, events=99, every_us=1000, start_us=START_US):
    """A recording with an event each millisecond, and marks (stage, name, microseconds after its
    start).
    """
    alive = [block(AT, 1 << 20, 1 << 20)]
    happened = [
        event(action, AT + (1 << 20), 4096, time_us=start_us + n * every_us)
        for n, action in zip(
            range(events),
            itertools.cycle(("alloc", "free_requested", "free_completed")),
            strict=False,
        )
    ]
    notes = [
        {"stage": stage, "name": name, "device": 0, "time_us": start_us + at_us}
        for stage, name, at_us in marks
    ]
    rest = block(AT + (1 << 20), 3 << 20, 0, "inactive")
    return read(
        dump_slowly(
            snapshot(happened, [segment(AT, 4 << 20, [*alive, rest])], external_annotations=notes)
        )
    )


def calls_in(recordings, flights=()):
    """By track, its collectives as rows, and the header of each."""
    page = PageData(page_data_of(recordings, None, flights))
    found = []
    for track in page.header["tracks"]:
        told = track["collectives"]
        if told is None:
            found.append((None, [], track))
            continue
        names = (
            "at",
            "late",
            "took",
            "finished",
            "name",
            "group",
            "seq",
            "state",
            "bytes",
            "shape",
            "stack",
            "problem",
        )
        columns = {name: page.column(told[name]) for name in names}
        texts, groups = track["texts"], told["groups"]
        rows = [
            dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)
        ]
        for row in rows:
            row["name"] = texts[row["name"]]
            row["state"] = told["states"][row["state"]]
            row["group"] = texts[groups[row["group"] - 1][0]] if row["group"] else None
            row["shape"] = texts[row["shape"] - 1] if row["shape"] else None
            row["problem"] = texts[row["problem"] - 1] if row["problem"] else None
        starts = page.column(told["stack_starts"])
        for row in rows:
            span = range(starts[row["stack"] - 1], starts[row["stack"]]) if row["stack"] else ()
            files, lines = page.column(told["frame_file"]), page.column(told["frame_line"])
            row["frames"] = [f"{texts[files[i]]}:{lines[i]}" for i in span]
        found.append((told, rows, track))
    return found


@pytest.mark.parametrize("job", ["ddp", "leak_rank1", "rank0_gather", "wrong_device"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_real_ranks_calls_are_those_of_its_flight_record_each_within_its_mark(job, rank):
    trace = read(data_of(f"ranks/{job}/{job}.rank{rank}"))
    flight = flight_of(job, rank)
    told = [each for each in calls_in([trace], [flight]) if each[0] is not None]
    ((header, rows, track),) = told  # the device that it called on, and no other
    notes = trace.annotations
    begins = sorted(
        int(notes.time_us[i])
        for i in range(len(notes))
        if notes.starts[i] and is_collective(trace.stacks.strings[notes.name[i]])
    )
    assert [row["at"] + track["start_us"] for row in rows] == begins
    recorded = sorted(flight.record.collectives, key=lambda one: one.created_ns)
    assert [row["name"] for row in rows] == [one.name for one in recorded]
    assert [row["seq"] - 1 for row in rows] == [one.seq for one in recorded]
    for row, one in zip(rows, recorded, strict=True):
        # The flight record's own time lies in the mark: both clocks are one.
        assert (
            0 <= one.created_ns // 1000 - (row["at"] + track["start_us"]) < row["took"] < 1_000_000
        )
        assert row["at"] + row["finished"] - 1 + track["start_us"] == one.completed_ns // 1000
        assert (row["state"], row["group"], row["problem"]) == (one.state, "0 (default_pg)", None)
        assert row["frames"] == [f"{frame.file}:{frame.line}" for frame in one.frames]
        elements = 1
        for size in one.input_sizes[0]:
            elements *= size
        assert row["bytes"] - 1 == elements * {"Long": 8, "Float": 4, "Int": 4}[one.dtypes[0]]
    assert header["notes"] == []


def test_a_recording_alone_tells_names_and_times():
    ((header, rows, track),) = calls_in([api.load(DATA / "captured" / "ddp-rank0.vram")])
    assert [row["name"] for row in rows].count("all_reduce") == 13
    assert len(rows) == 18
    assert all(
        row["took"] and not row["group"] and not row["bytes"] and row["state"] == "" for row in rows
    )
    assert "flight record" in header["notes"][-1]
    assert track["rank"] == 0
    # What has a band of its own is not among the regions.
    page = PageData(page_data_of([api.load(DATA / "captured" / "ddp-rank0.vram")]))
    texts = page.header["tracks"][0]["texts"]
    bands = [texts[name] for name in page.column(page.header["tracks"][0]["bands"]["name"])]
    assert "DistributedDataParallel.forward" in bands
    assert not any(map(is_collective, bands))


def test_without_collectives_there_is_no_band():
    assert calls_in([read(data_of("recordings/gpt"))])[0][0] is None
    assert calls_in([marked()])[0][0] is None


def test_ranks_that_called_different_things_are_told():
    flights = [flight_of("desync", rank) for rank in (0, 1)]
    (_, first, _), (_, second, _) = calls_in([marked(events=198), marked(events=198)], flights)
    assert [row["state"] for row in first[-2:]] == ["scheduled", "scheduled"]
    problems = [(row["seq"] - 1, row["problem"]) for row in (*first, *second) if row["problem"]]
    assert [seq for seq, _ in problems] == [6, 6]
    assert problems[0][1] == problems[1][1]
    assert "rank 0 all_reduce" in problems[0][1]
    assert "rank 1 all_gather" in problems[0][1]
    assert any(frame.startswith("train/multi.py:") for frame in first[-1]["frames"])
    assert problems_of([flights[0], None]) == {}


def test_who_is_waited_for_is_named():
    late = {"time_created_ns": (START_US + 50_000) * 1000, "state": "scheduled"}
    early = {"time_created_ns": (START_US + 40_000) * 1000}
    flights = [RankFlight(0, made_of(early, late)), RankFlight(1, made_of(early))]
    (_, first, _), (_, second, _) = calls_in([marked(), marked()], flights)
    assert first[1]["problem"].startswith(
        "It waits for rank 1, which never called it (its last call in this group is number 1,"
    )
    assert [row["problem"] for row in second] == [None]


def test_of_a_rank_that_is_not_here_nothing_is_claimed():
    record = made_of(
        {"time_created_ns": (START_US + 50_000) * 1000, "state": "scheduled"},
        pg_config={"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
    )
    (_, first, _), _ = calls_in(
        [marked(), marked()], [RankFlight(0, record), RankFlight(1, record)]
    )
    assert first[0]["problem"] == "It waits for rank 2, of which no flight record is here."


def test_a_mark_without_an_end_never_returned():
    trace = marked(
        ("START", "nccl:all_reduce", 10_000),
        ("END", "nccl:all_reduce", 10_100),
        ("START", "nccl:barrier", 97_000),
    )
    ((_, rows, _),) = calls_in([trace])
    assert [(row["at"], row["took"], row["state"]) for row in rows] == [
        (10_000, 101, ""),
        (97_000, 0, "not returned"),
    ]


def test_a_mark_without_an_end_is_of_one_call_and_of_no_later_one():
    trace = marked(("START", "nccl:all_reduce", 10_000), events=3000)
    record = made_of(
        {"time_created_ns": (START_US + 10_030) * 1000, "state": "started"},
        {"time_created_ns": (START_US + 2_000_000) * 1000, "state": "scheduled"},
    )
    ((_, rows, _),) = calls_in([trace], [RankFlight(0, record)])
    assert [(row["at"], row["state"]) for row in rows] == [
        (10_000, "started"),
        (2_000_000, "scheduled"),
    ]
    ((_, rows, _),) = calls_in(
        [trace], [RankFlight(0, made_of({"time_created_ns": (START_US + 2_000_000) * 1000}))]
    )
    assert [(row["at"], row["state"]) for row in rows] == [
        (10_000, "not returned"),
        (2_000_000, "completed"),
    ]


def test_calls_outside_the_recordings_time_are_counted():
    def call(after_us):
        return {"time_created_ns": (START_US + after_us) * 1000}

    ((header, rows, _),) = calls_in(
        [marked()], [RankFlight(0, made_of(call(-5), call(0), call(120_000), call(90_000_000)))]
    )
    # What follows within a minute stands at the recording's end: a rank that hangs allocates
    # nothing.
    assert [(row["at"], row["late"]) for row in rows] == [(0, 0), (98_000, 22_000)]
    assert header["notes"] == ["Not drawn: 2 calls, 1 before it began and 1 after it ended."]
    ((header, rows, _),) = calls_in([marked()], [RankFlight(0, made_of(call(-900_000_000)))])
    assert not rows
    assert "of another run?" in header["notes"][0]
    untimed = marked(every_us=0)
    ((header, rows, _),) = calls_in([untimed], [RankFlight(0, made_of(call(0)))])
    assert not rows
    assert "no times" in header["notes"][0]


def test_what_a_flight_record_does_not_say_stays_unknown():
    odd = {
        "time_created_ns": (START_US + 1000) * 1000,
        "state": "<b>done</b>",
        "profiling_name": "nccl:" + "</script>" * 500,
        "input_sizes": [[1 << 60, 1 << 60], [3]],
        "input_dtypes": ["Float", "Posit"],
        "frames": [{"filename": "\x1b[2J", "line": -1, "name": "f"}] * 90,
        "process_group": ("9", "<img>"),
    }
    without_time = {"time_created_ns": None}
    ((_, rows, _),) = calls_in([marked()], [RankFlight(0, made_of(odd, without_time))])
    (row,) = rows
    assert (row["state"], row["bytes"], row["finished"], row["took"]) == ("unknown", 0, 0, 0)
    assert row["group"] == "9 (<img>)"
    assert len(row["frames"]) == 90
    assert "\x1b" not in row["frames"][0]
    assert len(row["name"]) <= 2001


def test_marks_with_times_that_no_clock_shows_do_no_harm():
    far = (1 << 62) - START_US
    trace = marked(
        ("START", "nccl:a", -START_US),
        ("START", "nccl:b", 5),
        ("END", "nccl:b", far),
        ("END", "nccl:c", 7),
    )
    ((header, rows, _),) = calls_in([trace])
    assert [row["name"] for row in rows] == ["b"]
    assert "1 before it began" in header["notes"][0]


_TIMES_US = st.one_of(st.integers(-5_000, 130_000), st.integers(-(1 << 62), (1 << 62) - START_US))
_MARKS = st.lists(
    st.tuples(
        st.sampled_from(["START", "END"]), st.sampled_from(["nccl:a", "nccl:b", "x"]), _TIMES_US
    )
)
_CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "time_created_ns": _TIMES_US.map(lambda us: (START_US + us) * 1000),
            "profiling_name": st.sampled_from(["nccl:a", "b"]),
        },
        optional={
            "time_discovered_completed_ns": st.integers(0, 1 << 62),
            "input_sizes": st.lists(st.lists(st.integers(0, 1 << 61), max_size=3), max_size=3),
            "input_dtypes": st.lists(st.sampled_from(["Float", "?"]), max_size=3),
            "collective_seq_id": st.integers(0, (1 << 62) - 1),
        },
    )
)


@settings(max_examples=60, deadline=None)
@given(_MARKS, _CALLS)
def test_whatever_marks_and_calls_say_each_is_told_once_and_in_order(marks, calls):
    ((_, rows, track),) = calls_in([marked(*marks)], [RankFlight(0, made_of(*calls))])
    assert track["bands"]["n"] <= sum(name == "x" for _, name, _ in marks)
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert all(0 <= row["at"] <= 98_000 for row in rows)
    timed = [call for call in calls if 0 < call["time_created_ns"] < 1 << 62]
    inside = [
        call
        for call in timed
        if START_US <= call["time_created_ns"] // 1000 <= START_US + 98_000 + 60_000_000
    ]
    told = [row for row in rows if row["seq"]]
    assert len(told) <= len(timed)
    if not any(stage == "START" and name.startswith("nccl:") for stage, name, _ in marks):
        assert len(rows) == len(told) == len(inside)
    assert len(rows) - len(told) <= sum(stage == "START" for stage, _, _ in marks)
