"""Hooks that earlier calls left on modules: each keeps what it was given, and runs in every pass."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.training import turns_with
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import counted, format_size

_HOOK = re.compile(r"^(?P<module>.+?)\.(?P<kind>_\w*_hooks)\[(?P<number>\d+)\](?P<path>.*)$")
"""``model.h.3._forward_hooks[17]['source']``: what the eighteenth hook of all keeps."""
_FEWEST_ON_MODULE = 3
"""Of one kind, with the same variable: two may belong to two features of a program."""
_LEAST_SHARE = 0.1
"""Of what is in use."""


@after_failure
def left_hooks(scene: Scene) -> Iterator[Finding]:
    """The hooks of which modules have several alike, if what they keep is much."""
    names = scene.view.names
    numbers: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    rows_by_hook: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for row in scene.program_rows.tolist():
        hook = _HOOK.match(names.name(row))
        if hook is not None:
            key = (hook["module"], hook["kind"], hook["path"])
            numbers[key].add(hook["number"])
            rows_by_hook[key].append(row)
    many = [
        key
        for key, hooks in numbers.items()
        if len(hooks) >= _FEWEST_ON_MODULE and _are_of_several_turns(scene, rows_by_hook[key])
    ]
    rows = np.array(sorted(row for key in many for row in rows_by_hook[key]), np.int64)
    size_bytes = scene.bytes_of(rows)
    if not size_bytes or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    fullest = max(many, key=lambda key: len(numbers[key]))
    module, kind, _ = fullest
    hooks_of_module = len(numbers[fullest])
    yield Finding(
        id="left_hooks",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are kept by hooks that earlier calls left on"
        " modules",
        bytes=size_bytes,
        place=scene.view.place_of_block(int(rows[-1])),
        evidence=(
            f"{module} has {counted(hooks_of_module, f'{_kind_words(kind)} hook')} that keep the"
            " same variable, each of another call",
            "all of them run in every pass",
        ),
        fix="keep the handle that registering a hook returns, and remove the hook when its call is"
        " over (try: ... finally: handle.remove()); what the hooks do to results goes with them"
        f" ({format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _are_of_several_turns(scene: Scene, rows: list[int]) -> bool:
    """Whether passes of the model came between what several hooks keep: not what one set-up registers."""
    born = scene.device.allocations.born[rows]
    return int(turns_with(scene.pass_begins, born)) >= _FEWEST_ON_MODULE


def _kind_words(kind: str) -> str:
    """``forward pre`` of ``_forward_pre_hooks``."""
    return kind.strip("_").removesuffix("_hooks").replace("_", " ")
