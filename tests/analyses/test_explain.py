"""Explanations of real runs against what the allocator and the error itself said."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from support.oracle import MIB
from support.recordings import DATA, data_of, event, read, segment, snapshot, truth_of
from vramlens import UsageError, explain, load
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.recording_explanation import explain_trace, moment
from vramlens.api import example_path

EVERY = sorted(
    str(path.relative_to(DATA)).removesuffix(".pickle.xz")
    for path in DATA.rglob("*.pickle.xz")
    if not path.name.endswith(".nccl.pickle.xz")
)
PARTLY_RECORDED = [
    "found/late_start",
    "found/oom_wrapped",
    "found/wrapped",
    "ranks/wrong_device/wrong_device.rank0",
]
GPT_PEAK_ACTIVATIONS = 205_948_932
"""Of one step of GPT(d=256, layers=4) at 8 by 256 tokens: the same model in all ``leak_*`` runs."""


def explained(name: str, at: str | None = None) -> Explanation:
    return explain(DATA / f"{name}.pickle.xz", at=at)


@pytest.mark.parametrize("name", EVERY)
def test_peaks_that_are_claimed_exact_are_those_of_memory_stats(name: str) -> None:
    peak = explained(name).peak
    assert peak is not None
    stats = truth_of(name)["stats"]
    told = {
        field: stats[f"{field}.all.peak"] for field in peak.exact if f"{field}.all.peak" in stats
    }
    assert {field: getattr(peak, field) for field in told} == told
    every = ("requested_bytes", "reserved_bytes", "allocated_bytes", "active_bytes")
    assert peak.exact == (() if name in PARTLY_RECORDED else every)
    if name != "found/wrapped":  # its peak is not among the events that are left
        for field in ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"):
            assert getattr(peak, field) == stats.get(f"{field}.all.peak", getattr(peak, field)), (
                field
            )


def test_a_ring_that_wrapped_claims_no_more_than_it_holds() -> None:
    peak = explained("found/wrapped").peak
    assert peak is not None
    assert (
        peak.requested_bytes
        == 539_554_824
        < truth_of("found/wrapped")["stats"]["requested_bytes.all.peak"]
    )
    assert peak.exact == ()


@pytest.mark.parametrize(
    ("name", "before"), [("late_start", "122.12 MiB in 126 blocks"), ("wrapped", "126.12 MiB")]
)
def test_what_was_there_before_is_said_to_be_missing(name: str, before: str) -> None:
    facts = explained(f"found/{name}").recording
    assert not facts.complete
    assert len(facts.missing) == 1
    assert "before recording began" in facts.missing[0]
    assert before in facts.missing[0]


def test_a_whole_recording_misses_nothing() -> None:
    facts = explained("found/wrapped_full").recording
    assert facts.complete
    assert facts.missing == ()
    assert facts.events == 5466
    assert facts.allocations == truth_of("found/wrapped_full")["stats"]["allocation.all.allocated"]


def test_moments() -> None:
    recording = load(DATA / "recordings/oom_train.pickle.xz")
    device = recording.devices[0]
    last = len(device.events) - 1
    assert moment(device, "oom") == device.out_of_memory[-1].event
    assert moment(device, "peak") == device.requested.peak_event
    assert moment(device, "end") == last
    assert moment(device, str(last)) == last
    for wrong in (str(last + 1), "-1", "", "later", "\u0661"):
        with pytest.raises(UsageError):
            moment(device, wrong)


def test_the_heap_moves_and_the_peak_stays() -> None:
    usual, early = explained("recordings/gpt"), explained("recordings/gpt", at="100")
    assert usual.at == "peak"
    assert usual.peak is not None
    assert usual.heap == usual.peak.heap
    assert early.heap is not None
    assert early.heap.event == 100
    assert early.peak == usual.peak


def test_the_heap_of_a_failure_is_that_at_the_failure() -> None:
    failed, recovered = explained("recordings/oom_train"), explained("found/oom_recovered")
    assert failed.at == "oom"
    assert failed.heap is not None
    assert failed.oom is not None
    assert failed.heap.event == failed.oom.event
    assert recovered.at == "peak"
    with pytest.raises(UsageError):
        explained("recordings/gpt", at="oom")


def test_the_shape_names_the_step_that_reaches_the_peak() -> None:
    peak = explained("recordings/gpt").peak
    assert peak is not None
    assert peak.shape is not None
    assert peak.heap.step is not None
    assert peak.shape.startswith(f"Step {peak.heap.step} goes from ")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gpt", "1.84 GiB in the backward pass (likely {}:59 in lm_loss), and drops before it ends."),
        ("leak_exception", "553.08 MiB in the forward pass ({}:53 in forward)."),
        ("million", "114.93 MiB in the backward pass (likely {}:59 in lm_loss), then drops in the"
                    " optimizer step."),
        ("graphs", "170.80 MiB at {}:212 in graphs."),
    ],
)  # fmt: skip
def test_the_shape_says_where_the_step_rises_and_falls(name: str, told: str) -> None:
    peak = explained(f"recordings/{name}").peak
    assert peak is not None
    assert (peak.shape or "").endswith(told.format("train/workloads.py"))


def test_a_line_that_holds_more_than_all_activations_is_explained() -> None:
    def evidence(name: str) -> tuple[str, ...]:
        found = {finding.id: finding for finding in explained(f"recordings/{name}").findings}
        return found["activations"].evidence

    assert len(evidence("gpt")) == 1
    assert evidence("cnn_multires")[1] == (
        "train/workloads.py:120 in cnn_multires holds 1.18 GiB in all, some of it not kept for the"
        " backward pass"
    )


def test_unused_reserve_of_changing_sequence_lengths() -> None:
    found = {finding.id: finding for finding in explained("recordings/gpt_varlen").findings}
    stats = truth_of("recordings/gpt_varlen")["stats"]
    unused = stats["reserved_bytes.all.peak"] - stats["active_bytes.all.peak"]
    saved = found["settings_save"].bytes  # replay says how much of it
    assert saved is not None
    assert 0.95 * unused < saved <= unused
    assert "unused_reserve" not in found
    assert "settings_save" not in {
        f.id for f in explained("recordings/gpt_varlen_expandable").findings
    }


@pytest.mark.parametrize("name", ["gpt_annotated", "leak_losses", "leak_hook"])
def test_activations_are_counted_without_what_leaks(name: str) -> None:
    found = [
        finding
        for finding in explained(f"recordings/{name}").findings
        if finding.id == "activations"
    ]
    assert [finding.bytes for finding in found] == [GPT_PEAK_ACTIVATIONS]


def test_autocast_is_no_advice_where_activations_have_its_type_already() -> None:
    def advice(path: Path) -> str:
        (finding,) = [f for f in explain(path).findings if f.id == "activations"]
        return finding.fix or ""

    half_precision, full_precision = example_path(), DATA / "recordings/oom_train.pickle.xz"
    assert advice(half_precision).endswith("checkpoint around the repeated blocks")
    assert advice(full_precision).endswith("or autocast to bfloat16")


@pytest.mark.parametrize("name", ["inference_kv", "inference_kv_fixed"])
def test_decoding_waits_for_no_backward_pass(name: str) -> None:
    assert "activations" not in {finding.id for finding in explained(f"found/{name}").findings}


def test_findings_that_can_be_acted_on_come_first() -> None:
    for name in EVERY:
        can = [
            finding.fix is not None and finding.verdict != "not a problem"
            for finding in explained(name).findings
        ]
        assert can == sorted(can, reverse=True), name


def test_a_recording_of_nothing() -> None:
    explanation = explain_trace(read(pickle.dumps({"segments": [], "device_traces": []})))
    assert (explanation.peak, explanation.heap, explanation.fragmentation) == (None, None, None)
    assert explanation.findings == ()


def test_a_state_without_events() -> None:
    explanation = explain_trace(read(pickle.dumps(snapshot([], [segment(1 << 30, 2 * MIB, [])]))))
    assert explanation.peak is not None
    assert explanation.peak.reserved_bytes == 2 * MIB
    assert explanation.peak.exact == ()


def test_an_unknown_device_is_refused() -> None:
    trace = read(data_of("recordings/gpt"))
    with pytest.raises(UsageError, match="no device 7"):
        explain_trace(trace, device=7)


def test_the_device_with_the_highest_peak_is_chosen() -> None:
    quiet, busy = [event("alloc", 1 << 30, 5)], [event("alloc", 1 << 31, 9)]
    value = snapshot([], []) | {"device_traces": [quiet, busy]}
    peak = explain_trace(read(pickle.dumps(value))).peak
    assert peak is not None
    assert peak.device == 1
    assert peak.requested_bytes == 9


def test_a_logs_last_error_is_the_one_that_counts(tmp_path: Path) -> None:
    first, last = truth_of("found/oom_recovered")["facts"]["messages"]
    log = tmp_path / "train.log"
    log.write_text(f"{first}\nstep 1\n{last}\n")
    explanation = explain(log)
    assert explanation.oom is not None
    assert explanation.oom.count == 2
    assert explanation.oom.tried_bytes == 256 * MIB
    assert explanation.peak is None
    assert explanation.recording.events == 0


def test_advice_on_next_to_nothing_is_left_out() -> None:
    found = explain(DATA / "captured/oom_backward.vram")
    assert "first_optimizer_step" not in {one.id for one in found.findings}  # it would need 8 bytes
    assert "process_limit" in {one.id for one in found.findings}


def test_one_line_that_holds_most_is_advised_on() -> None:
    found = explain(DATA / "captured/oom_really_full.vram")
    assert found.oom is not None
    assert found.oom.headline.startswith(
        "Out of memory: tried to allocate 256.00 MiB. The GPU had 246.19 MiB free, and PyTorch's cache had 14.81 MiB free"
    )
    (line,) = [one for one in found.findings if one.id == "largest_line"]
    assert (line.place, line.bytes) == (found.heap.by_line[0].place, found.heap.by_line[0].bytes)
    assert line.fix == (
        "make the tensor of programs.py:130 in oom_really_full smaller or free it: 10.00 MiB less"
        " are enough for this request"
    )
    (others,) = [one for one in found.findings if one.id == "settings_do_not_help"]
    assert "roundup_power2_divisions:8 (the first request, 77.49 GiB, fails)" in others.title
