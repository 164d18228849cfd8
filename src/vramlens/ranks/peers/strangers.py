"""Strangers: recordings of another program than the rest, of which no comparison of ranks can
say anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, combinations

from vramlens.analyses.finding import Place
from vramlens.ranks.rank_summary import RankSummary
from vramlens.ranks.rank_words import names_a_rank

_LEAST_SHARED = 0.25
"""Ranks of one job have more than this of their bytes on lines that another one has, too. (In
tests/data they have 0.63 and more, different programs of one file 0.)
"""
_OWN_SHARE = 0.02
"""Where no file says that it is of a rank: two different programs that share a model each have this
share of their bytes in functions that the other never calls. (In tests/data 0.04 and more, ranks of
one job 0: where one rank does more, the others do nothing of their own.)
"""
_MOST_PROGRAMS = 100
"""Sets of functions that are compared pair by pair. Ranks of one job have few."""

_Function = tuple[str, str]
"""A file and the name of a function in it."""


def strangers_of(ranks: Sequence[RankSummary]) -> frozenset[int]:
    """The ranks whose recordings share next to no line with any other; none where the job's own
    record joins them. Also those whose file does not say that it is of a rank, where these are of
    several programs; all ranks, where these are the most.
    """
    if all((summary.world_size or 0) > 1 for summary in ranks):  # one job
        return frozenset()
    bytes_of_lines = {summary.rank: _bytes_of_lines(summary) for summary in ranks}
    candidates = {rank: sizes for rank, sizes in bytes_of_lines.items() if sizes}
    if len(candidates) < 2:
        return frozenset()
    strangers = _without_shared_lines(candidates)
    unnamed = frozenset(summary.rank for summary in ranks if not _says_its_rank(summary))
    alike = [candidates[rank] for rank in unnamed - strangers if rank in candidates]
    if not _are_several_programs(alike):
        return strangers
    if len(unnamed) * 2 > len(ranks):  # a folder of recordings, a job's among them
        return frozenset(summary.rank for summary in ranks)
    return strangers | unnamed


def _says_its_rank(summary: RankSummary) -> bool:
    """True if a recording, or its name, says that it is of a rank."""
    return (summary.world_size or 0) > 1 or bool(summary.groups) or names_a_rank(summary.source)


def _without_shared_lines(bytes_of_lines: dict[int, Counter[Place]]) -> frozenset[int]:
    """The ranks that share next to no line with any other."""
    owners = Counter(chain.from_iterable(bytes_of_lines.values()))
    return frozenset(
        rank
        for rank, sizes in bytes_of_lines.items()
        if _shared_share(sizes, owners) < _LEAST_SHARED
    )


def _are_several_programs(lines_of_ranks: Iterable[Counter[Place]]) -> bool:
    """True if each of two ranks calls functions that the other never calls."""
    programs: dict[frozenset[_Function], Counter[_Function]] = {}
    for sizes in lines_of_ranks:
        functions = _bytes_of_functions(sizes)
        programs.setdefault(frozenset(functions), functions)
    compared = list(programs.values())[:_MOST_PROGRAMS]
    return any(
        min(_own_share(first, second), _own_share(second, first)) >= _OWN_SHARE
        for first, second in combinations(compared, 2)
    )


def _bytes_of_functions(sizes: Counter[Place]) -> Counter[_Function]:
    functions: Counter[_Function] = Counter()
    for place, size in sizes.items():
        functions[place.file, place.function] += size
    return functions


def _own_share(functions: Counter[_Function], other: Counter[_Function]) -> float:
    """The share of bytes in functions that the other does not call, from 0 to 1."""
    own_bytes = sum(size for function, size in functions.items() if function not in other)
    return own_bytes / max(1, functions.total())


def _bytes_of_lines(summary: RankSummary) -> Counter[Place]:
    """The peak bytes of each line of the program."""
    sizes: Counter[Place] = Counter()
    for line in summary.lines:
        if line.place is not None:
            sizes[line.place] += line.peak_bytes
    return sizes


def _shared_share(sizes: Counter[Place], owners: Counter[Place]) -> float:
    """The share of a rank's bytes that is on lines that another rank has, too, from 0 to 1."""
    total = sizes.total()
    shared = sum(size for place, size in sizes.items() if owners[place] > 1)
    return shared / total if total else 1.0


def strangers_note(strangers: frozenset[int], count: int) -> list[str]:
    """One sentence on them; none where there are none.

    Args:
        strangers: their numbers.
        count: of how many ranks.
    """
    if not strangers:
        return []
    if len(strangers) == count:
        return [
            "if these are recordings of one job, put the rank into each file's name: rank0.pickle, "
            "rank1.pickle, and so on"
        ]
    names = ", ".join(map(str, sorted(strangers)))
    if len(strangers) == 1:
        return [f"rank {names} looks like a recording of another program, so it is not compared"]
    return [f"ranks {names} look like recordings of other programs, so they are not compared"]
