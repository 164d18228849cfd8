"""Files of two runs that are one file: by path, by the end of the path, or, renamed, by the
lines in them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from vramlens.analyses.compare.compared_run import CodeLine
from vramlens.analyses.compare.line_alignment import CALLS, SIZES, align_lines, likeness
from vramlens.analyses.leaks.groups import common_length
from vramlens.ground.place import base_name

Functions = Mapping[str, list[CodeLine]]
"""The lines of a file, by function and in order."""
CELL = "<cell>"
"""The name that all cells of notebooks go by: their own names tell only when they ran, or what
their text was.
"""
_NOTEBOOK = re.compile(r"(?:^<|[/\\])ipython-input-|[/\\]ipykernel_\d+[/\\]")
_CELL_LINE = re.compile(r"<cell line: \d+>$")
"""What IPython calls a cell's own statements."""
_ALIKE = 0.65
"""A renamed file's lines are so alike, of at most 1; of unrelated programs those of one function
are up to 0.43.
"""
_LESS_ALIKE, _IN_PLACE, _FEWEST_IN_PLACE = 0.4, 0.5, 4
"""Less will do where so many of a file's lines, and not just a few, moved by one distance: edits
keep distances.
"""
_COMMON = frozenset(
    (
        *(
            "<module>",
            "<lambda>",
            "__init__",
            "__call__",
            "forward",
            "main",
            "run",
            "setup",
            "load",
            "build",
            "test",
        ),
        *(
            "train",
            "train_step",
            "training_step",
            "step",
            "fit",
            "evaluate",
            "eval",
            "loss",
            "loss_fn",
        ),
    )
)
"""Names of functions that many programs have. Where all of a file's are the same and not all of
these, less will do.
"""
_MOST_PAIRS = 40_000
"""Of more pairs of files with one name nothing is looked for: comparing must not take longer
than reading.
"""
_MOST_CANDIDATES, _MOST_HOLDERS = 8, 50
"""How many of the other run's files or functions are looked at closely, and how many may have
one line alike.
"""
_Key = TypeVar("_Key", bound=Hashable)


def align_files(
    before: Mapping[str, Functions], after: Mapping[str, Functions]
) -> tuple[dict[str, str], set[str]]:
    """By file before its name after, and which of these are known by their lines alone.

    What may be one of several files is not guessed.
    """
    names = {file: file for file in before if file in after}
    for name_of in (_text_name, file_name):
        names.update(_by_path(*_left(before, after, names), name_of))
    lost, free = _left(before, after, names)
    renamed = _by_lines({file: before[file] for file in lost}, {file: after[file] for file in free})
    return names | renamed, set(renamed)


