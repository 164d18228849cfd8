"""Objects that lead to each other, such as the nodes of a tree: what the program is done with stays with the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.unnamed_entries import MANY_NAMED, with_unnamed_entries
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_FEWEST_OBJECTS, _FEWEST_STEPS = 8, 3
"""Objects of fewer steps are what each step needs, such as layers that know the next."""
_LEAST_SHARE = 0.25
"""Of what is in use."""


@after_failure
def linked_objects(scene: Scene) -> Iterator[Finding]:
    """The class whose objects each keep a tensor and lead to others of them, if these are much of what is in use."""
    names = scene.view.names
    by_attribute: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for row in scene.program_rows.tolist():
        links = names.kept_by(row)
        if links:
            owner, _, path = names.name(row).partition(" (")[0].partition(".")
            by_attribute[owner, path.rpartition(".")[2], links].append(row)
    for (owner, attribute, links), named_rows in by_attribute.items():
        rows = np.array(named_rows, np.int64)
        if len(rows) >= MANY_NAMED:
            lines = scene.view.phases.frame[rows]
            of_most = rows[lines == np.median(lines)]
            rows = np.union1d(rows, with_unnamed_entries(scene, of_most)) if len(of_most) else rows
        size_bytes = scene.bytes_of(rows)
        is_much = size_bytes >= _LEAST_SHARE * scene.advice_heap.requested_bytes
        if len(rows) >= _FEWEST_OBJECTS and is_much:
            first = links.partition(",")[0]
            has_grown = len(np.unique(scene.view.step[rows])) >= _FEWEST_STEPS
            yield Finding(
                id="linked_objects",
                verdict=Verdict.LIKELY if has_grown else Verdict.POSSIBLE,
                title=f"{scene.part_of_heap(size_bytes)} are {len(rows):,} tensors in .{attribute}"
                f" of {owner} objects, which lead to each other",
                bytes=size_bytes,
                place=scene.view.place_of_block(int(rows[-1])),
                evidence=(f"a {owner} that is in use keeps all that {links} lead to",),
                fix=f"if .{attribute} of a {owner} is not read again once those that follow it have"
                f" their own, set it to None there (node.{attribute} = None) and keep the links; if"
                f" nothing goes back along {first}, hold it weakly (weakref.ref), or cut it where"
                f" the program goes on without the others (node{first} = None), and call"
                f" gc.collect() there; if all are needed, keep .{attribute} on the CPU (up to"
                f" {format_size(size_bytes)} less)",
                extent=scene.extent(rows),
            )
