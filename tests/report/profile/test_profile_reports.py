"""A profile as text, JSON and Markdown: the answer first, 24 lines, nothing unsaid that was cut,
nothing drawn.
"""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from support.documents import markdown, print_answer
from support.kineto import MIB, Kineto, read_gz, training
from vramlens.analyses.profile.explained_profile import explain_profile
from vramlens.report.document import Column, LastColumn, Table
from vramlens.report.profile.json import profile_to_json
from vramlens.report.profile.story import next_command
from vramlens.report.screen import SCREEN_LINES

TRAIN = Path(__file__).parents[2] / "data" / "profiler" / "train.json.gz"


@pytest.fixture(scope="module")
def real():
    return explain_profile(read_gz(TRAIN))


@pytest.fixture(scope="module")
def made():
    return explain_profile(training().read())


def text(profile, width=100, encoding="utf-8", **options):
    class File(io.StringIO):
        pass

    file = File()
    file_encoding = property(lambda self: encoding)
    File.encoding = file_encoding
    print_answer(profile, Console(file=file, width=width), **options)
    return file.getvalue()


def wild() -> Kineto:
    """Many operators with long and hostile names, many devices, a failure and growth: the most
    there is to say.
    """
    trace = training()
    for number in range(60):
        at = 3000 + 10 * number
        trace.op(f"aten::{'very_' * 20}long_{number}\n\x1b[31mred", at, 9)
        trace.launch(
            at + 1, 1, f"void kernel<{'float, ' * 30}{number}>()\x07", at + 3, 5, device=number % 4
        )
        trace.memory(
            at + 2,
            MIB,
            0x7F55_0000_0000 + number * MIB,
            allocated=(20 + number) * MIB,
            reserved=900 * MIB,
        )
    event = trace.memory(3700, 80 * MIB, 0, allocated=80 * MIB, reserved=900 * MIB)
    event["name"] = "[OutOfMemory]"
    return trace


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_fits_a_screen(real, made, width):
    most = explain_profile(wild().read())
    for profile in (real, made, most):
        shown = text(profile, width)
        lines = shown.splitlines()
        if width >= 80:
            assert len(lines) <= SCREEN_LINES
        assert all(
            len(line) <= width
            for line in lines
            if not line.startswith("  vramlens") and "torch.pro" not in line
        )
        assert "\x1b" not in shown
        assert "\x07" not in shown


def test_the_answer_comes_first_and_what_to_do_last(made):
    lines = text(made).splitlines()
    assert lines[0] == "GPU 0 is busy for 26% of 3.00 ms; memory peaks at 22.00 MiB."
    assert "Idle for 2.22 ms" in lines[1]
    assert "the CPU was loading data for 53% of it" in " ".join(lines[1:3])
    whole = " ".join(text(made).split())
    assert "activations 4.00 MiB" in whole
    assert "Do: " in whole
    assert lines[-2].startswith("Next, ")


def test_rows_asked_for_are_shown(real):
    few, many = text(real, top=2), text(real, top=200)
    assert "(2 of 62 operators)" in few
    assert "Memory over time on cpu" in few
    assert many.count("\n") > 150
    assert " of 62 operators" not in many
    assert "aten::threshold_backward" in many


def test_what_is_cut_is_told(real):
    shown = text(real)
    assert re.search(r"Operators by CPU time \(\d of 62 operators\)", shown)


def test_fewer_moments_are_the_highest_of_as_many_parts():
    rows = tuple((str(n),) for n in range(10))
    heights = (0, 9, 1, 2, 3, 4, 5, 6, 7, 8)
    table = Table((Column("t"),), rows, LastColumn.CUT, noun="moment", heights=heights)
    assert replace(table, top=2).top_rows() == (("1",), ("9",))
    assert replace(table, top=20).top_rows() == table.rows


