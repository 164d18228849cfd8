"""What training makes for a parameter: its gradient, and what an optimizer keeps for it, come once.

Layers that are unfrozen one after the other bring their moments with them. Seen from the middle of
such a run, the optimizer's state grows at a steady pace; it ends with the parameters that are there
already. New parameters that keep coming are growth of their own, and so is a parameter's state that
grows: a history, another entry in each step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from vramlens.live.growth.births import Births
from vramlens.live.growth.pace import FEWEST
from vramlens.live.growth.piles import Pile
from vramlens.live.growth.stores import Parents
from vramlens.live.heap.objects import (
    class_module,
    class_name,
    class_order,
    is_kind,
    namespace_of,
)
from vramlens.live.heap.search import Search

_HOPS_TO_OPTIMIZER = 2
"""From its state: its namespace, itself."""


def with_parameter_state(
    search: Search, piles: Iterable[Pile], births: Births, parents: Parents
) -> list[Pile]:
    """Piles, with those marked that are what training makes once for each parameter, of which no new
    ones keep coming.
    """
    tables = _Tables(search, births, parents)
    return [replace(pile, is_parameter_state=tables.hold(pile)) for pile in piles]


class _Tables:
    """The dicts ``optimizer.state[parameter]`` that a search reached."""

    def __init__(self, search: Search, births: Births, parents: Parents) -> None:
        self._search, self._births, self._parents = search, births, parents
        self._parameters_by_state: dict[int, dict[int, Any]] = {}
        self._ids_by_state: dict[int, set[int]] = {}

    def hold(self, pile: Pile) -> bool:
        """Whether all of a pile are gradients, or lies directly in such dicts, one of each parameter,
        and steps pile up in none of them; parameters may lie beside it.
        """
        births_by_table: dict[int, set[int | None]] = {}
        parameters: dict[int, int] = {}
        parameter_births: set[int | None] = set()
        for item in pile.items:
            value = self._search.order[item.position]
            holder, label = self._parents[item.position]
            if item.storage is None or holder < 0:
                return False
            if label == ".grad":
                parameter_births.add(self._born(self._search.order[holder]))
                continue
            is_of_group = id(value) in self._parameters_of_state(holder)
            if is_of_group or class_name(type(value)) == "Parameter":
                parameter_births.add(item.born)
                continue
            parameter = self._parameter_of(holder)
            if parameter is None:
                return False
            parameter_births.add(self._born(parameter))
            parameters[holder] = id(parameter)
            births_by_table.setdefault(holder, set()).add(item.born)
        are_apart = len(set(parameters.values())) == len(parameters)
        # A parameter that was made just before the watch may count as one of its first steps.
        few_births = None not in parameter_births and len(parameter_births) < FEWEST
        return (
            are_apart
            and few_births
            and all(len(born) < FEWEST for born in births_by_table.values())
        )

    def _parameter_of(self, table: int) -> Any:
        """The parameter whose state a dict is, if it is in a group of its optimizer; None of
        anything else.
        """
        state_at = self._parents[table][0]
        if state_at < 0:
            return None
        if state_at not in self._parameters_by_state:
            self._parameters_by_state[state_at] = self._parameters_in(state_at)
        return self._parameters_by_state[state_at].get(id(self._search.order[table]))

    def _parameters_in(self, state_at: int) -> dict[int, Any]:
        """The parameters of an optimizer with a state, by the ids of what it keeps for each."""
        in_groups = self._parameters_of_state(state_at)
        kept_for = dict.items(self._search.order[state_at]) if in_groups else ()
        return {id(state): parameter for parameter, state in kept_for if id(parameter) in in_groups}

    def _parameters_of_state(self, state_at: int) -> set[int]:
        """The ids of the parameters of an optimizer with a state; empty of anything else."""
        if state_at not in self._ids_by_state:
            state = self._search.order[state_at]
            groups = self._groups_beside(state, state_at) if is_kind(state, dict) else []
            parameters = chain.from_iterable(group.get("params", ()) for group in groups)
            self._ids_by_state[state_at] = set(map(id, parameters))
        return self._ids_by_state[state_at]

    def _groups_beside(self, state: Any, position: int) -> list[dict[str, Any]]:
        """The groups of parameters of the optimizer that has a state; empty without one."""
        for _ in range(_HOPS_TO_OPTIMIZER):
            position = self._parents[position][0]
            if position < 0:
                break
            holder = self._search.order[position]
            namespace = namespace_of(holder)
            if _is_optimizer(holder) and namespace and namespace.get("state") is state:
                groups = namespace.get("param_groups")
                return [group for group in groups or () if type(group) is dict]
        return []

    def _born(self, parameter: Any) -> int | None:
        storage = self._search.torch.storage_of(parameter)
        return None if storage is None else self._births.born(storage, parameter)


def _is_optimizer(holder: Any) -> bool:
    return any(
        (class_module(base), class_name(base)) == ("torch.optim.optimizer", "Optimizer")
        for base in class_order(type(holder))
    )
