"""A rank's summary as JSON and back: how it lies in a lake, and travels from a worker."""

from __future__ import annotations

import json
from dataclasses import asdict

from vramlens.fleet.typed_json import from_json
from vramlens.ranks.rank_summary import RankSummary
from vramlens.read.values import MOST_DEVICES, MOST_RANKS


def summary_to_json(summary: RankSummary) -> str:
    """The summary as one line of JSON."""
    return json.dumps(asdict(summary), separators=(",", ":"))


def summary_from_json(text: object) -> RankSummary:
    """The summary that ``summary_to_json`` wrote.

    Raises:
        ValueError: it is not such a text, or says more ranks or devices than there are.
    """
    try:
        summary = from_json(RankSummary, text)
    except ValueError as error:
        raise ValueError(
            f"not a rank summary of this version ({error}); export the run again"
        ) from None
    if not 0 <= summary.rank <= MOST_RANKS or (summary.world_size or 0) > MOST_RANKS:
        raise ValueError(f"a summary of rank {summary.rank}: no job has so many")
    if not -1 <= summary.device <= MOST_DEVICES:
        raise ValueError(f"a summary of device {summary.device}: no machine has so many")
    for _name, spans in summary.groups:
        if sum(max(0, count) for _first, count, _step in spans) > MOST_RANKS:
            raise ValueError("a summary with a group of more ranks than any job has")
    return summary
