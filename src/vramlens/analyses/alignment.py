"""Alignment: which line of one run is which line of another, when the program was edited in between.

Recordings hold no source text. A line is known by its file and function, by what it calls, by the sizes that it asks
for and by its place among the lines of its function: an edit above it moves it, but does not change these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vramlens.analyses.finding import Place
from vramlens.analyses.leak_groups import common_length
from vramlens.analyses.run import CodeLine

_CALLS, _SIZES, _SAME_NUMBER = 2.0, 1.0, 0.5
"""What speaks for two lines being one; the first two in part. Being at the same number is the weakest sign."""
_RENAMED = 0.75
"""So alike, of at most 1, are the lines of a function that only has another name."""
_Function = tuple[str, list[CodeLine]]
"""A file by its name in the run after, and lines of one function in it."""
_MOST_PAIRS = 40_000
"""Of more candidates than this nothing is looked for: the comparison must not take longer than the reading."""
_MOST_LINES = 200
"""A function with more lines than this (a generated one) is aligned by line number alone: pairs cost their product."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """What became of the lines of a run.

    Attributes:
        after: by place in the run before, its place in the run after; what is not there is gone.
        moved: those of them whose number, or function's name, is another: aligned by function and order.
        files: by file in the run before, its name in the run after, where that is another.
    """

    after: Mapping[Place, Place]
    moved: frozenset[Place]
    files: Mapping[str, str]


def align(before: Sequence[CodeLine], after: Sequence[CodeLine]) -> Alignment:
    """Aligns the lines of two runs."""
    files = _align_files({line.place.file for line in before}, {line.place.file for line in after})
    olds, news = _by_function(before), _by_function(after)
    found: dict[Place, Place] = {}
    lost: list[_Function] = []
    for (file, function), lines in olds.items():
        others = news.pop((files.get(file, file), function), None)
        if others:
            found.update(_align_lines(lines, others))
        else:
            lost.append((files.get(file, file), lines))
    found.update(_renamed(lost, [(file, lines) for (file, _function), lines in news.items()]))
    moved = frozenset(old for old, new in found.items() if old.line != new.line or old.function != new.function)
    return Alignment(found, moved, {old: new for old, new in files.items() if old != new})


def _renamed(lost: list[_Function], new: list[_Function]) -> dict[Place, Place]:
    """Functions of one file that have other names now: those whose lines call the same and ask for the same."""
    pairs = []
    if sum(len(lines) for _file, lines in lost) * sum(len(lines) for _file, lines in new) > _MOST_PAIRS:
        return {}  # another program: what it has in common is not to be guessed
    for file, lines in lost:
        for there, others in new:
            if there == file:
                aligned = _align_lines(lines, others)
                known = {line.place: line for line in others}
                alike = sum(_likeness(line, known[aligned[line.place]]) for line in lines if line.place in aligned)
                score = alike / ((_CALLS + _SIZES) * max(len(lines), len(others)))
                pairs.append((score, lines[0].place, others[0].place, aligned))
    found: dict[Place, Place] = {}
    for score, _old, _new, aligned in sorted(pairs, key=lambda pair: (-pair[0], str(pair[1]), str(pair[2]))):
        if score >= _RENAMED and not found.keys() & aligned.keys() and not {*found.values()} & {*aligned.values()}:
            found.update(aligned)
    return found


def _by_function(lines: Iterable[CodeLine]) -> dict[tuple[str, str], list[CodeLine]]:
    found: dict[tuple[str, str], list[CodeLine]] = {}
    for line in sorted(lines, key=lambda one: one.place.line):
        found.setdefault((line.place.file, line.place.function), []).append(line)
    return found


def _align_files(before: set[str], after: set[str]) -> dict[str, str]:
    """The same name; else the one file whose path ends most alike, beginning with the file's own name."""
    found = {file: file for file in before & after}
    lost, free = _by_name(before - after), _by_name(after - before)
    for name in lost.keys() & free.keys():
        if len(lost[name]) * len(free[name]) <= _MOST_PAIRS:
            scores = {(old, new): common_length(_parts(old), _parts(new)) for old in lost[name] for new in free[name]}
            found.update(_matched(scores))
    return found


def _by_name(files: set[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in sorted(files):
        found.setdefault(_parts(file)[0], []).append(file)
    return found


def _matched(scores: Mapping[tuple[str, str], int]) -> dict[str, str]:
    """The pairs of which each is the other's best, and no other is as good: what may be another is not guessed."""
    bests: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    highest: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for pair, score in scores.items():
        for side in (0, 1):
            one, other = pair[side], pair[1 - side]
            if score > highest[side].get(one, 0):
                highest[side][one], bests[side][one] = score, [other]
            elif score == highest[side].get(one, 0):
                bests[side][one].append(other)
    return {old: new for old, (new, *more) in bests[0].items() if not more and bests[1][new] == [old]}


def _parts(file: str) -> list[str]:
    """The parts of a path, the file's name first; a notebook's cell without its number and hash."""
    cell = re.match(r"^<ipython-input", file)
    return ["<ipython-input>"] if cell else re.split(r"[/\\]", file)[::-1]


def _align_lines(before: list[CodeLine], after: list[CodeLine]) -> dict[Place, Place]:
    """The pairs of one function's lines, in order, that together are most alike."""
    numbers = {line.place.line: line.place for line in after}
    if [line.place.line for line in before] == list(numbers) or len(before) * len(after) > _MOST_LINES**2:
        return {line.place: numbers[line.place.line] for line in before if line.place.line in numbers}
    rows, columns = len(before), len(after)
    likeness = [[_likeness(old, new) for new in after] for old in before]
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            pair = best[i + 1][j + 1] + likeness[i][j] if likeness[i][j] else 0.0
            best[i][j] = max(best[i + 1][j], best[i][j + 1], pair)
    found, i, j = {}, 0, 0
    while i < rows and j < columns:
        if likeness[i][j] and best[i][j] == best[i + 1][j + 1] + likeness[i][j]:
            found[before[i].place] = after[j].place
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def _likeness(old: CodeLine, new: CodeLine) -> float:
    """How alike two lines are; 0 where they cannot be the same: one calls what the other does not."""
    calls = _overlap(old.calls, new.calls)
    same_number = old.place.line == new.place.line
    if not calls and not same_number:
        return 0.0
    return _CALLS * calls + _SIZES * _overlap(old.sizes, new.sizes) + _SAME_NUMBER * same_number


def _overlap(left: frozenset[str] | frozenset[int], right: frozenset[str] | frozenset[int]) -> float:
    """The share that two sets have in common; 1 where both are empty."""
    if not left and not right:
        return 1.0
    return len(left & right) / len(left | right)
