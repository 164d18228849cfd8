"""Ranks in words, "rank 3", "ranks 0-3 and 7"; and in names of files: ``rank3.pickle``,
``global-rank 3``, ``run.r3.vram``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vramlens.units import agreeing, joined

DEFAULT_SETTINGS = "PyTorch's own"
"""Of an allocator, where the user has set none."""
_MOST_SPANS = 6
_VERBS_OF_SEVERAL = {"has": "have", "does": "do"}
_PAST_OR_NO_VERBS = ("left", "did", "called", "all")
# "rank0003", "rank_3", "global-rank 3", "r3" between separators; the last such in the name counts.
RANK_IN_NAME = re.compile(
    r"(?i)rank[_\-. ]?0*(\d{1,7})(?!\d)|(?:^|[_\-./])r0*(\d{1,7})(?=[_\-./]|$)"
)


def named(ranks: Sequence[int]) -> str:
    """Ranks in words: "rank 3", "ranks 0-3 and 7"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    if len(words) > _MOST_SPANS:
        unnamed = len(words) - (_MOST_SPANS - 1)
        words = [*words[: _MOST_SPANS - 1], f"{unnamed} more"]
    noun = agreeing(len(ranks), "rank", "ranks")
    return f"{noun} {joined(words)}"


def plural(title: str) -> str:
    """The title of one rank's difference, for several ranks."""
    first_word, _, predicate = title.partition(" ")
    verb = first_word.removesuffix(":")
    colon = first_word.removeprefix(verb)
    if verb not in _PAST_OR_NO_VERBS:
        verb = _VERBS_OF_SEVERAL.get(verb, verb.removesuffix("s"))
    predicate = predicate.replace("its peers", "their peers")
    predicate = predicate.replace("only on this rank", "only on these ranks")
    return f"{verb}{colon} {predicate}"


def rank_in_name(text: str) -> int | None:
    """The number of the rank that a file's name says last; None where it says none."""
    matches = list(RANK_IN_NAME.finditer(text))
    return int(next(filter(None, matches[-1].groups()))) if matches else None


def names_a_rank(path: str) -> bool:
    """True if a path contains the number of a rank."""
    return RANK_IN_NAME.search(path) is not None


def who_of(count: int, ranks: int) -> str:
    """So many of the ranks: ``Both ranks``, ``3 of 4 ranks``."""
    if count < ranks:
        return f"{count} of {ranks} ranks"
    return "Both ranks" if ranks == 2 else f"All {ranks} ranks"
