"""Numbers of 32 bits on one rank, where its peers compute in 16: the tensors are the same, the batch is
no larger, and the copies that autocast makes are missing.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from support.recordings import data_of, read
from support.summaries import STEPS, line, rank_of
from vramlens.fleet.summary_json import summary_from_json, summary_to_json
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare, summarise
from vramlens.ranks.rank_summary import LineUse
from vramlens.units import MIB


def layer(number: int, size: float, copies: int) -> LineUse:
    """A line that keeps eight tensors of a size, and makes smaller copies of what they come from."""
    kept = line(number, "temporaries", 8, int(size * MIB), per_step=8, phase="backward")
    made = (8 + copies) * STEPS
    return replace(
        kept,
        per_step=8 + copies,
        allocations=made,
        total_bytes=kept.total_bytes + copies * STEPS * 3 * MIB,
        sizes=2,
        main_bytes=int(size * MIB),
    )


def trainer(rank: int, *, times: float, batch: float = 1, copies: int = 5) -> RankSummary:
    """A rank whose tensors are so many times as large as those of 16 bits."""
    inputs = line(79, "activations", 1, int(20 * batch * MIB), per_step=1)
    return rank_of(
        rank,
        2,
        [
            line(10, "parameters", 4, 25 * MIB, phase="other"),
            replace(inputs, main_bytes=int(20 * batch * MIB)),
            layer(52, 22 * times, 2 * copies),
            layer(49, 16 * times, copies),
        ],
    )


def test_the_same_tensors_of_twice_the_width_are_no_larger_batch() -> None:
    (told,) = compare([trainer(0, times=1), trainer(1, times=2, copies=1)]).differences
    assert (told.ranks, told.cause, told.verdict) == ((1,), "wider_numbers", Verdict.LIKELY)
    assert told.place is not None
    assert told.place.line == 52
    assert told.bytes == 8 * (22 + 16) * MIB
    advice = " ".join((*told.evidence, told.fix))
    assert "BalancedBatchSampler" not in advice
    assert "tensors of 44.00 MiB at train/model.py:52 in f52; its peers: 22.00 MiB" in advice
    assert "train/model.py:79 in f79 makes is as large" in advice
    assert "114 tensors at these lines; its peers: 186" in advice


@pytest.mark.parametrize(
    "odd",
    [
        trainer(1, times=2, batch=2),
        trainer(1, times=1.9, copies=1),
        trainer(1, times=3, copies=1),
    ],
    ids=["the batch is twice as large", "not twice", "more than twice"],
)
def test_what_is_not_as_much_twice_stays_a_batch(odd: RankSummary) -> None:
    (told,) = compare([trainer(0, times=1), odd]).differences
    assert (told.ranks, told.cause) == ((1,), "uneven_batch")


def test_where_as_many_tensors_are_made_their_mean_counts() -> None:
    """Lengths that vary: what holds most at the peaks may be twice as large by chance."""
    plain, odd = (
        rank_of(
            rank,
            2,
            [
                line(10, "parameters", 4, 25 * MIB, phase="other"),
                line(79, "activations", 1, 20 * MIB, per_step=1),
                replace(
                    line(52, "activations", 8, int(size * MIB), per_step=8), main_bytes=main * MIB
                ),
            ],
        )
        for rank, size, main in ((0, 22, 20), (1, 40, 40))
    )
    (told,) = compare([plain, odd]).differences
    assert told.cause == "uneven_batch"


def recorded() -> RankSummary:
    return summarise(read(data_of("recordings/gpt_annotated")), 0)


def test_the_main_size_of_a_line_is_of_what_is_alive_at_the_peak() -> None:
    lines = recorded().lines
    assert all((one.main_bytes > 0) == (one.at_peak_bytes > 0) for one in lines)
    assert all(one.main_bytes <= one.at_peak_bytes for one in lines)
    alike = [one for one in lines if one.sizes == 1 and one.at_peak_bytes]
    assert alike
    assert all(one.main_bytes == one.mean_bytes for one in alike)


def test_an_older_summary_has_no_main_sizes() -> None:
    content = json.loads(summary_to_json(recorded()))
    for one in content["lines"]:
        del one["main_bytes"]
    lines = summary_from_json(json.dumps(content)).lines
    assert lines == tuple(replace(one, main_bytes=0) for one in recorded().lines)
