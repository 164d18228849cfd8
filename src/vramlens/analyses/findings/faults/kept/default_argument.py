"""What a default argument collects: it is made once, and each call adds to the same one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place, is_user_file
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import counted, format_size

_DEFAULT = re.compile(r"^(?P<function>[^\[]+)\.__(?:kw)?defaults__\[[^\]]*\][\[.]")
"""An entry of what a function takes where its caller leaves an argument out (capture/names)."""
_LAMBDA = "<lambda>"
_FEWEST_ENTRIES = 3
_LEAST_SHARE = 0.25


@after_failure
def default_argument(scene: Scene) -> Iterator[Finding]:
    """The function whose default arguments keep the most when memory runs out, if that is much of all."""
    for function, lines in _collected(scene).items():
        rows = np.array([*lines], np.int64)
        size_bytes = scene.bytes_of(rows)
        if (
            len(rows) >= _FEWEST_ENTRIES
            and size_bytes >= _LEAST_SHARE * scene.advice_heap.requested_bytes
            and not _is_program(scene, function)
        ):
            yield Finding(
                id="default_argument",
                verdict=Verdict.LIKELY,
                title=f"{counted(len(rows), 'tensor')} in a default argument of {function}() hold"
                f" {scene.part_of_heap(size_bytes)}",
                bytes=size_bytes,
                place=[*lines.values()][-1],
                evidence=(
                    "a default argument is made once, with its function: each call adds to the"
                    " same one",
                ),
                fix=f"let each call of {function}() make its own: None as the default, and in the"
                " body `if it is None:` a new one; if it is meant as a cache, limit it (up to"
                f" {format_size(size_bytes)} less)",
                extent=scene.extent(rows),
            )


def _collected(scene: Scene) -> dict[str, dict[int, Place]]:
    """By function, the entries of its defaults that its calls made, each with the function's line that did."""
    by_function: defaultdict[str, dict[int, Place]] = defaultdict(dict)
    for row in scene.program_rows.tolist():
        entry = _DEFAULT.match(scene.view.names.name(row))
        place = _line_in(scene, entry["function"], row) if entry is not None else None
        if entry is not None and place is not None:
            by_function[entry["function"]][row] = place
    return by_function


def _line_in(scene: Scene, function: str, row: int) -> Place | None:
    """The line of a function, or of its call of a helper, that asked for something; None where it did not run: a
    default that was full from the start is data.
    """
    name, place = _bare(function), scene.view.place_of_block(row)
    if place is not None and place.function == name:
        return place
    if name == _LAMBDA:
        return None  # one that called is not known to be this one
    for frame in scene.trace.stacks.of(int(scene.device.allocations.stack[row])):
        if frame.function == name and is_user_file(frame.file):
            return frame.place
    return None


def _is_program(scene: Scene, function: str) -> bool:
    """Whether all that the program asked for was asked for inside of a function: it is called once, as main is."""
    stacks, stack = scene.trace.stacks, scene.device.allocations.stack
    is_own = stacks.mark_frames(re.compile(rf":{re.escape(_bare(function))}$"))
    is_outside = ~stacks.through(is_own & stacks.user_frames, stack)
    is_unseen = stack == NO_STACK
    is_unseen[~is_unseen] = ~stacks.has_python[stack[~is_unseen]]
    is_earlier = scene.device.allocations.born < 0
    return not (is_outside & (is_earlier | ~is_unseen)).any()


def _bare(function: str) -> str:
    """A function's name as stacks have it, without the class or function around it."""
    return function.rpartition(".")[2]
