"""Findings against real runs with and without the fix: the bytes are those that the fix freed,
measured.
"""

from __future__ import annotations

import pickle

import pytest

from support import oracle
from support.oracle import MIB
from support.recordings import DATA, data_of, read, truth_of
from vramlens import explain
from vramlens.analyses.finding import Finding
from vramlens.analyses.recording_explanation import explain_trace
from vramlens.ground.verdict import Verdict

NAMES = sorted(
    str(path.relative_to(DATA)).removesuffix(".pickle.xz")
    for folder in ("found", "recordings", "ranks")
    for path in (DATA / folder).rglob("*.pickle.xz")
    if not path.name.endswith(".nccl.pickle.xz")
)
MADE_IN = {
    "gradients_kept": {"found/grads_kept", "found/grads_zeroed"},
    "unused_graph": {"found/eval_graph", "ranks/leak_rank1/leak_rank1.rank1"},
    "two_copies": {"found/double_load", "found/resume_optimizer"},
    "first_optimizer_step": {"found/first_step_to_come"},
    "stranded_streams": {"found/stranded_stream", "recordings/graphs"},
    "private_pools": {"found/private_pools", "recordings/graphs"},
    "leak": {f"recordings/{name}" for name in (
        "leak_outputs", "leak_cycle", "leak_hook", "leak_exception", "oom_leak")}
    | {"ranks/leak_rank1/leak_rank1.rank1", "ranks/rank0_gather/rank0_gather.rank0"},
    "fragmented_request": {"recordings/oom_fragmented", "found/oom_holes"},
}  # fmt: skip
"""Every recording that calls for a finding; in no other may it be made. ``graphs`` warms up on a
stream of its own.
"""


def findings(name: str) -> dict[str, Finding]:
    found = explain(DATA / f"{name}.pickle.xz").findings
    assert len({finding.id for finding in found}) == len(found)
    return {finding.id: finding for finding in found}


def measured(name: str) -> int:
    less: int = truth_of(name)["variant"]["peak_requested_less"]
    return less


@pytest.mark.parametrize("name", NAMES)
def test_findings_are_made_where_they_hold_and_nowhere_else(name: str) -> None:
    made = {id_ for id_, finding in findings(name).items() if finding.verdict != "not a problem"}
    assert made & MADE_IN.keys() == {id_ for id_, where in MADE_IN.items() if name in where}


@pytest.mark.parametrize("name", NAMES)
def test_every_finding_says_what_to_do(name: str) -> None:
    for finding in findings(name).values():
        assert finding.verdict in tuple(Verdict)
        assert (finding.fix is None) == (finding.verdict == "not a problem")
        assert finding.bytes is None or finding.bytes >= 0
        assert finding.title


@pytest.mark.parametrize("name", ["found/grads_kept", "found/grads_zeroed"])
def test_kept_gradients_cost_what_was_measured(name: str) -> None:
    said = findings(name)["gradients_kept"].bytes
    assert said is not None
    assert abs(said - measured(name)) <= 0.01 * measured(name)


def test_an_unused_graph_costs_what_was_measured() -> None:
    finding = findings("found/eval_graph")["unused_graph"]
    assert finding.bytes is not None
    assert abs(finding.bytes - measured("found/eval_graph")) <= 0.05 * measured("found/eval_graph")
    assert finding.place is not None
    assert finding.place.function == "forward"


@pytest.mark.parametrize("name", ["found/double_load", "found/resume_optimizer"])
def test_two_copies_are_the_doubled_bytes(name: str) -> None:
    finding = findings(name)["two_copies"]
    assert finding.bytes is not None
    assert finding.bytes == truth_of(name)["facts"]["doubled_bytes"]
    assert abs(finding.bytes - measured(name)) <= 0.01 * measured(name)
    assert finding.place is not None
    assert finding.place.function == name.removeprefix("found/")


def test_a_copy_that_was_dropped_in_time_is_no_problem() -> None:
    assert measured("found/load_dropped") == 0
    finding = findings("found/load_dropped")["two_copies"]
    assert finding.verdict == "not a problem"
    assert finding.bytes == truth_of("found/load_dropped")["facts"]["doubled_while_loading_bytes"]


