"""Budget files: limits in TOML, with the line that each stands in, and their update that keeps
comments.

[budget]
peak_allocated = "20 GiB"
growth_per_step = "1 MiB"
[budget.module."model.layers"]
peak = "8 GiB"
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vramlens.analyses.finding import Place
from vramlens.errors import InputError, UsageError
from vramlens.units import GIB, KIB, MIB, parse_size

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

SIZE, COUNT, SHARE = "size", "count", "share"
CARD = ("card",)
"""The path of a limit that only a prediction can be held against: a card that it has to fit."""
_WHOLE = {
    "peak_allocated": SIZE,
    "peak_requested": SIZE,
    "peak_active": SIZE,
    "peak_reserved": SIZE,
    "growth_per_step": SIZE,
    "alloc_retries": COUNT,
    "out_of_memory": COUNT,
    "fragmentation": SHARE,
    CARD[0]: SIZE,
}
"""The limits of ``[budget]`` and what they are measured in."""
_PARTS = ("module", "line", "category", "phase")
"""Parts of the memory that may have a limit of their own: ``[budget.module."model.layers"] peak
= ...``.
"""
_TOLERANCE = "tolerance"
_RECORDED = "recorded"
_MOST_BYTES = 1 << 20
_RECORDED_LINES = 100
WRITTEN_STEP_BYTES = MIB // 1000 + 2
"""A written size is at most so much above what it stands for."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit.

    Attributes:
        path: its keys below ``budget``: ("peak_allocated",), ("module", "model.layers", "peak").
        kind: SIZE, COUNT or SHARE.
        value: bytes, a number, or a share from 0 to 1.
        line: where it stands in the file, from 1; None where that cannot be told.
    """

    path: tuple[str, ...]
    kind: str
    value: float
    line: int | None

    @property
    def scope(self) -> str:
        """Its name: ``peak_allocated``, ``module "model.layers" peak``."""
        return (
            self.path[0]
            if len(self.path) == 1
            else f'{self.path[0]} "{self.path[1]}" {self.path[2]}'
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget file.

    Attributes:
        source: its name.
        text: all of it.
        limits: in the file's order.
        tolerance: by what share a size may be above its limit.
        recorded: what each line held at the peak when the budget was last updated, in bytes; empty
            by hand.
    """

    source: str
    text: str
    limits: tuple[Limit, ...]
    tolerance: float
    recorded: Mapping[Place, int]


