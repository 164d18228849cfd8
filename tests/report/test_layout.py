"""Fitting into a width."""

import pytest
from rich.cells import cell_len

from vramlens.analyses.finding import Place
from vramlens.report.layout import Layout
from vramlens.report.screen import broken_lines
from vramlens.report.wording import share, visible, with_stake


@pytest.mark.parametrize("width", [40, 50, 77])
def test_wraps_any_text(width):
    text = "word " * 30 + "x" * 200 + " 漢字" * 40 + " 1.50 GiB" * 20
    lines = Layout(width).wrap(text, first="  1. ")
    assert max(map(cell_len, lines)) <= width
    assert "".join("".join(lines).split()) == "1." + "".join(text.split())


def test_the_line_number_survives_any_shortening():
    place = Place(
        "/very/long/folder/name/that/does/not/fit/model.py",
        1234,
        "a_function_with_quite_a_long_name",
    )
    layout = Layout(80)
    for width in range(14, 100):
        name = layout.place(place, width)
        assert ":1234" in name
        assert cell_len(name) <= width
    assert layout.place(place, 100) == str(place)


def test_a_file_name_is_not_cut_when_it_fits_without_its_folders():
    place = Place("train/workloads.py", 39, "forward")
    assert Layout(80).place(place, 29) == "…/workloads.py:39 in forward"
    assert Layout(80).place(place, 26) == "workloads.py:39 in forward"


def test_the_function_goes_before_the_file_and_its_line():
    place = Place("/home/user/train/workloads.py", 43, "forward_of_everything")
    for width in range(15, 60):
        assert "workloads.py:43" in Layout(80).place(place, width)
    assert Layout(80).place(place, 18) == "…/workloads.py:43"


def test_lines_whose_folders_have_to_go_have_one_form():
    places = [Place("/home/train/model.py", 27, name) for name in ("main", "a_long_forward")]
    assert Layout(80).places(places, 28) == ["model.py:27 in main", "model.py:27 in a_long_forwa…"]
    for width in range(15, 60):
        names = Layout(80).places(places, width)
        assert len({name.partition("model.py:27")[0] for name in names}) == 1
        assert max(map(cell_len, names)) <= width


def test_control_characters_become_visible():
    assert visible("a\nb\x1b[0m\u202e\ud800") == "a\\nb\\x1b[0m\\u202e\\ud800"
    assert visible("café 漢字") == "café 漢字"


def test_shares_never_round_to_nothing_or_to_all():
    assert [share(part, 1000) for part in (0, 1, 500, 999, 1000)] == [
        "0%",
        "<1%",
        "50%",
        ">99%",
        "100%",
    ]
    assert share(0, 0) == ""


def test_the_stake_is_said_once():
    assert with_stake("needs 5 MiB less", 100) == "needs 5 MiB less"
    assert with_stake("use it", 1024) == "use it (1.00 KiB at stake)"


def test_a_beginning_that_takes_the_whole_line_is_followed_by_the_text():
    assert Layout(40).wrap("w" * 50, first="x" * 45, rest="  ") == [
        "x" * 45,
        "  " + "w" * 38,
        "  " + "w" * 12,
    ]


def test_names_cut_in_the_middle_keep_both_ends():
    assert Layout(40).from_middle("abcdefghij", 7) == "abc…hij"
    assert Layout(40).from_middle("abc", 7) == "abc"


def test_a_finished_text_is_broken_at_words_and_its_commands_stay_whole():
    command = "  vramlens explain " + "x" * 60
    text = f"Process 7: python train.py --epochs 100 took 20.0 ms\n   64 bytes  {'word ' * 8}\n{command}"
    lines = [line.plain for line in broken_lines(text, Layout(48))]
    assert lines[:2] == ["Process 7: python train.py --epochs 100 took", "  20.0 ms"]
    assert lines[2].startswith("   64 bytes word")
    assert lines[3] == "     word"
    assert lines[-1] == command


def test_a_path_in_brackets_that_has_to_be_cut_keeps_both():
    path = "(/a/very/long/folder/with/a_name_that_is_longer_than_the_whole_line.py:176 in update)."
    lines = Layout(60).wrap(path)
    assert lines == ["(…name_that_is_longer_than_the_whole_line.py:176 in update)."]


@pytest.mark.parametrize(
    "word",
    [
        "PYTORCH_ALLOC_CONF=expandable_segments:True,roundup_power2_divisions:8",
        "'PYTORCH_ALLOC_CONF=roundup_power2_divisions:[256:1,512:2,1024:4,>:8]',",
        "torch.cuda.set_per_process_memory_fraction(0.8125)",
        "--a-very-long-option-of-some-command=and_its_long_setting",
        "/a/path/of/many/folders/that/no/line/has/room/for/recording.vram",
    ],
)
def test_a_word_to_copy_is_never_broken(word: str) -> None:
    lines = Layout(40).wrap(f"run with {word} to reserve less", first="     Do: ")
    assert any(word in line for line in lines)
    assert all(cell_len(line) <= 40 for line in lines if word not in line)