def test_what_is_missing_is_told(made):
    cut = training().text()
    from support.kineto import read

    profile = explain_profile(read(cut[: len(cut) * 3 // 4]))
    assert "ends early" in text(profile)
    assert "ends early" in markdown(profile)
    assert profile_to_json(profile)["profile"]["complete"] is False


def test_a_trace_without_memory_asks_for_it():
    trace = Kineto()
    trace.op("aten::mul", 0, 10)
    shown = text(explain_profile(trace.read()))
    assert "profile_memory=True" in shown
    assert "nothing ran on a GPU" in shown


def test_lower_bounds_say_so():
    trace = Kineto()
    trace.op("aten::mul", 0, 100)
    del trace.memory(1, 512, 0)["args"]["Addr"]
    shown = text(explain_profile(trace.read()))
    assert "512 bytes or more" in shown
    assert "no addresses" in shown


def test_ascii_output_has_no_ellipsis(real):
    text(real, 60, "ascii").encode("ascii")


def test_json_has_every_key_of_the_contract(made):
    data = profile_to_json(made)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert list(data) == ["schema", "profile", "findings"]
    assert data["schema"] == "vramlens/1"
    profile = data["profile"]
    assert list(profile) == [
        "source", "spans", "memory_events", "complete", "missing", "with_stack", "gpus", "start_us", "wall_us", "steps",
        "devices", "operators", "operators_by", "cpu", "operators_memory_device", "kernels_device", "kernels", "memory",
    ]  # fmt: skip
    assert list(profile["devices"][0]) == [
        "device", "busy_us", "busy_share", "idle_us", "gaps", "longest_gaps", "cpu_while_idle", "cpu_while_idle_of_us",
    ]  # fmt: skip
    assert list(profile["memory"][0]) == [
        "device", "events", "allocated_bytes", "reserved_bytes", "exact", "peak_us", "peak_step", "step_peak_bytes",
        "before_trace_bytes", "at_peak", "by_category", "category_verdict", "timeline_by", "timeline", "kept", "failed",
    ]  # fmt: skip
    assert set(profile["memory"][0]["at_peak"][0]) == {
        "operator", "file", "line", "function", "inferred", "category", "bytes", "allocations", "steps",
    }  # fmt: skip
    assert profile["wall_us"] == 3000.0
    assert profile["devices"][0]["busy_us"] == 780.0
    assert profile["memory"][0]["exact"] == ["allocated_bytes", "reserved_bytes"]
    assert sum(row["share_of_busy"] for row in profile["kernels"]) == pytest.approx(1, abs=0.001)
    finding = data["findings"][0]
    assert set(finding) == {
        "id",
        "verdict",
        "title",
        "bytes",
        "file",
        "line",
        "function",
        "evidence",
        "fix",
    }


def test_json_of_what_cannot_be_told_is_null():
    trace = Kineto()
    trace.op("aten::mul", 0, 100)
    del trace.memory(1, 512, 0)["args"]["Addr"]
    (memory,) = profile_to_json(explain_profile(trace.read()))["profile"]["memory"]
    assert memory["reserved_bytes"] is None
    assert memory["before_trace_bytes"] is None
    assert memory["timeline_by"] is None
    assert memory["exact"] == []
    assert memory["at_peak"] == []


def test_markdown_has_the_tables(made):
    shown = markdown(made, top=2)
    assert shown.startswith("**GPU 0 is busy for 26% of 3.00 ms")
    assert "| self CPU | CPU total | on GPU | calls | operator |" in shown
    assert "### In use at the peak on cuda:0" in shown
    assert "… and" in shown
    assert "### What to do" in shown


def test_markdown_of_hostile_names_draws_nothing():
    shown = markdown(explain_profile(wild().read()))
    assert "\x1b" not in shown
    for row in shown.splitlines():
        if row.startswith("|"):
            assert row.endswith("|")


def test_every_next_step_names_a_verb_that_exists(made, real):
    from vramlens.cli.main import VERBS

    for profile in (made, real):
        for line in next_command(profile).lines:
            if line.startswith("vramlens"):
                assert line.split()[1] in VERBS
