"""Fields that the call of a class sets: of a dataclass, a named tuple, or from a parameter of
``__init__``.

Where objects each hold the one before in such a field, the statement in the class, if there is one,
says nothing: the call says which object is kept.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vramlens.ground.source_code import last_name
from vramlens.live.heap.objects import (
    attributes_of,
    class_dict,
    class_name,
    class_order,
    class_path,
    code_of,
    elements_of,
    is_kind,
)
from vramlens.live.source.expressions import is_empty
from vramlens.live.source.source_stores import CallSite, Module, Store
from vramlens.live.source.users_source import UsersSource


@dataclass(frozen=True, slots=True)
class GivenField:
    """A field that a call of a class is given.

    Attributes:
        made: the name of the class.
        parameter: its name in the call.
        position: among the arguments without a name.
    """

    made: str
    parameter: str
    position: int

    def stands_in(self, expression: ast.expr | None) -> bool:
        """Whether an expression is such a call, with something in this field."""
        if not isinstance(expression, ast.Call) or last_name(expression.func) != self.made:
            return False
        given = [word.value for word in expression.keywords if word.arg == self.parameter]
        before = expression.args[: self.position + 1]
        if self.position < len(before) and not any(map(_is_starred, before)):
            given.append(before[self.position])
        return any(not is_empty(value) for value in given)

    def calls(self, source: UsersSource) -> Iterator[tuple[int, Module, CallSite]]:
        """Yields the calls that give it, each with its points: one that ran, one in a loop."""
        for module in source.modules():
            for site in module.calls.get(self.made, ()):
                if self.stands_in(site.call):
                    has_run = source.has_run(module.file, site.statement.lineno)
                    yield 4 * has_run + min(site.loops, 1), module, site


def field_with(instance: Any, part: Any) -> str:
    """The field in which an object, maybe a named tuple, holds a part; empty without."""
    fields: Iterable[tuple[str, Any]] = attributes_of(instance)
    if is_kind(instance, tuple):
        fields = zip(_parameters(type(instance)), elements_of(instance) or (), strict=False)
    return next((name for name, value in fields if value is part), "")


def given_by(instance: Any, field: str, source: UsersSource) -> GivenField | None:
    """How the call of an object's class is given a field; None where it is not, or where other
    statements than the ones in ``__init__`` set it, too.
    """
    cls = type(instance)
    names, owners = _parameters(cls), set(map(class_path, class_order(cls)))
    stores = (store for module in source.modules() for store in module.stores.get(field, ()))
    parameters = {_parameter_of(store) for store in stores if _may_set(store, owners)} or {field}
    parameter = parameters.pop()
    if parameters or parameter not in names:
        return None
    return GivenField(class_name(cls), parameter, names.index(parameter))


def _may_set(store: Store, owners: Collection[str]) -> bool:
    """Whether a statement sets an attribute to something, and not another class's own."""
    is_own = bool(store.base) and store.base == store.function.receiver
    is_others = is_own and store.function.owner not in owners
    return bool(store.base) and not is_others and not is_empty(store.value)


def _parameter_of(store: Store) -> str:
    """The parameter of ``__init__`` that a statement in it stores; empty elsewhere."""
    is_constructor = store.function.name.endswith("__init__")
    if not is_constructor or not isinstance(store.value, ast.Name):
        return ""
    return store.value.id if store.value.id in store.function.parameters else ""


def _parameters(cls: type) -> Sequence[str]:
    """What a class's call is given by position, in its order."""
    for base in class_order(cls):
        members = class_dict(base)
        if "_fields" in members and issubclass(base, tuple):
            return tuple(members["_fields"])
        code = code_of(members.get("__init__"))
        if code is not None:
            return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return ()


def _is_starred(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Starred)
