"""What to keep in place of a small view, which keeps all of the memory that it looks at: a copy of what
it shows, or a number.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import Field, fields
from typing import Any

from vramlens.ground.source_code import last_name
from vramlens.live.heap.objects import (
    attributes_of,
    class_dict,
    class_module,
    class_name,
    class_order,
    dict_items,
    elements_of,
    is_array,
)
from vramlens.live.holder.chain import Link
from vramlens.live.holder.keeper import Keeper, store_of
from vramlens.live.holder.kept_value import SPREADING, Kept

_LONGEST_SOURCE = 60


def pinned_fix(keeper: Keeper | None, source: str, facts: Kept) -> str:
    """For small tensors or arrays that keep a large storage whole.

    Args:
        source: what the statement stores; empty where it is long.
    """
    if facts.is_number:
        return scalar_fix(source, facts)
    call = "copy()" if _shows_array(facts) else "clone()"
    part = _source_of_view(keeper, facts)
    copy = f"{part}.{call}" if part else facts.with_call(source, call)
    edit = copy or f"a copy (.{call})"
    return f"keep {edit} instead: a view keeps the whole {facts.pinned_size} behind it"


def scalar_fix(source: str, facts: Kept) -> str:
    """For tensors of one element in a storage of many, as ``F.mse_loss`` returns them."""
    number = facts.with_call(source, "item()")
    edit = f"{number} instead of {source}" if number else "numbers (.item())"
    return (
        f"keep {edit}: the scalar, detached too, keeps the whole {facts.pinned_size} that it was"
        " computed in, as F.mse_loss and F.smooth_l1_loss return it"
    )


def _shows_array(facts: Kept) -> bool:
    return is_array(facts.value) or any(is_array(link.value) for link in facts.inside)


def _source_of_view(keeper: Keeper | None, facts: Kept) -> str:
    """The expression for the view in what the statement stores; empty where it is not written there.

    An array is what the statement stores, an element of a tuple, or an argument of the call that
    makes the object: ``cells[row]`` of ``Landmark(row, cells[row])``.
    """
    store = store_of(keeper)
    if store is None or store.method in SPREADING:
        return ""
    stored = store.value
    if stored is not None and not is_array(facts.value):
        stored = _part_of(stored, facts.value, facts.inside)
    if not isinstance(stored, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
        return ""
    text = ast.unparse(stored)
    return text if len(text) <= _LONGEST_SOURCE else ""


def _part_of(stored: ast.expr, value: Any, inside: Sequence[Link]) -> ast.expr | None:
    """The expression for the one part of a value that is a view; None where a part has views inside,
    or several are.
    """
    parts = elements_of(value) or (part for _, part in attributes_of(value))
    if not inside or sum(map(_may_be_view, parts)) != 1 or not _may_be_view(inside[0].value):
        return None
    link = inside[0]
    if isinstance(stored, (ast.Tuple, ast.List)) and link.how == "index":
        return _at(stored.elts, link.name)
    kind = type(value)
    if not isinstance(stored, ast.Call) or last_name(stored.func) != class_name(kind):
        return None
    names = _fields_of(kind)
    is_numbered = link.how == "index" and link.name.isdigit() and int(link.name) < len(names)
    name = names[int(link.name)] if is_numbered else link.name
    for keyword in stored.keywords:
        if keyword.arg == name:
            return keyword.value
    return _at(stored.args, str(names.index(name))) if name in names else None


def _may_be_view(value: Any) -> bool:
    """Whether a value is an array, or may be a tensor."""
    return is_array(value) or class_module(type(value)).startswith("torch")


def _fields_of(kind: type) -> tuple[str, ...]:
    """What a named tuple or a data class calls its parts, in the order of its arguments."""
    for base in class_order(kind):
        names = class_dict(base).get("_fields")
        if type(names) is tuple:
            return names
        declared = dict_items(class_dict(base).get("__dataclass_fields__"))
        if declared and all(isinstance(part, Field) for _, part in declared):
            return tuple(field.name for field in fields(base) if field.init and not field.kw_only)
    return ()


def _at(expressions: Sequence[ast.expr], index: str) -> ast.expr | None:
    """One of some expressions; None where it is not there, or a ``*`` comes before it."""
    if not index.isdigit() or int(index) >= len(expressions):
        return None
    before = expressions[: int(index) + 1]
    return None if any(isinstance(part, ast.Starred) for part in before) else before[-1]
