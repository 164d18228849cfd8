"""Memory outside of PyTorch's allocator, beside failures that did not come from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.recordings import DATA
from support.summaries import line, named_causes, rank_of, trainers
from vramlens.analyses.finding import Place
from vramlens.api import load
from vramlens.ranks import RankSummary, compare, summarise
from vramlens.ranks.rank_summary import RankFailure
from vramlens.units import GIB, MIB

OOM = RankFailure(1_700_000_000_000_000, 3, GIB, Place("train.py", 10, "step"), died=True)
AT_OWN_LIMIT = replace(OOM, at_own_limit=True)


def job(failure: RankFailure | None) -> list[RankSummary]:
    """Two ranks of which the first keeps 800 MiB, has more communicators, and shares its GPU with another
    job.
    """
    first, second = trainers(2)
    kept = line(50, "other", 8, 100 * MIB, phase="evaluation")
    ledgers = [(("nccl", 2 * GIB), ("other_processes", 50 * GIB)), (("nccl", GIB),)]
    return [
        rank_of(0, 2, [*first.lines, kept], ledger=ledgers[0], failure=failure),
        rank_of(1, 2, second.lines, ledger=ledgers[1]),
    ]


@pytest.mark.parametrize(
    ("failure", "causes"),
    [
        (AT_OWN_LIMIT, ["rank_only"]),
        (OOM, ["other_process", "nccl", "rank_only"]),
        (None, ["nccl", "rank_only", "other_process"]),
    ],
    ids=["its own limit", "the GPU", "no failure"],
)
def test_what_the_limit_of_a_process_does_not_count_is_a_note(
    failure: RankFailure | None, causes: list[str]
) -> None:
    answer = compare(job(failure))
    assert [cause for _, cause in named_causes(answer)] == causes
    refused = [note for note in answer.notes if "the process's own limit" in note]
    assert len(refused) == (2 if failure is AT_OWN_LIMIT else 0)


def test_a_rank_that_did_not_fail_keeps_its_communicators() -> None:
    """The other one reached its limit."""
    first, second = job(None)
    answer = compare([first, replace(second, failure=AT_OWN_LIMIT)])
    assert [cause for _, cause in named_causes(answer)] == ["nccl"]


def test_unused_memory_counts_against_the_limit() -> None:
    """What the allocator reserves and does not use is told by its size."""
    first, second = job(AT_OWN_LIMIT)
    first = replace(first, peak_reserved_bytes=first.peak_requested_bytes + 4 * GIB, ledger=())
    assert named_causes(compare([first, second]))[0] == ((0,), "allocator")


@pytest.mark.parametrize(
    ("recording", "is_own_limit"),
    [("oom_forward.vram", True), ("oom_really_full.vram", False)],
)
def test_a_recording_tells_what_refused_its_request(recording: str, is_own_limit: bool) -> None:
    failure = summarise(load(DATA / "captured" / recording), 0).failure
    assert failure is not None
    assert failure.at_own_limit is is_own_limit


def test_communicators_are_a_note_beside_a_hang() -> None:
    """No rank ran out of memory: what a rank holds more there did not end the job."""
    first, second = job(None)
    aborted = replace(second, ended=("sigabrt", 1_700_000_000_000_000), ending="SIGABRT")
    answer = compare([first, aborted])
    assert "nccl" not in [cause for _, cause in named_causes(answer)]
    assert any("NCCL's communicators" in note for note in answer.notes)
