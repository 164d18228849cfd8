"""Diffs of real pairs, of copies with a planted change, and of runs that are the same: what
changed and nothing else.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from support.copies import again, forward_lines, planted, shuffled, snapshot_of
from support.documents import next_step, parts_of
from support.recordings import DATA, SMALL, block, data_of, event, segment, snapshot, truth_of
from vramlens import api
from vramlens.analyses.compare.compared_run import Run, run_of
from vramlens.analyses.compare.diff_answer import Diff
from vramlens.analyses.compare.diff_findings import headline, told_apart
from vramlens.analyses.compare.run_diff import diff_runs
from vramlens.analyses.finding import Place
from vramlens.errors import InputError, UsageError
from vramlens.read.snapshot import read_snapshot
from vramlens.report.diff.story import diff_document, sentences
from vramlens.report.document import Heading, Table

MIB = 2**20
PLAIN = [name for name in SMALL if name.startswith("recordings/")]


def run(data: bytes, name: str = "test") -> Run:
    return run_of(read_snapshot(io.BytesIO(data), name))


@cache
def shared(name: str) -> Run:
    return run(data_of(name), name)


@cache
def found(name: str) -> Run:
    return run_of(api.load(DATA / "found" / f"{name}.pickle.xz"))


def diff(before: Run, after: Run) -> Diff:
    return diff_runs([before], [after])


def figures_of(diff: Diff) -> tuple[tuple[str, ...], ...]:
    """Name, before, after, change and note of each figure."""
    (table,) = parts_of(diff_document(diff), Table)
    return table.rows


@pytest.mark.parametrize("pair", list(pairwise(PLAIN[:10])), ids="-".join)
def test_changes_sum_to_the_change_of_the_peak(pair):
    found = diff(shared(pair[0]), shared(pair[1]))
    assert (
        sum(line.change_bytes for line in found.by_line) + found.unattributed_bytes
        == found.peak_bytes_change
    )
    old, new = (truth_of(name)["stats"] for name in pair)
    assert (
        found.peak_bytes_change == new["requested_bytes.all.peak"] - old["requested_bytes.all.peak"]
    )
    for name in ("allocated", "requested", "active", "reserved"):
        assert found.counters[name].before_bytes == old[f"{name}_bytes.all.peak"]
        assert found.counters[name].after_bytes == new[f"{name}_bytes.all.peak"]


@pytest.mark.parametrize("name", PLAIN[:10])
def test_a_run_does_not_differ_from_itself(name):
    found = diff(shared(name), shared(name))
    assert (found.by_line, found.elsewhere, found.by_module, found.findings, found.others) == (
        (),
        (),
        (),
        (),
        (),
    )
    assert headline(found).startswith("Nothing changed: these are the same file (")
    assert next_step(diff_document(found))[1].startswith("vramlens diff BEFORE.vram ")


@pytest.mark.parametrize(
    "pair", [("leak_hook", "leak_none_warmup"), ("oom_leak", "resnet50"), ("gpt", "streams")]
)
def test_two_programs_are_told_and_nothing_is_claimed_of_a_fix(pair):
    found = diff(*(shared(f"recordings/{name}") for name in pair))
    answer = diff_document(found)
    assert (
        headline(found) == "These look like two different programs: no line with memory is in both."
    )
    assert next(sentences(found)).startswith("Going by the numbers only: ")
    _name, before, after, *_ = figures_of(found)[0]
    assert before != after
    assert next_step(answer)[1].startswith("vramlens diff BEFORE.vram ")
    assert {one.id for one in found.findings} <= {
        "different_programs",
        "peak_lower",
        "peak_higher",
        "line_less",
        "line_more",
    }
    assert found.findings[0].verdict == "likely"


def test_variants_of_one_program_are_not_two():
    for pair in (
        ("leak_outputs", "gpt"),
        ("leak_cycle", "leak_exception"),
        ("oom_train", "gpt_annotated"),
    ):
        assert not diff(*(shared(f"recordings/{name}") for name in pair)).unrelated


def test_a_share_that_rounds_to_nothing_has_no_sign():
    found = diff(shared("recordings/gpt"), shared("recordings/gpt"))
    old = found.counters["allocated"]
    less = replace(old, after_bytes=old.before_bytes - 512)
    rows = figures_of(replace(found, counters={**found.counters, "allocated": less}))
    assert rows[0][3:] == ("-512 bytes", "0.0%")


@pytest.mark.parametrize("name", PLAIN[:4])
def test_there_and_back_are_opposites(name):
    there, back = (
        diff(shared(name), shared("recordings/gpt")),
        diff(shared("recordings/gpt"), shared(name)),
    )
    assert there.peak_bytes_change == -back.peak_bytes_change
    assert {
        (it.change_bytes, it.place)
        for it in there.by_line
        if it.was is None and it.place in back.after.lines
    } <= {(-it.change_bytes, it.place) for it in back.by_line}


def test_the_fix_of_a_double_load_frees_its_line():
    found_ = diff(found("double_load"), found("double_load_fixed"))
    (line,) = found_.by_line
    assert (line.place.line, line.change_bytes) == (448, -58_804_224)
    assert headline(found_) == (
        "Gone: Loading put a second copy on the GPU: 56.08 MiB in addition to the first "
        "(train/programs.py:448 in double_load); the allocated peak is 57.08 MiB lower: 443.48 MiB "
        "before, 386.40 MiB after."
    )


def test_growth_that_is_gone_comes_first():
    found = diff(shared("recordings/leak_outputs"), shared("recordings/gpt"))
    assert headline(found).startswith("Growth gone, as far as 4 steps show: 33.")
    assert found.findings[0].verdict == "likely"  # so few steps prove no absence
    assert found.growth_before
    assert found.growth_after == 0
    assert found.findings[0].id == "growth_gone"
    assert found.findings[0].place.line == 146
    back = diff(shared("recordings/gpt"), shared("recordings/leak_outputs"))
    assert headline(back).startswith("Grows now: 0 per step before, 33.")
    assert back.findings[0].fix
    assert any("more behind" in reason for reason in back.worse())


def test_growth_too_small_to_matter_does_not_lead():
    found = diff(shared("recordings/leak_losses"), shared("recordings/gpt"))
    assert headline(found).startswith(
        "Different workloads: nearly all activations are 2x or 4x as large: likely a different batch "
        "or input size. By the numbers, the allocated peak is 1.37 GiB higher: "
    )
    assert headline(found).endswith("4 bytes per step before, 0 after (too small to matter).")
    assert found.findings[0].id == "peak_higher"
    assert found.findings[-1].id == "growth_gone"
    titles = [part.text for part in diff_document(found).parts if isinstance(part, Heading)]
    assert titles.index("Changed growth, by line (bytes per step)") > titles.index(
        "Changed at the peak, by line (requested bytes)"
    )
    back = diff(shared("recordings/gpt"), shared("recordings/leak_losses"))
    assert next_step(diff_document(back))[1].startswith("vramlens check ")


def test_too_few_steps_tell_no_growth():
    found = diff(shared("recordings/leak_outputs"), shared("recordings/resnet50"))
    assert found.growth_after is None
    assert "rowth" not in headline(found)


def test_a_failure_that_is_gone_comes_first_with_the_headroom():
    failed, lives = shared("recordings/oom_train"), shared("recordings/gpt")
    found = diff(failed, lives)
    assert headline(found).startswith("Failed before, completes now: at least ")
    reserved = found.counters["reserved"]
    assert found.headroom_bytes == reserved.before_bytes - reserved.after_bytes
    assert not found.headroom_exact  # a bare snapshot does not hold the limit
    assert found.findings[0].id == "completes_now"
    back = diff(lives, failed)
    assert headline(back).startswith("Completed before, runs out of memory now: ")
    assert back.worse()[0] == "it runs out of memory now"


def test_a_shorter_run_does_not_prove_that_a_failure_is_gone():
    found = diff(shared("recordings/oom_leak"), shared("recordings/gpt"))
    assert headline(found).startswith("Failed before in step 9; now 4 steps without a failure")
    assert "record more steps to be certain" in headline(found)


def test_a_known_limit_makes_the_headroom_exact():
    captured = [
        run_of(api.load(DATA / "captured" / f"{name}.vram")) for name in ("oom_forward", "gpt")
    ]
    found = diff(*captured)
    limit = captured[0].failure.limit_bytes
    assert found.headroom_exact
    assert found.headroom_bytes == limit - captured[1].explanation.peak.reserved_bytes
    assert any("model.blocks.*" in name for line in found.by_line for name, _bytes in line.modules)
    assert sum(change for _name, change in found.by_module) == sum(
        captured[1].explanation.peak.heap.by_module.values()
    ) - sum(captured[0].explanation.peak.heap.by_module.values())


def test_reserved_is_shown_and_not_judged():
    found_ = diff(found("stranded_stream_fixed"), found("stranded_stream"))
    assert found_.counters["reserved"].change_bytes > 900 * MIB
    assert found_.worse() == ()
    assert "970.00 MiB more reserved" in headline(found_)


RESNET = "recordings/resnet50"


@cache
def resnet_lines():
    return list(forward_lines(snapshot_of(RESNET)))


def copied(made: dict) -> Run:
    return run(pickle.dumps(made))


def test_there_are_lines_to_plant_a_change_in():
    assert len(resnet_lines()) >= 10


@pytest.mark.parametrize("number", [0, 2, 7])
def test_a_planted_change_is_found_and_nothing_else(number):
    line = resnet_lines()[number]
    found = diff(shared(RESNET), copied(planted(snapshot_of(RESNET), line)))
    (change,) = found.by_line
    assert (change.place.line, change.place.function) == (
        71,
        "resnet50",
    )  # the user's only line around the model
    assert (change.inner.file, change.inner.line) == line
    assert change.change_bytes == found.peak_bytes_change > 0
    assert [one.id for one in found.findings] == ["peak_higher", "line_more"]
    assert found.worse()
    assert found.others == ()


def test_the_same_requests_at_other_addresses_are_no_change():
    second = copied(again(snapshot_of(RESNET), lambda event: event["size"]))
    found = diff(shared(RESNET), second)
    # The allocator leaves other remainders unsplit: the allocated peak moves a little, as it does
    #     between real runs.
    assert 0 < abs(found.counters["allocated"].change_bytes) < 2 * MIB
    assert found.findings == found.by_line == found.elsewhere == found.others == found.worse() == ()
    assert headline(found).startswith("Nothing changed: ")


@pytest.mark.parametrize("name", [RESNET, "recordings/gpt", "recordings/leak_outputs"])
@pytest.mark.parametrize("seed", [1, 2])
def test_shuffled_times_and_addresses_are_no_change(name, seed):
    made = shuffled(snapshot_of(name), seed)
    assert made["device_traces"][0][5]["addr"] != snapshot_of(name)["device_traces"][0][5]["addr"]
    found = diff(shared(name), copied(made))
    assert found.findings == found.by_line == found.elsewhere == found.others == found.worse() == ()
    assert all(counter.change_bytes == 0 for counter in found.counters.values())
    assert found.growth_before == found.growth_after


def make(sizes: list[int], line: int = 7, **more) -> Run:
    """A run that asks for memory of these sizes at consecutive lines, and keeps all."""
    events = [event("segment_alloc", 1 << 30, 64 * MIB, frames=[])]
    blocks, at = [], 1 << 30
    for number, size in enumerate(sizes):
        frames = [{"filename": "train.py", "line": line + number, "name": "step"}]
        events.append(event("alloc", at, size, frames=frames))
        taken = -(-size // 512) * 512
        blocks.append(block(at, taken, size))
        at += taken
    blocks.append(block(at, (1 << 30) + 64 * MIB - at, 0, "inactive"))
    return run(pickle.dumps(snapshot(events, [segment(1 << 30, 64 * MIB, blocks)], **more)))


def test_a_line_that_moved_is_the_same_line_and_says_so():
    found = diff(make([4 * MIB, 2 * MIB]), make([4 * MIB, 3 * MIB], line=9))
    assert found.moved_lines == 2
    (line,) = found.by_line
    assert (line.was.line, line.place.line, line.change_bytes) == (8, 10, MIB)
    assert found.findings[-1].verdict == "likely"
    assert any("matched by function and order" in text for text in found.findings[-1].evidence)


def test_a_checkout_elsewhere_moves_no_line():
    def at(folder: str, size: int) -> Run:
        frames = [{"filename": f"{folder}/train.py", "line": 7, "name": "step"}]
        events = [
            event("segment_alloc", 1 << 30, 64 * MIB, frames=[]),
            event("alloc", 1 << 30, size, frames=frames),
        ]
        blocks = [
            block(1 << 30, size, size),
            block((1 << 30) + size, 64 * MIB - size, 0, "inactive"),
        ]
        return run(pickle.dumps(snapshot(events, [segment(1 << 30, 64 * MIB, blocks)])))

    found = diff(at("/home/a/job", 4 * MIB), at("/workspace", 6 * MIB))
    (line,) = found.by_line
    assert (line.place.file, line.was, line.change_bytes) == ("/workspace/train.py", None, 2 * MIB)
    assert found.findings[-1].verdict == "proven"
    assert [other.words for other in found.others] == [
        "the same file elsewhere: /home/a/job/train.py before, /workspace/train.py after"
    ]


def test_a_line_that_is_gone_does_not_lend_its_number_to_another():
    # Line 8 is taken out, so that 9 becomes 8: what was at 8 must not be mixed up with what is at 8
    # now.
    found = diff(make([MIB, 2 * MIB, 5 * MIB]), make([MIB, 5 * MIB]))
    (line,) = found.by_line
    assert (line.place.line, line.before_bytes, line.after_bytes) == (8, 2 * MIB, 0)
    assert line.was is None


def test_repeated_runs_tell_the_noise():
    before = [make([4 * MIB, size]) for size in (2 * MIB, 2 * MIB + 1024, 2 * MIB + 4096)]
    quiet = diff_runs(before, [make([4 * MIB, 2 * MIB + 2048])])
    assert quiet.by_line == quiet.findings == quiet.worse() == ()
    assert quiet.counters["requested"].noise_bytes == 4096
    assert "repeated runs differ by 4.00 KiB" in headline(quiet)
    loud = diff_runs(before, [make([4 * MIB, 2 * MIB + size]) for size in (8192, 9216)])
    (line,) = loud.by_line
    assert line.change_bytes == 8192 - 1024  # the medians; of two, the lower
    assert loud.worse()


def test_without_a_run_there_is_no_diff():
    with pytest.raises(UsageError):
        diff_runs([], [make([MIB])])


def test_an_empty_recording_cannot_be_compared():
    with pytest.raises(InputError, match="no GPU memory"):
        run(pickle.dumps({"segments": [], "device_traces": [[]]}))


def test_other_settings_and_versions_are_said():
    old = {"allocator_settings": {"expandable_segments": False, "max_split_size": -1}}
    new = {"allocator_settings": {"expandable_segments": True, "max_split_size": -1}}
    found = diff(make([MIB], **old), make([MIB], **new))
    assert [other.words for other in found.others] == [
        "the allocator's expandable_segments: False before, True after"
    ]


def test_another_batch_size_is_recognised():
    snapshot = snapshot_of("recordings/gpt")
    tops = {
        id(event)
        for event in snapshot["device_traces"][0]
        if event["action"] == "alloc" and event["size"] > 512
    }
    base = shared("recordings/gpt")
    categories = {place: held.category for place, held in base.lines.items()}

    def doubled(event):
        user = next((f for f in event["frames"] if f["filename"].startswith("train/")), None)
        place = Place(user["filename"], user["line"], user["name"]) if user else None
        grows = id(event) in tops and (
            place is None
            or place.function == "lm_loss"
            or categories.get(place) in ("activations", "temporaries", "workspace")
        )
        return event["size"] * 2 if grows else event["size"]

    found = diff(base, copied(again(snapshot, doubled)))
    scale = [other for other in found.others if other.name == "scale"]
    assert scale
    assert "2x as large: likely a different batch or input size" in scale[0].words


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((1, 1), ("1 byte", "1 byte")),
        ((3 << 30, 4 << 30), ("3.00 GiB", "4.00 GiB")),
        ((3 << 30, (3 << 30) + MIB), ("3,072.00 MiB", "3,073.00 MiB")),
        ((3 << 30, (3 << 30) + 1), ("3,221,225,472 bytes", "3,221,225,473 bytes")),
    ],
)
def test_two_sizes_never_look_the_same(sizes, words):
    assert told_apart(*sizes) == words


@pytest.mark.parametrize(
    "name", ["recordings/gpt", "recordings/streams", "recordings/oom_fragmented"]
)
def test_the_most_that_a_line_held_is_counted_event_by_event(name):
    held = shared(name)
    device, view = held.view.device, held.view
    now: dict[Place, int] = {}
    most: dict[Place, int] = {}
    rows = device.allocations
    dying: dict[int, list[int]] = {}
    born: dict[int, list[int]] = {}
    for row in range(len(rows)):
        born.setdefault(int(rows.born[row]), []).append(row)
        dying.setdefault(int(rows.died[row]), []).append(row)
    for moment in range(-1, len(device.events)):
        for sign, which in ((-1, dying), (1, born)):
            for row in which.get(moment, ()):
                place = view.place(int(view.phases.frame[row]))
                if place is not None:
                    now[place] = now.get(place, 0) + sign * int(rows.requested_bytes[row])
                    most[place] = max(most.get(place, 0), now[place])
    assert {place: line.most_bytes for place, line in held.lines.items()} == most
    peak = held.explanation.peak.heap
    assert {line.place: line.bytes for line in peak.by_line} == {
        p: x.bytes for p, x in held.lines.items() if x.bytes
    }


@cache
def half_leak() -> Run:
    """Six steps of a leak that shows for sure from nine on."""
    value = snapshot_of("recordings/leak_cycle")
    events = value["device_traces"][0]
    return run(
        pickle.dumps(value | {"device_traces": [events[: len(events) // 2]], "segments": []})
    )


def test_what_may_grow_is_not_said_to_be_gone():
    assert half_leak().growth is None
    changed = diff(shared("recordings/leak_cycle"), half_leak())
    assert changed.growth_after is None
    assert "gone" not in headline(changed)
    assert next_step(diff_document(changed))[1] == "vramlens run -o longer.vram YOUR_SCRIPT.py"
    bounds = "The peaks of the later run are lower bounds: that recording is incomplete."
    assert bounds in sentences(changed)
    assert not list(sentences(diff(shared("recordings/gpt"), shared("recordings/leak_cycle"))))


def test_a_failure_that_may_come_later_asks_for_more_steps():
    found = diff(shared("recordings/oom_leak"), shared("recordings/gpt"))
    assert "record more steps to be certain" in headline(found)
    assert next_step(diff_document(found))[1].startswith("vramlens run ")


def test_growth_that_stays_has_no_change():
    rows = figures_of(diff(shared("recordings/leak_cycle"), shared("recordings/leak_cycle")))
    ((_name, before, after, change, _note),) = [row for row in rows if row[0] == "growth/step"]
    assert (before, change) == (after, "none")


def test_a_setting_that_was_not_set_is_called_unset():
    words = [
        one.words
        for one in diff(
            shared("recordings/oom_train"), shared("recordings/oom_train_expandable")
        ).others
    ]
    assert (
        "the allocator's PYTORCH_CUDA_ALLOC_CONF: unset before, expandable_segments:True after"
        in words
    )


def test_a_renamed_and_rewritten_program_keeps_its_optimizer() -> None:
    """gpt and gpt_annotated train one kind of model in functions of different names: no
    optimizer came or went.
    """
    before, after = (
        run_of(api.load(DATA / f"recordings/{name}.pickle.xz")) for name in ("gpt", "gpt_annotated")
    )
    changes = [
        line for line in diff_runs([before], [after]).by_line if line.category == "optimizer_state"
    ]
    assert [(line.place.line, line.was.line) for line in changes] == [(90, 77)]
    assert all(line.before_bytes and line.after_bytes for line in changes)


def capped(cap: int) -> Run:
    return run_of(api.load(DATA / f"failures/gpt.cap{cap}.vram"))


def test_a_run_that_got_further_under_a_larger_limit_is_not_worse():
    found = diff(capped(90), capped(97))
    (limit,) = [other.words for other in found.others if other.name == "process_limit"]
    assert limit == "process limit: 1.85 GiB before, 1.99 GiB after"
    assert found.peak_change is not None
    assert found.peak_change.change_bytes > 0
    assert found.worse() == ()
