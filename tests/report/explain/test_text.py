"""The text: the answer first, inside the width, without anything that the input could draw on
the screen.
"""

import io
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.cells import cell_len
from rich.console import Console

from support.documents import print_answer
from support.samples import EVERY, LEAK, error_text, failed, finding, hostile, nothing, refuted, run
from vramlens.report.explain.holder_tables import GROUPINGS
from vramlens.report.explain.story import explanation_document
from vramlens.report.holder_lines import holder_lines
from vramlens.report.holders import HeldMemory
from vramlens.report.layout import Layout
from vramlens.report.screen import SCREEN_LINES
from vramlens.units import MIB

WIDTHS = (60, 80, 120, 200)
NUMBER_AT_THE_END = re.compile(r"[0-9]$")
UNIT_AT_THE_START = re.compile(r"\s*(?:bytes?|[KMGT]iB|%)\b")


def lines_of(explanation, width=80, by="line", top=None, whole=False, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    print_answer(explanation, console, by=by, top=top, whole=whole)
    return console.file.getvalue().splitlines()


def screen_of(explanation, width=80, by="line", height=24):
    """The lines on a terminal."""
    return lines_of(explanation, width, by, height=height, force_terminal=True, color_system=None)


def words(lines):
    """The words, wherever the lines end."""
    return " ".join(" ".join(lines).split())


def text_of(explanation, width=80, by="line", top=None):
    return words(lines_of(explanation, width, by, top))


def with_devices(explanation, device):
    """The same on the given one of two devices."""
    heap = replace(explanation.heap, device=device)
    peak = replace(
        explanation.peak, device=device, heap=replace(explanation.peak.heap, device=device)
    )
    facts = replace(explanation.recording, devices=(0, 1))
    return replace(explanation, recording=facts, heap=heap, peak=peak)


@pytest.mark.parametrize("by", GROUPINGS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [run, failed, error_text, nothing])
def test_no_line_is_wider_than_the_terminal(make, width, by):
    assert max(map(cell_len, lines_of(make(), width, by))) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_names_stay_inside_the_width(width):
    # The command to paste is the exception: it is never cut.
    assert max(cell_len(line) for line in lines_of(hostile(), width)[:-1]) <= width


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [run, failed, error_text])
def test_a_number_stays_with_its_unit(make, width):
    lines = lines_of(make(), width)
    for line, following in pairwise(lines):
        assert not (NUMBER_AT_THE_END.search(line) and UNIT_AT_THE_START.match(following)), (
            line,
            following,
        )


@pytest.mark.parametrize("by", GROUPINGS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [failed, error_text])
def test_a_failure_fits_one_screen(make, width, by):
    assert len(screen_of(make(), width, by)) <= SCREEN_LINES


@pytest.mark.parametrize("height", [10, 24, 25, 40, 60, 500])
def test_a_failure_uses_the_rows_there_are(height):
    shown, everything = screen_of(failed(), height=height), lines_of(failed(), whole=True)
    assert len(shown) <= max(SCREEN_LINES, height) - 1  # the prompt takes a line
    assert len(shown) <= len(everything)
    assert (shown == everything) == (height == 500)


def test_an_errors_text_says_which_gpu_and_what_may_be_free():
    said = error_text()
    text = words(lines_of(replace(said, oom=replace(said.oom, count=8, device=7))))
    assert "7 requests had failed before it; this one failed on GPU 7." in text
    assert "or used by something" not in text
    for free, told in ((0, False), (None, True)):
        less = replace(
            said, oom=replace(said.oom, free_bytes=free), ledger=(*said.ledger[:2], said.ledger[3])
        )
        assert ("free, or used by" in words(lines_of(less))) is told


def test_the_hosts_memory_is_told_once_and_asked_of_no_driver():
    said = error_text()
    oom = replace(
        said.oom,
        wall="host",
        headline="The host ran out of memory (RAM), not the GPU",
        tried_bytes=1 << 30,
    )
    lines = lines_of(replace(said, oom=oom, ledger=()))
    assert ["", ""] not in [lines[n : n + 2] for n in range(len(lines))]
    text = words(lines)
    assert text.count("ran out of memory (RAM), not the GPU") == 1
    assert "1.00 GiB requested" in text
    assert "from the driver" not in text