def read_budget_file(path: str) -> Budget:
    """The budget in a file that is named.

    Raises:
        InputError: it is not a budget; the message says which line and key.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return read_budget(file.read(_MOST_BYTES + 1), path)


def read_budget(data: bytes, source: str) -> Budget:
    """The budget in a file.

    Raises:
        InputError: it is not a budget; the message says which line and key.
    """
    if len(data) > _MOST_BYTES:
        raise InputError(f"{source}: {len(data):,} bytes are too many for a budget file")
    text, table = _parsed(data, source)
    lines = {path: number for number, path, _match in _statements(text)}
    budget = table.get("budget")
    if not isinstance(budget, dict):
        table_names = ", ".join(f"[{key}]" for key in list(table)[:4]) or "nothing"
        near = difflib.get_close_matches("budget", list(table), 1)
        meant = f"; did you mean [budget] for [{near[0]}]?" if near else ""
        raise InputError(f"{source}: has no [budget] table (it has {table_names}){meant}")
    limits: list[Limit] = []
    tolerance = 0.0
    for key, value in budget.items():
        where = _where(source, lines, ("budget", key))
        if key == _TOLERANCE:
            tolerance = _number(value, SHARE, where, key)
        elif key in _PARTS:
            limits += _part_limits(source, lines, key, value)
        elif key in _WHOLE:
            limits.append(
                Limit(
                    (key,),
                    _WHOLE[key],
                    _number(value, _WHOLE[key], where, key),
                    lines.get(("budget", key)),
                )
            )
        else:
            raise InputError(
                f"{where}: {key!r} is not a limit{_meant(key, (*_WHOLE, *_PARTS, _TOLERANCE))}"
            )
    return Budget(
        source=source,
        text=text,
        limits=tuple(limits),
        tolerance=tolerance,
        recorded=_recorded(source, lines, table.get(_RECORDED)),
    )


def _parsed(data: bytes, source: str) -> tuple[str, dict[str, Any]]:
    try:
        text = data.decode()
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source}: byte {error.start} is not UTF-8: a budget must be a TOML file"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}: is not TOML: {_one_line(error)}") from None
    except RecursionError:
        raise InputError(f"{source}: is nested too deeply for a budget file") from None


def _part_limits(
    source: str, lines: Mapping[tuple[str, ...], int], part: str, table: Any
) -> Iterator[Limit]:
    if not isinstance(table, dict):
        raise InputError(
            f'{_where(source, lines, ("budget", part))}: {part} takes names: [budget.{part}."NAME"]'
        )
    for name, limits in table.items():
        path = ("budget", part, name)
        if not isinstance(limits, dict):
            where = _where(source, lines, path)
            raise InputError(
                f'{where}: {part}."{name}" takes limits: [budget.{part}."{name}"] peak = "8 GiB"'
            )
        for key, value in limits.items():
            where = _where(source, lines, (*path, key))
            if key != "peak":
                raise InputError(
                    f"{where}: {key!r} is not a limit of a {part}; its only limit is peak"
                )
            yield Limit(
                (part, name, key), SIZE, _number(value, SIZE, where, key), lines.get((*path, key))
            )


def _number(value: Any, kind: str, where: str, key: str) -> float:
    """A limit's value.

    Raises:
        InputError: it is not one.
    """
    number = _READ[kind](value)
    if number is None:
        raise InputError(f"{where}: {key} = {_shown(value)} is not a {_WRITE[kind]}")
    return number


def _size(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            return parse_size(value)
        except (UsageError, OverflowError, ValueError):
            return None
    count = _count(value)
    return count if count is not None and count < 1 << 63 else None


def _count(value: Any) -> float | None:
    return value if _is_number(value, int) and value >= 0 else None


def _share(value: Any) -> float | None:
    share = _fraction(value)
    return float(share) if _is_number(share, (int, float)) and 0 <= share <= 1 else None


def _fraction(value: Any) -> Any:
    """A percentage as a fraction; anything else as it is."""
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    return value if percent is None else float(percent[1]) / 100


def _is_number(value: Any, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


_PERCENT = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%\s*")
_READ = {SIZE: _size, COUNT: _count, SHARE: _share}
_WRITE = {
    SIZE: 'size: write "24 GiB", "512 MiB" or a number of bytes',
    COUNT: "count: write 0 or a whole number",
    SHARE: 'share: write 0.2 or "20%"',
}


def _recorded(source: str, lines: Mapping[tuple[str, ...], int], table: Any) -> dict[Place, int]:
    if table is None:
        return {}
    line_sizes = table.get("line") if isinstance(table, dict) else None
    if not isinstance(line_sizes, dict):
        raise InputError(
            f"{source}: [{_RECORDED}] is written by --update; delete it, or run --update again"
        )
    places = {}
    for name, size in line_sizes.items():
        match = re.fullmatch(r"(.+):([0-9]{1,9}) in (.*)", name, re.DOTALL)
        if match is None or not isinstance(size, int) or isinstance(size, bool) or size < 0:
            where = _where(source, lines, (_RECORDED, "line", name))
            raise InputError(
                f"{where}: {_shown(name)} was edited by hand; delete [recorded], or run "
                "--update again"
            )
        places[Place(match[1], int(match[2]), match[3])] = size
    return places


def _where(source: str, lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> str:
    line = lines.get(path)
    return f"{source}:{line}" if line else source


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:1].lower() + text[1:]


def _meant(key: str, names: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(key, names, 1)
    return f"; did you mean {near[0]}?" if near else f" (limits: {', '.join(names)})"


_HEADER = re.compile(r"\s*\[([^\[\]].*)\]\s*(?:#.*)?")
_VALUE = re.compile(
    r"""(?P<head>[^=]*=\s*)(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|[^\s#,\[\]{}]+)(?P<tail>\s*(?:#.*)?)"""
)


def _statements(text: str) -> Iterator[tuple[int, tuple[str, ...], re.Match[str] | None]]:
    """Every ``key = value`` that stands on one line: its number from 1, its whole path, and its
    parts to be edited.
    """
    table: tuple[str, ...] = ()
    for number, line in enumerate((line.rstrip("\r") for line in text.split("\n")), 1):
        header = _HEADER.fullmatch(line)
        if header is not None:
            table = _path(f"[{header[1]}]") or table
        elif "=" in line:
            path = _path(line)
            if path:
                yield number, (*table, *path), _VALUE.fullmatch(line)


def _path(statement: str) -> tuple[str, ...]:
    """The keys that one line of TOML names; none where it is not one by itself."""
    try:
        value: Any = tomllib.loads(statement)
    except (tomllib.TOMLDecodeError, RecursionError):
        return ()
    path = []
    while isinstance(value, dict) and len(value) == 1:
        key, value = next(iter(value.items()))
        path.append(key)
    return tuple(path)


def written_size(size_bytes: float) -> str:
    """A size as a budget says it, never less than it is: ``2935.312 MiB``; whole KiB, MiB and
    GiB as such.
    """
    size = math.ceil(size_bytes)
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % factor == 0:
            return f'"{size // factor} {unit}"'
    if size < KIB:
        return f'"{size} B"'
    unit, factor = ("MiB", MIB) if size >= MIB else ("KiB", KIB)
    thousandths = -(-size * 1000 // factor)
    return f'"{thousandths // 1000}.{thousandths % 1000:03d} {unit}"'


def _written(kind: str, value: float) -> str:
    if kind == SIZE:
        return written_size(value)
    return str(int(value)) if kind == COUNT else f"{math.ceil(round(value * 100, 6)) / 100:g}"


def value_as_written(kind: str, value: float) -> float:
    """The limit that a value becomes: what is read back once it is written."""
    written = _written(kind, value)
    return parse_size(written.strip('"')) if kind == SIZE else float(written)


def update_budget(
    budget: Budget,
    values: Mapping[tuple[str, ...], tuple[str, float]],
    line_sizes: Mapping[Place, int],
) -> str:
    """The budget's text with other values, and what the lines held; comments and order stay.

    Args:
        values: by path below ``budget`` the kind and the value; what is not named stays as it is.
        line_sizes: bytes at the peak by line.

    Raises:
        InputError: a limit stands where it cannot be edited.
    """
    lines = _without_recorded(budget.text).split("\n")
    places = {
        path[1:]: (number, match)
        for number, path, match in _statements("\n".join(lines))
        if path[:1] == ("budget",)
    }
    for path, (kind, value) in values.items():
        if path not in places:
            raise InputError(
                f"{budget.source}: {'.'.join(path)} cannot be edited in place; put it on a line "
                "of its own"
            )
        number, match = places[path]
        if match is None:
            raise InputError(
                f"{budget.source}:{number}: {path[-1]} cannot be edited; write one value on one"
                " line"
            )
        end = "\r" if lines[number - 1].endswith("\r") else ""
        lines[number - 1] = f"{match['head']}{_written(kind, value)}{match['tail']}{end}"
    text = "\n".join(lines).rstrip() + "\n" + _recorded_text(line_sizes)
    after = {limit.path: limit.value for limit in read_budget(text.encode(), budget.source).limits}
    for limit in budget.limits:
        kind, value = values.get(limit.path, (limit.kind, limit.value))
        slack = {SIZE: WRITTEN_STEP_BYTES, COUNT: 0, SHARE: 0.01}[kind]
        if not value <= after.get(limit.path, -1) + 1e-9 <= value + slack + 1e-8:
            raise InputError(
                f"{budget.source}: {limit.scope} cannot be edited in place; nothing was changed"
            )
    return text


def new_budget(
    values: Mapping[tuple[str, ...], tuple[str, float]], line_sizes: Mapping[Place, int]
) -> str:
    """The text of a first budget."""
    rows = [f"{path[0]} = {_written(kind, value)}" for path, (kind, value) in values.items()]
    return (
        "# What a run may use: vramlens check RUN.vram --budget THIS. Update it with --update, and"
        " review the change.\n"
        "[budget]\n" + "\n".join(rows) + "\n" + _recorded_text(line_sizes)
    )


def _without_recorded(text: str) -> str:
    """The text without what ``--update`` wrote."""
    lines_left, inside = [], False
    for line in text.split("\n"):
        header = _HEADER.fullmatch(line.rstrip("\r"))
        if header is not None:
            inside = _path(f"[{header[1]}]")[:1] == (_RECORDED,)
        if not inside:
            lines_left.append(line)
    return "\n".join(lines_left)


def _recorded_text(line_sizes: Mapping[Place, int]) -> str:
    """What each line held, the largest first, so that a later check can say which of them rose."""
    largest = sorted(line_sizes.items(), key=lambda item: (-item[1], str(item[0])))[
        :_RECORDED_LINES
    ]
    rows = [
        f"{_quoted(f'{place.file}:{place.line} in {place.function}')} = {size}"
        for place, size in largest
        if size
    ]
    if not rows:
        return ""
    return (
        "\n[recorded.line]  # bytes at the peak, written by --update: shows which lines grew\n"
        + ("\n".join(rows) + "\n")
    )


def _quoted(text: str) -> str:
    """A TOML basic string."""
    escaped = "".join(
        f"\\{char}" if char in '"\\' else char if char.isprintable() else f"\\U{_scalar(char):08X}"
        for char in text
    )
    return f'"{escaped}"'


def _scalar(char: str) -> int:
    """The number of a character; a lone surrogate is none that TOML can hold."""
    number = ord(char)
    return 0xFFFD if 0xD800 <= number <= 0xDFFF else number