def _left(
    before: Iterable[str], after: Iterable[str], pairs: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """The files of either side that are not aligned yet."""
    taken = {*pairs.values()}
    return [file for file in before if file not in pairs], [
        file for file in after if file not in taken
    ]


def file_name(file: str) -> str:
    """A file's name without folders; one name for all cells of notebooks."""
    return CELL if _NOTEBOOK.search(file) else base_name(file)


def _text_name(file: str) -> str:
    """The same; of a cell what tells its text: IPython names it by a hash."""
    cell = _NOTEBOOK.search(file)
    return f"{CELL}{re.split(r'[/-]', file)[-1]}" if cell else file_name(file)


def function_name(name: str) -> str:
    """A function's name; a cell's own statements are a module's, at whichever line they begin."""
    return _CELL_LINE.sub("<module>", name)


def score_of(before: Sequence[CodeLine], after: Sequence[CodeLine]) -> tuple[float, Counter[int]]:
    """How alike two functions are, of their lines that ask for memory, and by how much how many
    of these moved.
    """
    lines_after = {line.place: line for line in after}
    pairs = align_lines(before, after)
    alike, moves = 0.0, Counter[int]()
    for old in before:
        new = lines_after.get(pairs[old.place]) if old.place in pairs else None
        if new is not None and old.sizes and new.sizes:
            alike += likeness(old, new) / (CALLS + SIZES)
            moves[new.place.line - old.place.line] += 1
    return alike, moves


def asking(lines: Iterable[CodeLine]) -> int:
    """How many lines ask for memory themselves."""
    return sum(bool(line.sizes) for line in lines)


def matched(scores: Mapping[tuple[_Key, _Key], float], in_order: bool = False) -> dict[_Key, _Key]:
    """The pairs of which each is the other's best; what may be another is not guessed.

    Args:
        in_order: whether several of either side that are all equally alike belong together one by
            one.
    """
    matches: dict[_Key, _Key] = {}
    open_scores = dict(scores)
    while open_scores:
        of_olds, of_news = _bests(open_scores, 0), _bests(open_scores, 1)
        new = {
            old: news[of_news[news[0]].index(old)]
            for old, news in of_olds.items()
            if _belong_together(news, of_olds, of_news) and (in_order or len(news) == 1)
        }
        if not new:
            break
        matches |= new
        gone = {*new.values()}
        open_scores = {
            pair: score
            for pair, score in open_scores.items()
            if pair[0] not in new and pair[1] not in gone
        }
    return matches


def _belong_together(
    news: list[_Key], of_olds: Mapping[_Key, list[_Key]], of_news: Mapping[_Key, list[_Key]]
) -> bool:
    """True for keys of both sides that are, all alike, each other's best."""
    olds = of_news[news[0]]
    return (
        len(olds) == len(news)
        and all(of_news[new] == olds for new in news)
        and all(of_olds[old] == news for old in olds)
    )


def _bests(scores: Mapping[tuple[_Key, _Key], float], side: int) -> dict[_Key, list[_Key]]:
    """By key of one side, those of the other that it is most like."""
    highest: dict[_Key, float] = {}
    bests: dict[_Key, list[_Key]] = {}
    for pair, score in scores.items():
        key, other = pair[side], pair[1 - side]
        if score > highest.get(key, 0):
            highest[key], bests[key] = score, [other]
        elif score and score == highest.get(key):
            bests[key].append(other)
    return bests


def _by_path(
    lost: Sequence[str], free: Sequence[str], name_of: Callable[[str], str]
) -> dict[str, str]:
    """Files of one name, those together whose folders end most alike."""
    olds, news = _by_name(lost, name_of), _by_name(free, name_of)
    names: dict[str, str] = {}
    for name in olds.keys() & news.keys():
        if len(olds[name]) * len(news[name]) <= _MOST_PAIRS:
            names.update(
                matched(
                    {
                        (old, new): _common_parts(old, new)
                        for old in olds[name]
                        for new in news[name]
                    }
                )
            )
    return names


def _by_name(files: Sequence[str], name_of: Callable[[str], str]) -> dict[str, list[str]]:
    files_by_name: dict[str, list[str]] = {}
    for file in sorted(files):
        files_by_name.setdefault(name_of(file), []).append(file)
    return files_by_name


def _common_parts(old: str, new: str) -> int:
    """How many parts two paths that end in one name have in common, from the end."""
    old_parts, new_parts = (re.split(r"[/\\]", file)[-2::-1] for file in (old, new))
    return 1 + common_length(old_parts, new_parts)


def _lines_by_file(files: Mapping[str, Functions]) -> dict[str, list[CodeLine]]:
    return {
        file: list(chain.from_iterable(functions.values())) for file, functions in files.items()
    }


def _by_lines(before: Mapping[str, Functions], after: Mapping[str, Functions]) -> dict[str, str]:
    """Renamed files: most of their lines do the same in functions of the same names."""
    scores = {}
    for old, new in candidates(_lines_by_file(before), _lines_by_file(after)):
        share = _share(before[old], after[new])
        if share:
            scores[old, new] = share + (file_name(old) == file_name(new) != CELL)
    return matched(scores, in_order=True)


def candidates(
    before: Mapping[_Key, list[CodeLine]], after: Mapping[_Key, list[CodeLine]]
) -> Iterator[tuple[_Key, _Key]]:
    """Pairs that are worth a closer look: those with most lines that call, or ask for, the same;
    a few of each.
    """
    index: dict[Hashable, list[_Key]] = {}
    for new, lines in after.items():
        for sign in _signs(lines):
            index.setdefault(sign, []).append(new)
    cost, order = 0, {new: number for number, new in enumerate(after)}
    for old, lines in before.items():
        common = Counter(
            new for sign in _signs(lines) for new in index.get(sign, ())[:_MOST_HOLDERS]
        )
        for new in sorted(common, key=lambda key: (-common[key], order[key]))[:_MOST_CANDIDATES]:
            cost += len(lines) * len(after[new])
            if cost > _MOST_PAIRS * 5:
                return
            yield old, new


def _signs(lines: Iterable[CodeLine]) -> set[Hashable]:
    named = {(function_name(line.place.function), line.calls) for line in lines}
    return named | {(line.calls, line.sizes) for line in lines}


def _asking_by_function(functions: Functions) -> dict[str, int]:
    counts = {name: asking(lines) for name, lines in functions.items()}
    return {name: count for name, count in counts.items() if count}


def _share(before: Functions, after: Functions) -> float:
    """How alike two files are, of at most 1; 0 where that is too little to say that they are
    one.
    """
    alike, moves = 0.0, Counter[int]()
    for name in before.keys() & after.keys():
        more, distances = score_of(before[name], after[name])
        alike, moves = alike + more, moves + distances
    asking_before, asking_after = _asking_by_function(before), _asking_by_function(after)
    most_asking = max(sum(asking_before.values()), sum(asking_after.values()))
    share = alike / most_asking if most_asking else 0.0
    names = asking_before.keys()
    named = names == asking_after.keys() and not names <= _COMMON
    in_place = max(moves.values(), default=0) >= max(_FEWEST_IN_PLACE, _IN_PLACE * most_asking)
    return share if share >= (_LESS_ALIKE if named or in_place else _ALIKE) else 0.0