def test_a_failure_fits_24_lines_in_a_pipe():
    assert 15 < len(lines_of(failed())) <= SCREEN_LINES


def test_a_failure_has_headings_on_a_wide_terminal():
    assert any(
        line.split() == ["size", "share", "count", "line", "mostly"]
        for line in screen_of(failed(), 200)
    )


@pytest.mark.parametrize(
    "options",
    [{"whole": True}, {"top": 3, "force_terminal": True, "color_system": None, "height": 24}],
)
def test_a_failure_is_shown_whole_where_no_screen_limits_it(options):
    text = words(lines_of(failed(), **options))
    for number in range(6):
        assert f"finding {number}: 200.00 MiB" in text
    assert " more" not in text.partition("What to do")[2]


def test_what_a_screen_cuts_is_shown_by_the_command_that_it_names():
    assert "more (explain --top 10 shows them)" in words(screen_of(failed()))


def test_where_no_recording_was_written_no_command_shows_what_is_cut():
    explanation = failed()
    unwritten = replace(explanation.recording, source="")
    text = words(screen_of(replace(explanation, recording=unwritten)))
    assert "more" in text
    assert "--top" not in text


def test_a_failure_keeps_what_matters_most():
    text = words(screen_of(failed()))
    for wanted in (
        "1.28 GiB were free inside reserved memory",
        "This process reached its memory limit",
        "Cause: fragmentation.",
        "600.00 MiB requested",
        "16.00 MiB largest free block",
        "in use at the failure",
        "transformer.py:1 in forward_1",
        "What to do 1. ",
        "vramlens tune run.pickle",
    ):
        assert wanted in text


def test_rows_asked_for_are_shown_even_after_a_failure():
    text = text_of(failed(), 120, top=22)
    assert "transformer.py:22 in" in text
    assert " more, " not in text


def test_the_first_line_is_the_answer():
    assert words(lines_of(run(), 120)[:2]).startswith(
        "Peak 448.00 MiB requested in step 3 (peak allocated: 449.00 MiB or more, peak reserved:"
        " 2.00 GiB): 89% activations"
    )
    assert lines_of(failed(), 120)[0].startswith("1.28 GiB were free inside reserved memory")


def test_what_is_cut_is_said():
    text = text_of(run(), top=20)
    assert "… and 2 more, 17.00 MiB" in text
    assert text_of(run(), by="category", top=1).count("… and 1 more, 50.00 MiB") == 1


def test_bytes_without_a_line_are_a_row():
    assert any("41.00 MiB" in line and "(no line known)" in line for line in lines_of(run()))


def test_inferred_bytes_are_marked():
    header, row = [
        line for line in lines_of(run(), 120) if " backward " in line or "forward_4 " in line
    ][:2]
    assert "19%" in row
    assert header.index("backward") < row.index("19%") + len("backward")
    assert "backward: requested by the backward pass of that line" in text_of(run())
    assert "backward: " not in text_of(run(), top=3)
    assert "backward: " not in text_of(run(), by="phase")


def test_inferred_bytes_have_no_column_where_nothing_says_what_they_are():
    parts = explanation_document(run(), "line", None).parts
    holders = next(part for part in parts if isinstance(part, HeldMemory))
    layout = Layout(120)
    shown = "\n".join(line.plain for line in holder_lines(holders, layout))
    assert shown.count("backward") == 3
    bare = replace(holders, has_meanings=False)
    assert "backward" not in "\n".join(line.plain for line in holder_lines(bare, layout))


def test_a_lower_bound_says_so_beside_the_number():
    peak = replace(run().peak, exact=("requested_bytes",))
    assert (
        "448.00 MiB requested in step 3 (peak allocated: 449.00 MiB or more, peak reserved: 2.00 GiB or more)"
        in text_of(run(peak=peak))
    )
    peak = replace(run().peak, exact=())
    assert "448.00 MiB or more requested in step 3" in text_of(run(peak=peak))


def test_sizes_are_right_aligned():
    rows = [
        line
        for line in lines_of(run(), 120)
        if "transformer.py" in line and "MiB" in line and line.startswith(" ")
    ]
    assert len({line.index("MiB") for line in rows}) == 1


