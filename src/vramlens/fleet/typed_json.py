"""Dataclasses back from JSON that anybody may have written: every value of the type that its
field says.

Newer and older versions read each other's: a field that nobody knows is left out, and one that is
missing has its default, or nothing. An object with few of its fields is another thing, and refused.

How a type is read is worked out once: thousands of ranks have the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import IntFlag
from functools import cache, lru_cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from vramlens.ground.vocabulary import ClosedWords
from vramlens.read.json_bounds import refuse_costly

_LARGEST = (1 << 62) - 1
_MOST_ITEMS = 1_000_000
_LONGEST_TEXT = 1 << 16
_MOST_SHARED = 1 << 16
_Made = TypeVar("_Made")
_Reader = Callable[[object], Any]
"""Gives the value as its type wants it, lists as tuples; ValueError says where it is not."""


def from_json(kind: type[_Made], text: object) -> _Made:
    """The dataclass that a JSON text holds.

    Raises:
        ValueError: it is not JSON, or a field is missing or of another type; the message names it.
    """
    if not isinstance(text, str):
        raise ValueError("no text")
    refuse_costly(text.encode("utf-8", "surrogatepass"))
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    read = _reader(cast(Any, kind), kind.__name__)
    return cast(_Made, read(content))


@cache
def _reader(kind: Any, where: str) -> _Reader:
    """What reads values of a type; ``where`` names the field in messages."""
    if get_origin(kind) in (Union, UnionType):
        return _optional(kind, where)
    if get_origin(kind) is tuple:
        return _tuple(kind, where)
    if get_origin(kind) is Mapping:
        return _mapping(kind, where)
    if is_dataclass(kind):
        return _dataclass(kind, where)
    return _scalar(kind, where)


def _kind_of(hint: Any) -> Any:
    """The type itself, of one that may be missing, too."""
    if get_origin(hint) in (Union, UnionType):
        return next(part for part in get_args(hint) if part is not NoneType)
    return hint


def _optional(kind: Any, where: str) -> _Reader:
    read = _reader(_kind_of(kind), where)
    return lambda value: None if value is None else read(value)


def _scalar(kind: Any, where: str) -> _Reader:
    if kind is str:
        return partial(_text, where)
    if kind is bool:
        return partial(_truth, where)
    if kind is int:
        return _number(where)
    if isinstance(kind, type) and issubclass(kind, IntFlag):
        read, flags_of = _number(where), lru_cache(kind)
        return lambda value: flags_of(read(value))
    return partial(_word, kind, where)


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(where)
    return value[:_LONGEST_TEXT]


def _truth(where: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(where)
    return value


def _number(where: str) -> Callable[[object], int]:
    def read(value: object) -> int:
        if type(value) is not int or not -_LARGEST <= value <= _LARGEST:
            raise _wrong(where)
        return value

    return read


def _word(kind: Any, where: str, value: object) -> Any:
    """A word of a closed vocabulary, or of none where a field has another type."""
    words = list(kind) if isinstance(kind, type) and issubclass(kind, ClosedWords) else []
    if value not in words:
        raise _wrong(where)
    return kind(value)


def _mapping(kind: Any, where: str) -> _Reader:
    read_entry = _reader(get_args(kind)[1], where)

    def read(value: object) -> Any:
        if not isinstance(value, dict) or len(value) > _MOST_ITEMS:
            raise _wrong(where)
        return {key[:_LONGEST_TEXT]: read_entry(entry) for key, entry in value.items()}

    return read


def _tuple(kind: Any, where: str) -> _Reader:
    kinds = get_args(kind)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return _sequence(kinds[0], where)
    readers = [_reader(part, where) for part in kinds]

    def read(value: object) -> Any:
        if not isinstance(value, list):
            raise _wrong(where)
        if len(value) != len(readers):
            raise ValueError(f"{where} has {len(value)} parts instead of {len(readers)}")
        return tuple(read(part) for read, part in zip(readers, value, strict=True))

    return read


def _sequence(kind: Any, where: str) -> _Reader:
    read_entry = _reader(kind, where)

    def read(value: object) -> Any:
        if not isinstance(value, list) or len(value) > _MOST_ITEMS:
            raise _wrong(where)
        return tuple(map(read_entry, value))

    return read


def _dataclass(kind: Any, where: str) -> _Reader:
    hints = get_type_hints(kind)
    readers = {
        field.name: _reader(hints[field.name], f"{where}.{field.name}") for field in fields(kind)
    }
    required = [
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    make = _maker(kind, where, hints, readers)
    names = readers.keys()
    fewest = (len(required) + 1) // 2
    absent = {name: _nothing(hints[name]) for name in required}

    def read(value: object) -> Any:
        if not isinstance(value, dict):
            raise _wrong(where)
        if value.keys() >= names:
            return make(value)
        present = {name: read(value[name]) for name, read in readers.items() if name in value}
        missing = [name for name in required if name not in present]
        if len(required) - len(missing) < fewest:
            raise ValueError(f"{where} has other fields ({', '.join(missing)[:100]} missing)")
        return kind(**{**{name: absent[name] for name in missing}, **present})

    return read


def _maker(
    kind: Any, where: str, hints: Mapping[str, Any], readers: Mapping[str, _Reader]
) -> Callable[[dict[str, object]], Any]:
    """What makes a dataclass of an object that has all of its fields."""
    if all(map(_is_shared, hints.values())):
        return _sharer(kind, where, hints, readers)
    in_order = tuple(readers.items())
    return lambda value: kind(*[read(value[name]) for name, read in in_order])


def _is_shared(hint: Any) -> bool:
    """Whether values of a type are words and numbers, or an object of nothing else."""
    kind = _kind_of(hint)
    if is_dataclass(kind):
        return all(map(_is_shared, get_type_hints(kind).values()))
    is_generic = get_origin(kind) is not None  # tuple[int] is a type, too, on Python 3.10
    return not is_generic and isinstance(kind, type) and issubclass(kind, str | int)


def _sharer(
    kind: Any, where: str, hints: Mapping[str, Any], readers: Mapping[str, _Reader]
) -> Callable[[dict[str, object]], Any]:
    """The same for one of few words and numbers, such as a line of the program and what it held:
    equal ones are one object. Thousands of ranks name the same lines, and are compared by them.
    """
    objects = {
        position: readers[name]
        for position, name in enumerate(readers)
        if is_dataclass(_kind_of(hints[name]))
    }
    # Objects are read before they are looked up, everything else once for all that are equal.
    in_order = [
        _as_it_is if position in objects else read for position, read in enumerate(readers.values())
    ]

    @lru_cache(_MOST_SHARED, typed=True)
    def make(*values: object) -> Any:
        return kind(*[read(value) for read, value in zip(in_order, values, strict=True)])

    def read(value: dict[str, object]) -> Any:
        values = [value[name] for name in readers]
        for position, read_object in objects.items():
            values[position] = read_object(values[position])
        try:
            return make(*values)
        except TypeError:  # a list: no word and no number
            for read_value, field_value in zip(in_order, values, strict=True):
                read_value(field_value)
            raise _wrong(where) from None

    return read


def _as_it_is(value: object) -> object:
    return value


def _nothing(kind: Any) -> Any:
    """What stands for a field that an older version did not write."""
    if get_origin(kind) in (Union, UnionType):
        return None
    if get_origin(kind) is tuple:
        return ()
    if get_origin(kind) is Mapping:
        return {}
    if isinstance(kind, type) and issubclass(kind, ClosedWords):
        return next(iter(kind))
    if kind is str:
        return ""
    return kind(0) if isinstance(kind, type) and issubclass(kind, int) else None


def _wrong(where: str) -> ValueError:
    return ValueError(f"{where} is not what it should be")
