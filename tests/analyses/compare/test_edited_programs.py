"""Real programs, edited: files renamed, lines moved, times and addresses others. Nothing
changed, or the one thing did.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.copies import again, shuffled, snapshot_of
from support.documents import parts_of
from support.edited import Edit, edited_code, edited_snapshot, with_lines_above
from vramlens.analyses.compare.alignment import align
from vramlens.analyses.compare.compared_run import CodeLine, Run, run_of
from vramlens.analyses.compare.diff_findings import headline
from vramlens.analyses.compare.run_diff import diff_runs
from vramlens.analyses.finding import Place
from vramlens.read.snapshot import read_snapshot
from vramlens.report.diff.story import diff_document
from vramlens.report.document import Figures

NAMES = ("gpt", "leak_exception", "leak_cycle", "oom_train")
MINE = "train/workloads.py"


def run(snapshot: dict) -> Run:
    return run_of(read_snapshot(io.BytesIO(pickle.dumps(snapshot, 4)), "copy.pickle"))


@cache
def original(name: str) -> Run:
    return run(snapshot_of(f"recordings/{name}"))


@cache
def program(name: str, files: int) -> tuple[CodeLine, ...]:
    """The lines of a real program, its functions spread over some files."""
    functions = sorted({line.place.function for line in original(name).code})

    def spread(place: Place) -> Place:
        return replace(place, file=f"/home/a/job/part{functions.index(place.function) % files}.py")

    return tuple(edited_code(list(original(name).code), spread))


def renamed(kind: str, number: int) -> str:
    return {
        "same": f"/home/a/job/part{number}.py",
        "elsewhere": f"C:\\code\\part{number}.py",
        "renamed": f"/home/a/job/{'xyz'[number]}_fixed.py",
        "cell": f"<ipython-input-{9 - number}-ab{number}>",
        "kernel": f"/tmp/ipykernel_77/{3_141_592 * (5 - number)}.py",
    }[kind]


edits = st.builds(
    lambda kinds, above: (kinds, above),
    st.lists(
        st.sampled_from(["same", "elsewhere", "renamed", "cell", "kernel"]), min_size=3, max_size=3
    ),
    st.lists(
        st.dictionaries(st.integers(1, 300), st.integers(1, 40), max_size=4), min_size=3, max_size=3
    ),
)


def edit_of(made: tuple[list[str], list[dict[int, int]]]) -> Edit:
    kinds, above = made

    def edit(place: Place) -> Place:
        number = int(place.file[-4])
        return replace(with_lines_above(above[number], place), file=renamed(kinds[number], number))

    return edit


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.integers(1, 3), edits)
def test_every_line_is_found_again(name, files, made):
    before, edit = list(program(name, files)), edit_of(made)
    after = edited_code(before, edit)
    found = align(before, after).after
    assert all(new == edit(old) for old, new in found.items())
    assert {line.place for line in before if line.sizes} <= found.keys()
    back = align(after, before).after
    assert {new: old for old, new in found.items()} == back


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.integers(1, 3), edits, st.data())
def test_with_one_line_taken_out_all_others_are(name, files, made, data):
    before, edit = list(program(name, files)), edit_of(made)
    gone = data.draw(st.sampled_from([line.place for line in before if line.sizes]))
    after = edited_code([line for line in before if line.place != gone], edit)
    found = align(before, after).after
    assert gone not in found or found[gone] not in {
        edit(line.place) for line in before if line.place != gone
    }
    assert {line.place for line in before if line.sizes} - {gone} <= found.keys()
    assert all(new == edit(old) for old, new in found.items())


@pytest.mark.parametrize("name", ["gpt", "leak_exception"])
@pytest.mark.parametrize(
    "file", ["/job/workloads_fixed.py", "/tmp/ipykernel_7/123.py", "<ipython-input-3-ab>"]
)
def test_a_renamed_and_edited_program_does_not_differ(name, file):
    made = edited_snapshot(
        shuffled(snapshot_of(f"recordings/{name}"), 3), edit_to(file), lambda one: one == MINE
    )
    found = diff_runs([original(name)], [run(made)])
    assert (
        found.findings == found.by_line == found.elsewhere == found.by_module == found.worse() == ()
    )
    assert found.came == found.went == found.growth_by_line == found.workload == ()
    assert headline(found).startswith("Nothing changed: ")
    assert [one.name for one in found.others] == ["files"]
    assert found.moved_lines == found.aligned_lines == len(original(name).code)


def edit_to(file: str) -> Edit:
    return lambda place: replace(with_lines_above({35: 3, 37: 1, 60: 20}, place), file=file)


def test_one_planted_change_is_all_that_is_named():
    line = Place(MINE, 39, "forward")

    def size(event) -> int:
        mine = [frame for frame in event["frames"] if frame["filename"] == MINE][:1]
        return (
            round(event["size"] * 1.01) if mine and mine[0]["line"] == line.line else event["size"]
        )

    edit = edit_to("train/workloads_fixed.py")
    made = edited_snapshot(
        again(snapshot_of("recordings/gpt"), size), edit, lambda one: one == MINE
    )
    found = diff_runs([original("gpt")], [run(made)])
    (change,) = found.by_line
    assert (change.place, change.was) == (edit(line), line)
    assert change.change_bytes > 0
    assert [one.id for one in found.findings] == ["peak_higher", "line_more"]
    assert found.findings[-1].verdict == "likely"
    (lines,) = parts_of(diff_document(found), Figures)
    (row,) = lines.rows
    assert "was workloads.py:39" in row.note
    assert [one.words.partition(":")[0] for one in found.others] == [
        "the same file under a different name"
    ]
