"""Lines that moved with an edit are found again; those that cannot be the same are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramlens.analyses.alignment import align
from vramlens.analyses.finding import Place
from vramlens.analyses.run import CodeLine


def code(line: int, calls: str = "", *sizes: int, file: str = "train.py", function: str = "forward") -> CodeLine:
    return CodeLine(Place(file, line, function), frozenset(calls.split()), frozenset(sizes))


def pairs(before: list[CodeLine], after: list[CodeLine]) -> dict[int, int]:
    return {old.line: new.line for old, new in align(before, after).after.items()}


def test_the_same_lines_stay():
    lines = [code(3, "linear"), code(5, "linear"), code(9)]
    found = align(lines, lines)
    assert {old: new for old, new in found.after.items() if old != new} == {}
    assert len(found.after) == 3
    assert not found.moved


def test_an_edit_above_shifts_all():
    before = [code(10, "linear", 64), code(11, "gelu", 64), code(12, "linear", 128)]
    after = [code(14, "linear", 64), code(15, "gelu", 64), code(16, "linear", 128)]
    assert pairs(before, after) == {10: 14, 11: 15, 12: 16}
    assert len(align(before, after).moved) == 3


def test_lines_that_all_call_the_same_go_by_their_order():
    before = [code(n, "_call_impl") for n in (10, 11, 12)]
    after = [code(n, "_call_impl") for n in (11, 12, 13)]
    assert pairs(before, after) == {10: 11, 11: 12, 12: 13}


def test_a_line_that_is_gone_leaves_the_others_together():
    before = [code(10, "linear", 64), code(11, "softmax", 512), code(12, "linear", 96)]
    after = [code(10, "linear", 64), code(11, "linear", 96)]
    assert pairs(before, after) == {10: 10, 12: 11}


def test_a_line_that_now_calls_something_else_stays_where_it_is():
    before = [code(10, "linear"), code(11, "attention"), code(12, "linear")]
    after = [code(10, "linear"), code(11, "checkpoint"), code(12, "linear"), code(15, "extra")]
    assert pairs(before, after) == {10: 10, 11: 11, 12: 12}


def test_a_line_never_moves_to_one_that_calls_something_else():
    assert pairs([code(10, "linear")], [code(12, "softmax")]) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/home/a/project/train.py", "/workspace/project/train.py"),
        ("C:\\code\\train.py", "/root/train.py"),
        ("<ipython-input-3-ab12>", "<ipython-input-9-cd34>"),
    ],
)
def test_a_checkout_elsewhere_is_the_same_file(old, new):
    found = align([code(4, "linear", file=old)], [code(4, "linear", file=new)])
    assert [place.file for place in found.after.values()] == [new]
    assert found.files == {old: new}
    assert not found.moved


def test_of_two_files_of_one_name_the_one_in_the_like_folder_is_meant():
    before = [code(1, "a", file="/x/models/utils.py"), code(1, "b", file="/x/data/utils.py")]
    after = [code(1, "a", file="/y/models/utils.py"), code(1, "b", file="/y/data/utils.py")]
    found = align(before, after)
    assert {old.file: new.file for old, new in found.after.items()} == {
        "/x/models/utils.py": "/y/models/utils.py",
        "/x/data/utils.py": "/y/data/utils.py",
    }


def test_which_of_two_equal_candidates_is_meant_is_not_guessed():
    before = [code(1, "a", file="/x/utils.py")]
    after = [code(1, "a", file="/y/utils.py"), code(1, "a", file="/z/utils.py")]
    assert align(before, after).after == {}


def test_a_function_with_another_name_is_found_by_what_it_does():
    before = [code(5, "linear", 64, function="step"), code(6, "loss", 4, function="step")]
    after = [code(7, "linear", 64, function="train_step"), code(8, "loss", 4, function="train_step")]
    assert pairs(before, after) == {5: 7, 6: 8}
    other = [code(7, "conv", 9, function="train_step"), code(8, "pool", 4, function="train_step")]
    assert pairs(before, other) == {}


lines_of_code = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from(["a", "b", "c", "a b", ""]), st.integers(1, 3)),
    max_size=12,
    unique_by=lambda one: one[0],
).map(lambda found: [code(number, calls, size) for number, calls, size in sorted(found)])


@given(lines_of_code, lines_of_code)
def test_order_is_kept_and_no_line_is_two(before, after):
    found = sorted(pairs(before, after).items())
    targets = [new for _old, new in found]
    assert targets == sorted(set(targets))


@given(lines_of_code, st.integers(0, 20))
def test_a_shift_is_always_seen_through_where_lines_differ(lines, shift):
    named = [CodeLine(one.place, frozenset({f"only{i}"}), one.sizes) for i, one in enumerate(lines)]
    moved = [
        CodeLine(Place(one.place.file, one.place.line + shift, one.place.function), one.calls, one.sizes)
        for one in named
    ]
    assert pairs(named, moved) == {one.place.line: one.place.line + shift for one in named}


def test_a_generated_function_of_many_lines_takes_no_time():
    lines = [code(n, "a") for n in range(1, 2000)]
    assert pairs(lines, lines[1:]) == {n: n for n in range(2, 2000)}


def test_unrelated_programs_take_no_time():
    before = [code(n, f"a{n}", n, file=f"/x/{n % 400}/__init__.py", function=f"f{n % 50}") for n in range(1, 4000)]
    after = [code(n, f"b{n}", n, file=f"/y/{n % 400}/__init__.py", function=f"g{n % 50}") for n in range(1, 4000)]
    assert align(before, after).after == {}
