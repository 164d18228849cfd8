"""The verdict on a pile, and the sentences that it rests on."""

from __future__ import annotations

from itertools import chain
from statistics import mode
from typing import Any

from vramlens.ground.verdict import Verdict
from vramlens.live.growth.pace import FEWEST, Pace
from vramlens.live.growth.piles import Pile
from vramlens.live.heap.objects import is_kind, namespace_of
from vramlens.live.heap.search import Search
from vramlens.live.holder.container_bounds import Excuse, Growth, distant_bound
from vramlens.live.holder.keeper import Statements
from vramlens.live.holder.keeper_position import is_shell
from vramlens.live.holder.lookalikes import emptied_by, gate
from vramlens.units import counted

_EVERY_STEP = 0.95
"""Of the steps, for "all of them": the few that are missing were not looked at."""
_CONTAINERS = (list, tuple, set, dict, frozenset)
Judgment = tuple[Verdict, tuple[str, ...], str]
"""A verdict, its evidence, and why it is not more certain."""


def pile_verdict(search: Search, statements: Statements, pile: Pile, growth: Growth) -> Judgment:
    """The verdict on a pile, by its pace, its look-alikes and whether each step added the same."""
    excuse = gate(statements, growth)
    pace = pile.pace
    if not pace.is_steady:
        return _unsteady_verdict(pace, excuse, emptied_by(statements, growth))
    reasons = [_pace_text(pile), distant_bound(growth)]
    evidence = tuple(reason for reason in reasons if reason)
    if excuse is not None:
        verdict, reason = excuse
        return verdict, evidence, reason
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
        return Verdict.POSSIBLE, (), f"{has_stopped}: it is full, or what fills it has ended"
    return Verdict.NOT_A_PROBLEM, (), has_stopped


def _pace_text(pile: Pile) -> str:
    pace = pile.pace
    if pile.is_remade:
        return f"one tensor, created again {pace.bytes_per_step:,} bytes larger in each step"
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
    if is_kind(container, *_CONTAINERS) or is_shell(container):
        return False
    return namespace_of(container) is not None
