"""What it means for a predicted run that made-up numbers decide, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.units import agreeing, format_size, listed

if TYPE_CHECKING:
    from vramlens.trace import DecisionsMeta

_MOST_PLACES = 3


def decisions_sentence(decisions: DecisionsMeta) -> str:
    """Which lines made-up numbers decide, and what a run may need instead."""
    start = agreeing(len(decisions.places), "A made-up number", "Made-up numbers")
    return f"{start} {meaning_of(decisions)}."


def meaning_of(decisions: DecisionsMeta) -> str:
    """The same from its verb on."""
    verb = agreeing(len(decisions.places), "decides", "decide")
    places = listed([f"{file}:{line}" for file, line in decisions.places], _MOST_PLACES)
    return f"{verb} {places}: {_consequence(decisions)}"


def _consequence(decisions: DecisionsMeta) -> str:
    if decisions.sure_bytes is None:
        return "a run may take more or fewer iterations there, or another branch, so its peak may differ"
    sure_size = format_size(decisions.sure_bytes)
    more = (
        "nothing else ends a loop there, so no card is sure to fit"
        if decisions.is_open
        else "another way may need more than predicted"
    )
    return f"if a run does the least that it can there, it needs {sure_size} at its peak; {more}"
