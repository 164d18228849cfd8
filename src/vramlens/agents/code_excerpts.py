"""Lines of code that an answer speaks of, from Python files below one folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vramlens.analyses.finding import Place
from vramlens.foreign_text import visible
from vramlens.trace import Frame
from vramlens.units import counted
from vramlens.view.sources import Sources

MOST_SPOTS = 6
_AROUND = 2


@dataclass(frozen=True, slots=True)
class Spot:
    """A place that an answer speaks of: what is claimed there, and what to do; None for nothing."""

    place: Place
    claim: str
    fix: str | None = None


def code_of(spots: Sequence[Spot], folder: str) -> str:
    """The lines around each spot, under what is claimed there; empty without any.

    Args:
        spots: of several on one line that have nothing to do, the first is shown.
        folder: only Python files below it are read, as ``vramlens view --sources`` does.
    """
    distinct = list({(spot.place, spot.fix): spot for spot in reversed(spots)}.values())[::-1]
    sources = Sources(folder)
    lines: list[str] = []
    shown: set[Place] = set()
    for spot in distinct[:MOST_SPOTS]:
        lines.append(f"{visible(str(spot.place))}: {visible(spot.claim)}")
        if spot.place not in shown:
            lines += _excerpt(sources, spot.place)
        if spot.fix:
            lines.append(f"    Do: {visible(spot.fix)}")
        shown.add(spot.place)
    left_out = len(distinct) - MOST_SPOTS
    if left_out > 0:
        lines.append(f"... and {counted(left_out, 'more place')}")
    return "\n".join(lines)


def _excerpt(sources: Sources, place: Place) -> Iterator[str]:
    """Yields the lines around a place, numbered, its own marked."""
    excerpts = sources.around([Frame(place.file, place.line, place.function)])
    for excerpt in excerpts.values():
        first, texts = excerpt["first"], excerpt["lines"]
        assert isinstance(first, int)
        assert isinstance(texts, list)
        for number, text in enumerate(texts, first):
            if abs(number - place.line) <= _AROUND:
                mark = ">" if number == place.line else " "
                yield f"  {mark} {number:>5} | {text}"