def test_long_paths_lose_their_folders_first():
    rows = [line for line in lines_of(run(), 80) if "forward_1 " in line]
    assert "transformer.py:1 in forward_1" in rows[0]
    assert any("/home/somebody" in line for line in lines_of(run(), 200))


def test_no_escape_codes_when_piped():
    for make in EVERY.values():
        assert "\x1b" not in "\n".join(lines_of(make()))


def test_a_terminal_gets_bold_titles():
    assert "\x1b[1m" in lines_of(run(), force_terminal=True, color_system="standard")[0]


@pytest.mark.parametrize("by", GROUPINGS)
def test_names_cannot_draw_on_the_screen(by):
    output = "\n".join(lines_of(hostile(), 200, by))
    assert "a[bold]b\\n\\x1b[31mred\\u202e" in output
    assert all(char.isprintable() or char == "\n" for char in output)


def test_a_terminal_without_unicode_gets_dots():
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii")
    print_answer(run(), Console(file=stream, width=90))
    stream.flush()
    output = buffer.getvalue().decode("ascii")
    assert "... and 12 more" in output
    assert ".../transformer.py" in output
    assert max(map(len, output.splitlines())) <= 90


def test_leaks_are_told_once():
    leak = replace(finding(), id="leak", place=LEAK.place)
    assert "Grows with every step" in text_of(run(leaks=(LEAK,)))
    assert "36.00 MiB per step, 360.00 MiB so far in 10 steps, at train.py:88 in loop" in text_of(
        run(leaks=(LEAK,))
    )
    assert "Grows with every step" not in text_of(run(leaks=(LEAK,), findings=(leak,)))


def test_findings_are_sorted_by_what_they_ask_for():
    text = text_of(run())
    assert (
        text.index("What to do")
        < text.index("Do: use a smaller batch")
        < text.index("What will not help")
    )
    assert (
        text.index("What will not help")
        < text.index("expandable_segments does not help")
        < text.index("Also")
    )


def test_a_survived_failure_is_no_headline():
    oom = replace(failed().oom, survived=True)
    text = text_of(run(oom=oom))
    assert text.startswith("Peak ")
    assert "3 requests failed, but the program went on" in text
    assert text_of(run(oom=oom, at="oom")).startswith("1.28 GiB were free")


def test_the_heap_at_another_moment_says_which():
    text = text_of(run(heap=replace(run().heap, event=999), at="end"), 200)
    assert text.startswith("448.00 MiB requested at the end in step 3")
    assert (
        "Peak: 448.00 MiB requested in step 3 (peak allocated: 449.00 MiB or more, peak reserved: 2.00 GiB)"
        in text
    )


def test_missing_names_say_how_to_get_them():
    empty = replace(run().heap, by_region={})
    assert "record_function" in text_of(run(heap=empty), by="region")


def test_the_rest_outside_named_modules_is_shown():
    assert "347.00 MiB 77% (outside any module)" in text_of(run(), by="module")


def test_every_answer_ends_with_a_next_step():
    assert lines_of(run())[-1].startswith("  vramlens view ")
    assert lines_of(hostile())[-1].startswith("  vramlens leaks ")
    assert lines_of(failed())[-1] == "  vramlens tune run.pickle"  # its cause is fragmentation
    for make in (error_text, nothing):
        assert lines_of(make())[-1] == "  vramlens run -o oom.vram YOUR_SCRIPT.py"
    spaced = replace(run().recording, source="my run.pickle")
    assert lines_of(run(recording=spaced))[-1] == "  vramlens view 'my run.pickle'"


@pytest.mark.parametrize("device", [0, 1])
def test_one_of_several_devices_is_named(device):
    lines = lines_of(with_devices(run(), device), 120)
    assert lines[0].startswith(f"Peak 448.00 MiB requested on device {device} in step 3 (")
    assert f"448.00 MiB in use at the peak on device {device}, by line" in lines
    assert lines[-1] == f"  vramlens view run.pickle --device {device}"
    lines = screen_of(with_devices(failed(), device), 120)
    assert f"600.00 MiB did not fit (on device {device})" in words(lines)
    assert f"448.00 MiB (requested) in use at the failure on device {device}, by line" in lines
    assert lines[-1] == f"  vramlens tune run.pickle --device {device}"


