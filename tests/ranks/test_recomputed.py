"""What backward passes computed again: known from the stacks of torch.utils.checkpoint."""

from __future__ import annotations

from dataclasses import replace

from support.recordings import DATA, data_of, read
from vramlens.api import load
from vramlens.fleet.summary_json import summary_from_json, summary_to_json
from vramlens.ranks import summarise


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
