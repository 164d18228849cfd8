"""Alignment: which line of one run is which line of another, when the program was edited in
between.

Recordings hold no source text. A line is known by its file and function, by what it calls, by the
sizes that it asks
for and by its place among the lines of its function: an edit above it moves it, but does not change
these. Nor does another name for its file or function, as copies, notebooks and checkouts elsewhere
give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from vramlens.analyses.compare.compared_run import CodeLine, Run
from vramlens.analyses.compare.file_alignment import (
    Functions,
    align_files,
    asking,
    candidates,
    file_name,
    function_name,
    matched,
    score_of,
)
from vramlens.analyses.compare.line_alignment import align_lines
from vramlens.analyses.finding import Place
from vramlens.ground.place import base_name

_RENAMED, _ELSEWHERE = 0.75, 0.9
"""So alike, of at most 1, are the lines of a function with another name, or in another file; and
of one with both.
"""
_FEWEST_ELSEWHERE = 2
"""One line alone is not evidence for that."""
_OWN = "*:"
"""Stands for the file in calls of the program's own functions: their files may have other names
in the other run.
"""
_Group = tuple[str, str]
"""A file and a function."""
_STATE = ("parameters", "optimizer_state")
_NEARLY_ALL = 0.9


@dataclass(frozen=True, slots=True)
class Alignment:
    """What became of the lines of a run.

    Attributes:
        after: by place in the run before, its place in the run after; what is not there is gone.
        moved: those of them whose number, function's or file's name is another: aligned by function
            and order.
        files: by file in the run before, its name in the run after, where that is another.
    """

    after: Mapping[Place, Place]
    moved: frozenset[Place]
    files: Mapping[str, str]


def align(before: Sequence[CodeLine], after: Sequence[CodeLine]) -> Alignment:
    """Aligns the lines of two runs."""
    file_names = {base_name(line.place.file) for line in (*before, *after)}
    olds, news = _grouped(before, file_names, {}), _grouped(after, file_names, {})
    files, by_lines = align_files(olds, news)
    pairs = _aligned(olds, news, files)
    names = _renamed(pairs)
    if names:  # lines that call what has another name now call the same
        pairs = _aligned(_grouped(before, file_names, names), news, files)
    moved = frozenset(
        old for old, new in pairs.items() if old.file in by_lines or _has_moved(old, new)
    )
    return Alignment(pairs, moved, {old: new for old, new in files.items() if old != new})


def _has_moved(old: Place, new: Place) -> bool:
    """Whether a line has another number, function or file's name; a checkout elsewhere moves no
    line.
    """
    return (old.line, old.function, file_name(old.file)) != (
        new.line,
        new.function,
        file_name(new.file),
    )


def _aligned(
    olds: Mapping[str, Functions], news: Mapping[str, Functions], files: Mapping[str, str]
) -> dict[Place, Place]:
    pairs: dict[Place, Place] = {}
    for file, functions in olds.items():
        functions_after = news.get(files.get(file, ""), {})
        for function in functions.keys() & functions_after.keys():
            pairs.update(align_lines(functions[function], functions_after[function]))
    taken = {*pairs.values()}
    lost = {
        (files.get(file, file), name): lines
        for (file, name), lines in _left(olds, pairs.keys()).items()
    }
    pairs.update(_moved_functions(lost, _left(news, taken), olds, news))
    return pairs


def _left(files: Mapping[str, Functions], taken: Iterable[Place]) -> dict[_Group, list[CodeLine]]:
    """The lines that are not aligned, by function."""
    taken_places = set(taken)
    functions_left = {}
    for file, functions in files.items():
        for name, lines in functions.items():
            lines_left = [line for line in lines if line.place not in taken_places]
            if lines_left:
                functions_left[file, name] = lines_left
    return functions_left


def _moved_functions(
    lost: Mapping[_Group, list[CodeLine]],
    free: Mapping[_Group, list[CodeLine]],
    olds: Mapping[str, Functions],
    news: Mapping[str, Functions],
) -> dict[Place, Place]:
    """Functions with another name or in another file, whole or in part: lines that do the same
    and ask for the same.
    """
    scores = {}
    for old, new in candidates(lost, free):
        lines, lines_after = lost[old], free[new]
        alike, _moves = score_of(lines, lines_after)
        most_asking = max(asking(lines), asking(lines_after))
        near = old[0] == new[0] or old[1] == new[1]
        is_whole = old[1] not in news.get(old[0], {}) and new[1] not in olds.get(new[0], {})
        share, fewest = _ELSEWHERE, _FEWEST_ELSEWHERE
        if near and is_whole:
            share, fewest = _RENAMED, 1
        if most_asking >= fewest and alike >= share * most_asking:
            scores[old, new] = alike / most_asking + (old[0] == new[0]) + (old[1] == new[1])
    pairs: dict[Place, Place] = {}
    for old, new in matched(scores, in_order=True).items():
        pairs.update(align_lines(lost[old], free[new]))
    return pairs


def _grouped(
    lines: Iterable[CodeLine], file_names: set[str], names: Mapping[str, str]
) -> dict[str, dict[str, list[CodeLine]]]:
    """Lines by file and function, in order; what they call of the program's own goes by the
    function's name alone.

    Args:
        file_names: the names of the program's files, as calls have them.
        names: by name of a function, its name in the other run.
    """
    files: dict[str, dict[str, list[CodeLine]]] = {}
    for line in sorted(lines, key=lambda line: line.place.line):
        calls = frozenset(_plain(call, file_names, names) for call in line.calls)
        functions = files.setdefault(line.place.file, {})
        functions.setdefault(function_name(line.place.function), []).append(
            replace(line, calls=calls)
        )
    return files


def _plain(call: str, file_names: set[str], names: Mapping[str, str]) -> str:
    file, _colon, function = function_name(call).rpartition(":")
    return f"{_OWN}{names.get(function, function)}" if file in file_names else call


def _renamed(pairs: Mapping[Place, Place]) -> dict[str, str]:
    """By name of a function in the run before, its one other name in the run after."""
    names: dict[str, set[str]] = {}
    for old, new in pairs.items():
        names.setdefault(function_name(old.function), set()).add(function_name(new.function))
    return {old: next(iter(new)) for old, new in names.items() if len(new) == 1 and old not in new}


def with_state(before: Run, after: Run, alignment: Alignment) -> Alignment:
    """The alignment, and the one line of each run that holds nearly all of a state, where neither
    is aligned.

    A function that was renamed and rewritten has too little in common with what it was; but the
    optimizer that a run of the same model steps is the same optimizer.
    """
    pairs: dict[Place, Place] = {}
    aligned = set(alignment.after.values())
    for category in _STATE:
        old, new = _only_line(before, category), _only_line(after, category)
        if (
            old is not None
            and new is not None
            and old not in alignment.after
            and new not in aligned
        ):
            pairs[old] = new
    if not pairs:
        return alignment
    return replace(
        alignment, after={**alignment.after, **pairs}, moved=alignment.moved | pairs.keys()
    )


def _only_line(run: Run, category: str) -> Place | None:
    """The line that holds nearly all bytes of a category at the peak; None where several do."""
    lines_of_category = [
        line for line in run.lines.values() if line.category == category and line.bytes
    ]
    largest = max(lines_of_category, key=lambda line: line.bytes, default=None)
    if largest is None or largest.bytes < _NEARLY_ALL * sum(
        line.bytes for line in lines_of_category
    ):
        return None
    return largest.place
