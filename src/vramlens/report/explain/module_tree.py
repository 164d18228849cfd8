"""The tree of modules: what each holds with all that is inside it, layers that are alike folded
into one row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vramlens.analyses.attribution.names import number_range
from vramlens.report.wording import visible
from vramlens.units import format_size

_DEEPEST = 32  # further parts of a path stay together
_ALIKE = 0.1
"""Layers are alike when their bytes differ by no more than this share, and their large parts
have the same names.
"""
_LARGE_PART = 0.05
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(slots=True)
class Node:
    """A module, or several that are alike.

    Attributes:
        name: the last part of its path; the last parts, where nothing but one module is inside of
            another.
        bytes: with all that is inside it.
        count: how many modules this stands for.
        indices: the numbers of those that were folded.
        children: the modules inside it, by name.
    """

    name: str
    bytes: int = 0
    count: int = 1
    indices: set[int] = field(default_factory=set)
    children: dict[str, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Branch:
    """A row of the tree: its whole path, the part that its row adds, how deep it is, its bytes,
    how many are alike.
    """

    path: str
    label: str
    depth: int
    bytes: int
    count: int

    @property
    def note(self) -> str:
        """``12 x 325.00 MiB`` for layers that are alike."""
        return f"{self.count:,} x {format_size(self.bytes // self.count)}" if self.count > 1 else ""


def branches_of(by_module: Mapping[str, int]) -> tuple[Branch, ...]:
    """The tree of modules, from what each holds itself: every module before those inside it, the
    largest first.
    """
    root = Node("")
    for path, size in by_module.items():
        node = root
        node.bytes += size
        for name in path.split(".", _DEEPEST):
            node = node.children.setdefault(name, Node(name))
            node.bytes += size
    _fold(root)
    branches: list[Branch] = []
    _list(root, "", 0, branches)
    return tuple(branches)


_TELLS_LITTLE = 0.5
"""Of all bytes: of a module that holds as much, what is inside of it says more."""


def main_parts(by_module: Mapping[str, int], most: int) -> tuple[Branch, ...]:
    """The modules that hold most, largest first; inside of one that holds half, its parts."""
    branches = branches_of(by_module)
    inside = _places_inside(branches)
    parts = [place for place, branch in enumerate(branches) if branch.depth == 0]
    tells_little = _TELLS_LITTLE * sum(by_module.values())
    place = 0
    while place < len(parts):
        parent, children = branches[parts[place]], inside[parts[place]]
        if children and parent.count == 1 and parent.bytes >= tells_little:
            parts[place : place + 1] = children
        else:
            place += 1
    largest_first = sorted((branches[part] for part in parts), key=lambda branch: -branch.bytes)
    return tuple(largest_first[:most])


def _places_inside(branches: Sequence[Branch]) -> list[list[int]]:
    """By branch, the places of those directly inside of it."""
    inside: list[list[int]] = [[] for _ in branches]
    around: list[int] = []
    for place, branch in enumerate(branches):
        del around[branch.depth :]
        if around:
            inside[around[-1]].append(place)
        around.append(place)
    return inside


def _fold(node: Node) -> None:
    """Makes one of numbered children that are alike, all the way down."""
    for run in _alike_layers(node):
        folded = _merged(run)
        folded.indices = {int(layer.name) for layer in run}
        folded.name = number_range(folded.indices)
        for layer in run:
            del node.children[layer.name]
        node.children[folded.name] = folded
    for child in node.children.values():
        _fold(child)


def _alike_layers(node: Node) -> list[list[Node]]:
    """Numbered children that follow each other and are alike: runs of two or more."""
    numbers = sorted((name for name in node.children if _INDEX.fullmatch(name)), key=int)
    runs: list[list[Node]] = []
    for layer in map(node.children.__getitem__, numbers):
        if runs and _alike(runs[-1][0], layer):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [run for run in runs if len(run) > 1]


def _alike(one: Node, other: Node) -> bool:
    def large(node: Node) -> set[str]:
        return {
            child.name
            for child in node.children.values()
            if child.bytes >= _LARGE_PART * node.bytes
        }

    return abs(one.bytes - other.bytes) <= _ALIKE * max(one.bytes, other.bytes) and large(
        one
    ) == large(other)


def _merged(nodes: list[Node]) -> Node:
    """One node with the bytes of all, its children merged by name."""
    merged = Node(
        nodes[0].name, sum(node.bytes for node in nodes), sum(node.count for node in nodes)
    )
    names = dict.fromkeys(name for node in nodes for name in node.children)
    for name in names:
        merged.children[name] = _merged(
            [node.children[name] for node in nodes if name in node.children]
        )
    return merged


def _list(node: Node, path: str, depth: int, found: list[Branch]) -> None:
    for child in sorted(node.children.values(), key=lambda child: (-child.bytes, child.name)):
        label = child.name
        while (
            len(child.children) == 1
            and (only := next(iter(child.children.values()))).bytes == child.bytes
        ):
            child = only
            label = f"{label}.{child.name}"
        module_path = f"{path}.{label}" if path else label
        found.append(
            Branch(
                path=visible(module_path),
                label=visible(label),
                depth=depth,
                bytes=child.bytes,
                count=child.count,
            )
        )
        _list(child, module_path, depth + 1, found)