def test_the_first_step_to_come_keeps_what_it_kept() -> None:
    facts = truth_of("found/first_step_to_come")["facts"]
    finding = findings("found/first_step_to_come")["first_optimizer_step"]
    assert finding.bytes == facts["first_step_keeps_requested_bytes"]


@pytest.mark.parametrize(
    ("optimizer", "states", "verdict"),
    [
        ("AdamW", 2, "likely"),
        ("RMSprop", 1, "likely"),
        ("SGD", 0, ""),
        ("Other", 2, "possible"),
        (None, 2, "possible"),
    ],
)
def test_the_optimizer_decides_what_its_first_step_keeps(
    optimizer: str | None, states: int, verdict: str
) -> None:
    value = oracle.load(data_of("found/first_step_to_come"))
    mark = {
        "stage": "END",
        "name": f"Optimizer.zero_grad#{optimizer}.zero_grad",
        "device": 0,
        "time_us": 0,
    }
    value["external_annotations"] = [mark] if optimizer else []
    found = [
        f
        for f in explain_trace(read(pickle.dumps(value))).findings
        if f.id == "first_optimizer_step"
    ]
    weights = truth_of("found/first_step_to_come")["facts"]["parameter_bytes"]
    assert [(f.bytes, f.verdict) for f in found] == (
        [(states * weights, verdict)] if states else []
    )


def test_workspaces_of_benchmarking() -> None:
    finding = findings("found/conv_workspace")["operator_buffers"]
    assert finding.bytes is not None
    assert finding.bytes == 2_355_363_840 >= measured("found/conv_workspace")
    assert finding.place is not None
    assert finding.place.function == "conv_steps"
    assert "cudnn.benchmark = False" in (finding.fix or "")
    assert "cudnn.benchmark = False" in (findings("found/oom_cudnn")["operator_buffers"].fix or "")
    assert "operator_buffers" not in findings("found/conv_workspace_fixed")


def test_the_logits_of_a_language_model_are_no_convolution() -> None:
    finding = findings("recordings/gpt")["operator_buffers"]
    assert finding.place is not None
    assert (finding.place.line, finding.bytes) == (59, 2 * 8 * 512 * 8192 * 4)
    assert "cudnn" not in (finding.fix or "")


def test_a_stranded_cache_is_what_was_prefetched() -> None:
    finding = findings("found/stranded_stream")["stranded_streams"]
    assert finding.bytes == truth_of("found/stranded_stream")["facts"]["prefetched_reserved_bytes"]


def test_private_pools_are_what_the_snapshot_says() -> None:
    made: dict[tuple[int, int], int] = {}
    for segment in oracle.load(data_of("found/private_pools"))["segments"]:
        pool = segment["segment_pool_id"]
        made[pool] = made.get(pool, 0) + segment["total_size"]
    del made[0, 0]
    finding = findings("found/private_pools")["private_pools"]
    assert finding.bytes == sum(made.values())
    assert set(finding.evidence) == {
        f"pool {pool}: {size / MIB:.2f} MiB reserved" for pool, size in made.items()
    }
    # What the program saw its reserve grow by has 2 MiB more: the first capture made a generator's
    # state, outside.
    pools = truth_of("found/private_pools")["facts"]["pools"]
    assert {tuple(pool["id"]) for pool in pools} == set(made)
    assert sum(pool["reserved_bytes"] for pool in pools) == finding.bytes + 2 * MIB


@pytest.mark.parametrize(
    "name", ["found/amp_casts", "found/double_load_fixed", "recordings/leak_none_warmup"]
)
def test_optimizer_state_where_it_weighs(name: str) -> None:
    finding = findings(name).get("optimizer_state")
    heap = explain(DATA / f"{name}.pickle.xz").heap
    assert heap is not None
    held = heap.by_category["optimizer_state"].bytes
    assert (finding is not None) == (held >= 0.25 * heap.requested_bytes)
    assert finding is None or finding.bytes == held


def test_half_a_batch_saves_half_of_the_temporaries_too() -> None:
    fixes = [finding.fix for finding in explain(DATA / "recordings/gpt.pickle.xz").findings]
    assert any("with the temporaries of this moment" in fix for fix in fixes)
