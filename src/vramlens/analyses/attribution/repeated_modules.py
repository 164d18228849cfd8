"""Modules of repetitions: whether what repeats are steps, or the layers and turns of one pass."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vramlens.analyses.attribution.modules import OUTSIDE
from vramlens.analyses.attribution.steps import PATTERN
from vramlens.trace import NO_STACK

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution

_HALF = 0.5


def modules_by_step(view: Attribution) -> list[frozenset[int]]:
    """By step, the modules that asked for memory in it."""
    count = max(1, len(view.modules.paths))
    is_inside = view.modules.marked & (view.modules.module != OUTSIDE) & (view.step >= 0)
    pairs = np.unique(view.step[is_inside] * count + view.modules.module[is_inside])
    edges = np.searchsorted(pairs // count, np.arange(len(view.steps) + 1))
    modules = (pairs % count).tolist()
    return [frozenset(modules[first:last]) for first, last in pairwise(edges.tolist())]


def lie_in_one_pass(view: Attribution) -> bool:
    """Whether what repeats is known to be the layers or turns of one pass, and no steps of the run."""
    return view.steps.source == PATTERN and (are_layers(view) or are_turns_of_one_pass(view))


def are_layers(view: Attribution) -> bool:
    """Whether each repetition runs in modules of its own: the layers of one pass."""
    cycles = [modules for modules in modules_by_step(view)[1:-1] if modules]
    shares = [len(a & b) / min(len(a), len(b)) for a, b in pairwise(cycles)]
    return bool(shares) and float(np.median(shares)) < _HALF


def follow_other_modules(view: Attribution) -> bool:
    """Whether modules ran before the repetitions that none of these runs: an encoder, before the
    time steps of what it encoded.
    """
    first, *later = modules_by_step(view) or [frozenset()]
    return any(later) and not first <= frozenset().union(*later)


def are_turns_of_one_pass(view: Attribution) -> bool:
    """Whether the repetitions lie in one pass through a model, which began with modules that none of
    them runs: the time steps of a decoder.
    """
    cycles = modules_by_step(view)[1:-1]
    if not any(cycles):
        return False
    is_known = view.modules.marked | (view.device.allocations.stack != NO_STACK)
    rows = np.flatnonzero(is_known & (view.step < len(view.steps) - 1))
    ends = np.flatnonzero(~view.modules.marked[rows])
    of_pass = rows[int(ends[-1]) + 1 :] if len(ends) else rows
    if not len(of_pass) or view.step[of_pass[0]] > 1:
        return False
    return all(int(view.modules.module[of_pass[0]]) not in modules for modules in cycles)
