"""Dataclasses back from JSON that anybody may have written: every value of the type that its
field says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import IntFlag
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from vramlens.ground.closed_words import ClosedWords
from vramlens.read.json_bounds import refuse_costly

_LARGEST = (1 << 62) - 1
_MOST_ITEMS = 1_000_000
_LONGEST_TEXT = 1 << 16
_Made = TypeVar("_Made")


def from_json(kind: type[_Made], text: object) -> _Made:
    """The dataclass that a JSON text holds.

    Raises:
        ValueError: it is no JSON, or a field is missing or of another type; the message names it.
    """
    if not isinstance(text, str):
        raise ValueError("no text")
    refuse_costly(text.encode("utf-8", "surrogatepass"))
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return cast(_Made, _typed(kind, content, kind.__name__))


def _typed(kind: Any, value: object, where: str) -> Any:
    """The value as its type wants it; lists as tuples.

    Raises:
        ValueError: it is of another type.
    """
    if get_origin(kind) in (Union, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        inner = next(part for part in get_args(kind) if part is not NoneType)
        return _typed(inner, value, where)
    if isinstance(value, list):
        return _tuple(kind, value, where)
    if isinstance(value, dict):
        return (
            _dataclass(kind, value, where) if is_dataclass(kind) else _mapping(kind, value, where)
        )
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: object, where: str) -> Any:
    if kind is str and isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if kind is bool and isinstance(value, bool):
        return value
    if isinstance(kind, type) and issubclass(kind, ClosedWords) and value in list(kind):
        return kind(value)
    is_number_kind = kind is int or (isinstance(kind, type) and issubclass(kind, IntFlag))
    if is_number_kind and type(value) is int and abs(value) <= _LARGEST:
        return kind(value)
    raise _wrong(where)


def _mapping(kind: Any, value: dict[str, Any], where: str) -> dict[str, Any]:
    if get_origin(kind) is not Mapping or len(value) > _MOST_ITEMS:
        raise _wrong(where)
    inner = get_args(kind)[1]
    return {
        key[:_LONGEST_TEXT]: _typed(inner, entry, f"{where}.{key[:40]}")
        for key, entry in value.items()
    }


def _tuple(kind: Any, value: list[Any], where: str) -> tuple[Any, ...]:
    if get_origin(kind) is not tuple or len(value) > _MOST_ITEMS:
        raise _wrong(where)
    kinds = get_args(kind)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_typed(kinds[0], entry, where) for entry in value)
    if len(kinds) != len(value):
        raise ValueError(f"{where} has {len(value)} parts instead of {len(kinds)}")
    return tuple(_typed(inner, entry, where) for inner, entry in zip(kinds, value, strict=True))


def _wrong(where: str) -> ValueError:
    return ValueError(f"{where} is not what it should be")


def _dataclass(kind: Any, value: dict[str, Any], where: str) -> Any:
    hints = _hints(kind)
    missing = hints.keys() ^ value.keys()
    if missing:
        raise ValueError(f"{where} has other fields ({', '.join(sorted(missing))[:100]})")
    return kind(
        **{name: _typed(hint, value[name], f"{where}.{name}") for name, hint in hints.items()}
    )


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
