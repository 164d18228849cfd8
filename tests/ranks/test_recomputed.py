"""What backward passes computed again: known from the stacks of torch.utils.checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.recordings import DATA, data_of, read
from support.summaries import line, rank_of
from vramlens.api import load
from vramlens.fleet.summary_json import summary_from_json, summary_to_json
from vramlens.ranks import RankSummary, compare, summarise
from vramlens.units import MIB


def test_checkpointing_shows_in_the_summary() -> None:
    summary = summarise(load(DATA / "captured" / "checkpointed.vram"), 0)
    assert summary.trains
    assert summary.recomputed_share is not None
    assert 0.1 < summary.recomputed_share < 0.5


def test_without_checkpointing_nothing_is_computed_again() -> None:
    assert summarise(read(data_of("recordings/gpt_annotated")), 0).recomputed_bytes == 0


def test_it_is_kept_in_the_file_of_a_summary() -> None:
    summary = replace(summarise(read(data_of("recordings/gpt_annotated")), 0), recomputed_bytes=7)
    assert summary_from_json(summary_to_json(summary)).recomputed_bytes == 7


def trainer(rank: int, *, tensors: int, mean: int, main: int, recomputed: int) -> RankSummary:
    """A rank that makes so many tensors a step at one line of its layers."""
    made = line(62, "activations", 12, mean * MIB, per_step=tensors, phase="backward")
    return rank_of(
        rank,
        2,
        [
            line(10, "parameters", 4, 25 * MIB, phase="other"),
            line(60, "activations", 2, 20 * MIB, per_step=2),
            replace(made, main_bytes=main * MIB, sizes=3),
        ],
        recomputed_bytes=recomputed,
    )


@pytest.mark.parametrize(
    ("recomputed", "tensors", "cause"),
    [
        (9 << 30, 64, "not_checkpointed"),  # the peers make each twice
        (0, 64, "wider_numbers"),
        (9 << 30, 32, "larger_tensors"),
    ],
)
def test_what_a_rank_keeps_is_not_wider_than_what_its_peers_make_twice(
    recomputed: int, tensors: int, cause: str
) -> None:
    peer = trainer(0, tensors=tensors, mean=27, main=45, recomputed=recomputed)
    odd = trainer(1, tensors=32, mean=54, main=90, recomputed=0)
    (difference,) = compare([peer, odd]).differences
    assert (difference.ranks, difference.cause) == ((1,), cause)
