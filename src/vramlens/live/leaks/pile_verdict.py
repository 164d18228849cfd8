"""The verdict on a pile, and the sentences that it rests on."""

from __future__ import annotations

from collections import deque
from itertools import chain
from statistics import mode
from typing import Any

from vramlens.ground.verdict import Verdict
from vramlens.live.excuses.container_bounds import Excuse, Growth, distant_bound
from vramlens.live.excuses.data_in_use import data_in_use
from vramlens.live.excuses.lookalikes import emptied_by, falls_behind_by, gate
from vramlens.live.growth.backlogs import is_of_cut_graph
from vramlens.live.growth.pace import FEWEST, RARE, Pace
from vramlens.live.growth.piles import Pile
from vramlens.live.heap.objects import is_kind, namespace_of
from vramlens.live.heap.search import Search
from vramlens.live.holder.keeper import Statements
from vramlens.live.holder.keeper_position import is_shell, is_table
from vramlens.live.source.tail_reads import reads_of_end_only
from vramlens.units import counted

_EVERY_STEP = 0.95
"""Of the steps, for "all of them": the few that are missing were not looked at."""
_FEWEST_OF_NAMESPACE = 8
"""Steps that left something in a module or an object, where such steps are rare: with half as many, a
script's own variables were a leak in one of four runs on a busy machine.
"""
_CONTAINERS = (list, tuple, set, dict, frozenset)
_FULL_OR_ENDED = "it is full, or what fills it has ended"
_CANNOT_LOOK = "PyTorch 2.13 cannot free a long chain of nodes that Python has looked at"
_CUT = (
    "it keeps an autograd graph of thousands of nodes, of which only the newest were looked at"
    f" ({_CANNOT_LOOK})"
)
_CUT_BEFORE = (
    "memory grew as fast before that, too: older nodes of the same graph were not"
    f" looked at ({_CANNOT_LOOK})"
)
Judgment = tuple[Verdict, tuple[str, ...], str]
"""A verdict, its evidence, and why it is not more certain."""


def pile_verdict(
    search: Search, statements: Statements, pile: Pile, growth: Growth, in_vain: str
) -> Judgment:
    """The verdict on a pile, by its pace, its look-alikes and whether each step added the same.

    Args:
        in_vain: why what it keeps is of no use to the rest of the program; empty where it may be.
    """
    excuse = gate(statements, growth)
    pace = pile.pace
    falls_behind = falls_behind_by(statements, growth)
    if falls_behind and (pace.is_steady or pace.is_late):
        return Verdict.LIKELY, (), falls_behind
    if is_of_cut_graph(search, pile):
        return Verdict.POSSIBLE, (), _CUT
    if not pace.is_steady:
        if pace.has_just_ended and excuse is None:
            return _ended_verdict(pace, growth, in_vain)
        return _unsteady_verdict(pace, excuse, emptied_by(statements, growth))
    if excuse is None and not in_vain:
        excuse = data_in_use(statements, growth)
    reasons = [_pace_text(pile), _CUT_BEFORE if pile.is_cut else "", distant_bound(growth)]
    evidence = tuple(reason for reason in reasons if reason)
    if excuse is not None:
        verdict, reason = excuse
        return verdict, evidence, reason
    if pile.is_of_few:
        return Verdict.POSSIBLE, evidence, "too few steps left something in it to be sure"
    is_one_thing = pile.is_remade or pile.is_spread or growth.is_linked
    if not is_one_thing and not _is_uniform(search, pile, growth.container):
        reason = "but something different each time: state that is created when it is needed"
        return Verdict.POSSIBLE, evidence, reason
    return (Verdict.PROVEN if pace.is_sure else Verdict.LIKELY), evidence, ""


