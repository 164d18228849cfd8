"""A rank's summary as JSON and back: how it lies in a lake, and travels from a worker."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from vramlens.analyses.finding import Place
from vramlens.ranks.hints import Hint
from vramlens.ranks.summary import Failure, Growth, LineUse, RankSummary, Stray


def summary_to_json(summary: RankSummary) -> str:
    """The summary as one line of JSON."""
    return json.dumps(asdict(summary), separators=(",", ":"))


def summary_from_json(text: str) -> RankSummary:
    """The summary that ``summary_to_json`` wrote.

    Raises:
        ValueError: it is no such text.
    """
    try:
        value: dict[str, Any] = json.loads(text)
        value["lines"] = tuple(LineUse(**_placed(each)) for each in value["lines"])
        value["strays"] = tuple(Stray(**_placed(each)) for each in value["strays"])
        value["leaks"] = tuple(Growth(**_placed(each)) for each in value["leaks"])
        value["failure"] = None if value["failure"] is None else Failure(**_placed(value["failure"]))
        value["ended"] = None if value["ended"] is None else tuple(value["ended"])
        value["groups"] = tuple((name, tuple(tuple(span) for span in spans)) for name, spans in value["groups"])
        value["ledger"] = tuple((kind, size) for kind, size in value["ledger"])
        for name in ("step_peaks", "missing"):
            value[name] = tuple(value[name])
        return RankSummary(**value)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no rank's summary of this version ({error}): export the run anew") from None


def _placed(fields: dict[str, Any]) -> dict[str, Any]:
    """A part's fields with its place and hints as what they were."""
    place = fields["place"]
    found = {**fields, "place": None if place is None else Place(**place)}
    if "hints" in fields:
        found["hints"] = Hint(fields["hints"])
    return found
