"""Lines that moved with an edit are found again; those that cannot be the same are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramlens.analyses.compare.alignment import align
from vramlens.analyses.compare.compared_run import CodeLine
from vramlens.analyses.compare.line_alignment import align_lines
from vramlens.analyses.finding import Place


def code(
    line: int, calls: str = "", *sizes: int, file: str = "train.py", function: str = "forward"
) -> CodeLine:
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
    after = [
        code(7, "linear", 64, function="train_step"),
        code(8, "loss", 4, function="train_step"),
    ]
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
    in_order = sorted((old.line, new.line) for old, new in align_lines(before, after).items())
    targets = [new for _old, new in in_order]
    assert targets == sorted(set(targets))
    aligned = pairs(before, after)
    assert len(set(aligned.values())) == len(aligned)


def test_lines_that_were_moved_together_within_their_function():
    before = [code(1, "a", 1), code(2, "b", 2), code(3, "c", 3), code(4, "d", 4), code(5, "e", 5)]
    after = [code(1, "c", 3), code(2, "d", 4), code(3, "e", 5), code(6, "a", 1), code(7, "b", 2)]
    assert pairs(before, after) == {1: 6, 2: 7, 3: 1, 4: 2, 5: 3}


@given(lines_of_code, st.integers(0, 20))
def test_a_shift_is_always_seen_through_where_lines_differ(lines, shift):
    named = [CodeLine(one.place, frozenset({f"only{i}"}), one.sizes) for i, one in enumerate(lines)]
    moved = [
        CodeLine(
            Place(one.place.file, one.place.line + shift, one.place.function), one.calls, one.sizes
        )
        for one in named
    ]
    assert pairs(named, moved) == {one.place.line: one.place.line + shift for one in named}


def test_a_shift_of_many_lines_that_are_all_alike_is_seen_through():
    before = [code(n, "_call_impl", 64) for n in range(10, 30)]
    after = [code(n + 1, "_call_impl", 64) for n in range(10, 30)]
    assert pairs(before, after) == {n: n + 1 for n in range(10, 30)}
    after[-1] = code(30, "_call_impl", 65)
    assert pairs(before, after) == {n: n + 1 for n in range(10, 30)}


def test_a_shift_of_a_generated_function_is_seen_through():
    before = [code(n, "a", 64) for n in range(1, 400)]
    moved = {n: n + 5 + n // 200 for n in range(1, 400)}  # comments above it, and one in the middle
    assert pairs(before, [code(n, "a", 64) for n in moved.values()]) == moved


def test_a_line_that_calls_something_else_moves_with_its_neighbours():
    before = [code(10, "linear", 64), code(11, "attention", 512), code(12, "linear", 96)]
    after = [
        code(13, "linear", 64),
        code(14, "checkpoint", 512),
        code(15, "linear", 96),
        code(16, "extra", 1),
    ]
    assert pairs(before, after) == {10: 13, 11: 14, 12: 15}


def test_a_line_that_calls_a_renamed_function_is_the_same():
    before = [code(5, "train.py:step", 4, function="main"), code(20, "linear", 64, function="step")]
    after = [
        code(9, "train.py:train_step", 4, function="main"),
        code(30, "linear", 64, function="train_step"),
    ]
    assert pairs(before, after) == {5: 9, 20: 30}


def in_file(file: str, *lines: CodeLine) -> list[CodeLine]:
    return [
        CodeLine(Place(file, one.place.line, one.place.function), one.calls, one.sizes)
        for one in lines
    ]


MODEL = (
    code(10, "linear", 64),
    code(11, "gelu", 64),
    code(12, "linear", 128),
    code(40, "cuda", 999, function="main"),
)


def test_a_renamed_file_is_known_by_its_lines():
    changed = (
        code(14, "linear", 64),
        code(16, "linear", 128, 4),
        code(50, "cuda", 999, function="main"),
    )
    found = align(in_file("before.py", *MODEL), in_file("/x/after.py", *changed))
    assert {old.line: new.line for old, new in found.after.items()} == {10: 14, 12: 16, 40: 50}
    assert found.files == {"before.py": "/x/after.py"}
    assert len(found.moved) == 3


def test_a_renamed_file_with_another_batch_size_is_known_by_its_distances_and_names():
    larger = [
        CodeLine(one.place, one.calls, frozenset(2 * size for size in one.sizes)) for one in MODEL
    ]
    assert align(in_file("a.py", *MODEL), in_file("b.py", *larger)).files == {"a.py": "b.py"}


def test_another_script_is_no_renamed_file():
    other = (
        code(7, "linear", 32),
        code(9, "conv2d", 77),
        code(33, "pool", 5),
        code(60, "cuda", 123, function="main"),
    )
    found = align(in_file("train_mlp.py", *MODEL), in_file("train_cnn.py", *other))
    assert (found.after, found.files) == ({}, {})


def test_of_two_copies_none_is_guessed():
    found = align(in_file("train.py", *MODEL), [*in_file("a.py", *MODEL), *in_file("b.py", *MODEL)])
    assert found.after == {}


@pytest.mark.parametrize(
    "name",
    ["<ipython-input-{0}-ab{0}>", "/tmp/ipykernel_7/{0}.py", "/tmp/ipython-input-{0}-9{0}.py"],
)
def test_cells_that_ran_again_are_known_by_their_lines(name):
    cells = [
        [code(2, "linear", 64), code(3, "gelu", 64)],
        [
            code(1, "cuda", 999, function="<cell line: 1>"),
            code(2, "Adam", function="<cell line: 1>"),
        ],
        [code(4, "backward", 4, function="train"), code(5, "step", 128, function="train")],
    ]
    before = [
        line for number, cell in enumerate(cells) for line in in_file(name.format(number), *cell)
    ]
    again = [
        code(3, "cuda", 999, function="<cell line: 2>"),
        code(4, "Adam", function="<cell line: 2>"),
    ]
    after = [
        line
        for n, cell in ((7, cells[0]), (5, again), (9, cells[2]))
        for line in in_file(name.format(n), *cell)
    ]
    found = align(before, after)
    assert found.files == {
        name.format(old): name.format(new) for old, new in ((0, 7), (1, 5), (2, 9))
    }
    assert len(found.after) == len(found.moved) == 6


@pytest.mark.parametrize("name", ["<ipython-input-{}-{}>", "/tmp/ipykernel_{}/{}.py"])
def test_cells_with_the_text_that_they_had_are_the_same(name):
    texts = {
        "aa11": [code(1, "randn", 64)],
        "bb22": [code(1, "randn", 64)],
        "cc33": [code(5, "cuda")],
    }
    before = [
        one
        for n, (text, lines) in enumerate(texts.items())
        for one in in_file(name.format(n, text), *lines)
    ]
    after = [
        one
        for n, text in ((7, "cc33"), (8, "bb22"), (9, "aa11"))
        for one in in_file(name.format(n, text), *texts[text])
    ]
    found = align(before, after)
    assert len(found.after) == 3
    assert all(old[-6:] == new[-6:] for old, new in found.files.items())
    assert not found.moved


def test_cells_that_are_all_alike_go_by_their_order():
    before, after = (
        [
            line
            for number in numbers
            for line in in_file(f"<ipython-input-{number}-ab{number}>", code(1, "randn", 64))
        ]
        for numbers in ((1, 2, 3), (4, 5, 6))
    )
    assert align(before, after).files == {
        f"<ipython-input-{n}-ab{n}>": f"<ipython-input-{n + 3}-ab{n + 3}>" for n in (1, 2, 3)
    }
    assert align(before, after[:2]).files == {}  # which of them is gone is not guessed


def test_lines_that_became_a_function_of_their_own_are_the_same():
    after = [
        MODEL[0],
        code(31, "gelu", 64, function="mlp"),
        code(32, "linear", 128, function="mlp"),
        MODEL[3],
    ]
    assert pairs(list(MODEL), after) == {10: 10, 11: 31, 12: 32, 40: 40}


def test_a_function_that_moved_to_another_file_is_the_same():
    before = in_file("train.py", *MODEL)
    after = [*in_file("model.py", *MODEL[:3]), *in_file("train.py", MODEL[3])]
    found = align(before, after)
    assert [place.file for place in found.after.values()].count("model.py") == 3
    assert len(found.moved) == 3


def test_a_generated_function_of_many_lines_takes_no_time():
    lines = [code(n, "a") for n in range(1, 2000)]
    assert pairs(lines, lines[1:]) == {n: n for n in range(2, 2000)}


def test_unrelated_programs_take_no_time():
    before = [
        code(n, f"a{n}", n, file=f"/x/{n % 400}/__init__.py", function=f"f{n % 50}")
        for n in range(1, 4000)
    ]
    after = [
        code(n, f"b{n}", n, file=f"/y/{n % 400}/__init__.py", function=f"g{n % 50}")
        for n in range(1, 4000)
    ]
    assert align(before, after).after == {}