def _unsteady_verdict(pace: Pace, excuse: Excuse | None, emptied: str) -> Judgment:
    """The verdict on what came late, or has ended.

    Args:
        emptied: by which statement it is emptied; empty where it is not.
    """
    if excuse is not None and excuse[0] == Verdict.NOT_A_PROBLEM:
        return Verdict.NOT_A_PROBLEM, (), excuse[1]
    if pace.is_late and emptied:
        reason = f"{emptied}; nothing from before step {pace.earliest} is kept"
        return Verdict.NOT_A_PROBLEM, (), reason
    if pace.is_late:
        reason = (
            f"nothing from before step {pace.earliest} is kept: it is emptied from time to time, "
            "or started there"
        )
        return Verdict.POSSIBLE, (), reason
    has_stopped = f"it has not grown since step {pace.last}"
    if pace.has_just_ended:
        return Verdict.POSSIBLE, (), f"{has_stopped}: {_FULL_OR_ENDED}"
    return Verdict.NOT_A_PROBLEM, (), has_stopped


def _ended_verdict(pace: Pace, growth: Growth, in_vain: str) -> Judgment:
    """The verdict on what grew through most of the run, and has no limit that would have ended it.

    Args:
        in_vain: as of ``pile_verdict``.
    """
    has_stopped = f"it has not grown since step {pace.last}"
    if in_vain:
        return Verdict.LIKELY, (), f"{has_stopped}, but {in_vain}"
    if is_kind(growth.container, list, deque):
        return Verdict.POSSIBLE, (), f"{has_stopped}: nothing limits it, so what fills it has ended"
    return Verdict.POSSIBLE, (), f"{has_stopped}: {_FULL_OR_ENDED}"


def read_in_vain(statements: Statements, growth: Growth) -> str:
    """Why the older entries of a list are of no use: the program reads the last ones at most; empty
    where it may read others.
    """
    store = growth.store
    if store is None or not is_kind(growth.container, list, deque):
        return ""
    other_modules = (module for module in statements.modules() if module.file != store.file)
    return (
        ""
        if any(other.mentions(store.name) for other in other_modules)
        else reads_of_end_only(store)
    )


def _pace_text(pile: Pile) -> str:
    pace = pile.pace
    if pile.is_remade:
        size = f"{pace.bytes_per_step:,} bytes"
        return f"one tensor, created again {size} larger in each step, on average"
    if pace.leaving_steps is None:
        looks = f"{counted(pace.steps, 'look')} from step {pace.first} to {pace.last}"
        return f"{looks} found more memory that is still in use"
    steps = counted(pace.leaving_steps, "step")
    if pace.filled * pace.leaving_steps >= _EVERY_STEP * pace.steps:
        steps = f"all {steps}"
    return f"{steps} from {pace.first} to {pace.last} left memory behind that is still in use"


def _is_uniform(search: Search, pile: Pile, container: Any) -> bool:
    """Whether each step added the same: namespaces also fill with different things, one after
    the other.
    """
    if search.torch.is_tensor(container):  # what its graph keeps
        return True
    if not _is_namespace(search, pile.position, container):
        return True
    sizes_by_step: dict[int | None, list[int]] = {}
    for item in pile.items:
        if item.storage is not None:
            sizes_by_step.setdefault(item.born, []).append(item.size_bytes)
    if not sizes_by_step:  # autograd nodes without data: nothing says that they are alike
        return False
    span = pile.pace.last - pile.pace.first + 1
    if len(sizes_by_step) < _FEWEST_OF_NAMESPACE and len(sizes_by_step) * RARE < span:
        return False  # variables that the last steps set, and what was not seen to be made
    sums = list(map(sum, sizes_by_step.values()))
    usual_sum = mode(sums)
    usual_size = mode(chain.from_iterable(sizes_by_step.values()))
    # One look may have found what several steps left, and a step by the clock is of several turns:
    # as much of each, or more and fewer of the same.
    alike = sum(
        (usual_sum > 0 and sum(sizes) % usual_sum == 0) or set(sizes) == {usual_size}
        for sizes in sizes_by_step.values()
    )
    return len(sizes_by_step) >= FEWEST + 1 and alike * 4 >= 3 * len(sizes_by_step)


def _is_namespace(search: Search, position: int, container: Any) -> bool:
    """Whether what keeps is a module, a class or an object with attributes."""
    if container is None or is_kind(container, type):
        return True
    if type(container) is dict and search.roots.get(position) is not None:
        return True
    if is_kind(container, *_CONTAINERS) or is_shell(container) or is_table(container):
        return False
    return namespace_of(container) is not None