def test_a_single_device_is_not_named():
    one = replace(run().recording, devices=(1,))
    assert "device" not in text_of(run(recording=one))


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("oom_killer", 'dmesg -T | grep -i -E "killed process|out of memory"'),
        ("host_memory", 'dmesg -T | grep -i -E "killed process|out of memory"'),
        ("pinned_memory", "ulimit -l; free -h"),
        ("shared_memory", "df -h /dev/shm"),
    ],
)
def test_after_a_host_failure_the_system_is_asked(kind, command):
    answer = error_text()
    answer = replace(
        answer, oom=replace(answer.oom, wall="host"), findings=(replace(finding(), id=kind),)
    )
    assert lines_of(answer)[-1] == f"  {command}"
    assert "record" not in text_of(answer)


def test_what_is_requested_is_told_from_what_was_allocated_for_it():
    answer = failed()
    same = replace(answer, oom=replace(answer.oom, allocated_bytes=answer.heap.requested_bytes))
    assert "448.00 MiB in use at the failure" in text_of(same)
    more = replace(
        answer, oom=replace(answer.oom, allocated_bytes=answer.heap.requested_bytes + (8 << 20))
    )
    assert "448.00 MiB (requested) in use at the failure" in text_of(more)


def test_where_settings_were_replayed_in_vain_tune_is_not_offered():
    answer = failed()
    vain = replace(finding(), id="settings_do_not_help", verdict="not a problem", fix=None)
    helps = replace(finding(), id="settings_help")
    assert lines_of(answer)[-1] == "  vramlens tune run.pickle"  # nothing was replayed
    assert lines_of(replace(answer, findings=(helps, vain)))[-1] == "  vramlens tune run.pickle"
    lines = lines_of(replace(answer, findings=(vain,)))
    assert lines[-1] == "  vramlens run -o again.vram YOUR_SCRIPT.py"
    assert "allocate the 600.00 MiB first" in words(lines)


def test_where_no_memory_failed_there_is_no_command():
    answer = replace(
        error_text(), findings=(replace(finding(), id="not_memory", verdict="not a problem"),)
    )
    assert text_of(answer).endswith(
        "Next, fix this and run the program again: no memory ran out, so there is nothing to record."
    )


def test_a_file_that_looks_like_an_option_can_be_pasted():
    dashed = replace(run().recording, source="-x.pickle")
    assert lines_of(run(recording=dashed))[-1] == "  vramlens view ./-x.pickle"


def test_the_highest_step_is_named_wherever_it_is():
    peaks = tuple(100 * MIB * number for number in (1, 2, 3, 9, 1, 2, 3, 4))
    steps = replace(run().steps, peak_bytes=peaks)
    assert "The highest: 900.00 MiB in step 3. Step 0" in words(lines_of(run(steps=steps)))
    text = words(lines_of(replace(failed(), steps=steps), whole=True))
    assert "The highest: 900.00 MiB in step 3, which fit." in text
    last = replace(steps, peak_bytes=(*peaks[:3], *peaks[4:], 990 * MIB))
    assert "The highest" not in words(lines_of(replace(failed(), steps=last), whole=True))


def test_steps_are_summed_up():
    assert (
        "8 steps, found by the optimizer's calls. Peaks (requested): 100.00 MiB, 200.00 MiB, 300.00 MiB, …"
        in text_of(run())
    )
    assert "Step 0 is the first recorded." in text_of(run())
    same = replace(run().steps, count=3, peak_bytes=(5, 5, 5))
    assert "3 steps, found by the optimizer's calls. Each peak: 5 bytes requested." in text_of(
        run(steps=same)
    )


def test_a_failure_with_nothing_to_do_says_what_would_not_help():
    text = text_of(failed(findings=(refuted(),)))
    assert "What will not help - expandable_segments does not help" in text


def test_a_file_that_ends_early_says_so_first_and_once():
    missing = "the file ends early, at byte 5,000, so the numbers are lower bounds"
    recording = replace(run().recording, complete=False, missing=(missing, "device 0: events"))
    text = words(lines_of(run(recording=recording)))
    assert text.count("ends early") == 1
    assert text.index("The file ends early") < text.index("in use at the peak")
    assert "Device 0: events" in text.partition("Not known")[2]
