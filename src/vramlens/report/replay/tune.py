"""A tuning as text for a terminal: the setting to use first, then all that were tried, then the
line to paste.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from vramlens.report.layout import Layout
from vramlens.report.replay.text import (
    HEADER,
    conf_name,
    export_line,
    missing_lines,
    proof_sentence,
    row_cells,
    size_range,
    table,
    under_limit,
    why_lines,
)
from vramlens.report.screen import layout_of, next_lines, room_of, show
from vramlens.report.wording import listed, quoted
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.replay import Card, Tuned, Tuning, WhatIf

_TITLE = "bold"
_ROWS = 9
_LEAST_ROWS = 3


def render_tuning(tuning: Tuning, console: Console, *, whole: bool = False) -> None:
    """Prints the answer of ``vramlens tune``; it fits 24 lines unless ``whole`` or the terminal
    has more.
    """
    layout = layout_of(console)
    room = room_of(console)
    rows = len(tuning.tried) if whole else _ROWS
    lines = _lines(tuning, layout, rows)
    while not whole and len(lines) > room and rows > _LEAST_ROWS:
        rows -= 1
        lines = _lines(tuning, layout, rows)
    show(console, lines)


def _lines(tuning: Tuning, layout: Layout, rows: int) -> list[Text]:
    return [
        *_opening(tuning, layout),
        *(Text(line) for line in layout.wrap(_floor_sentence(tuning))),
        *(Text(line) for line in layout.wrap(proof_sentence(tuning.recorded))),
        Text(""),
        *([] if _too_large(tuning) else [*_table(tuning, layout, rows), Text("")]),
        *_next(tuning, layout),
    ]


def _opening(tuning: Tuning, layout: Layout) -> Iterator[Text]:
    """The answer: on which card it fits, where that was asked; else, and then, which setting to
    use.
    """
    headline = _headline(tuning)
    if tuning.tried[0].cards:
        yield from (Text(line, style=_TITLE) for line in layout.wrap(_cards_headline(tuning)))
        yield from (Text(line) for line in layout.wrap(headline))
    else:
        yield from (Text(line, style=_TITLE) for line in layout.wrap(headline))


def _cards_headline(tuning: Tuning) -> str:
    """The smallest card, with the settings that the run had and with those that need less."""
    recorded = next(one for one in tuning.tried if one.row.settings == tuning.baseline.settings)
    fitting = [one for one in tuning.tried if one.smallest_card is not None]
    names = [_card(card.size_bytes) for card in recorded.cards]
    if not fitting:
        asked = (
            f"Does not surely fit a {names[0]} card"
            if len(names) == 1
            else f"Surely fits none of {listed(names)}"
        )
        return f"{asked}, with any of {len(tuning.tried)} settings."
    best = min(fitting, key=lambda one: one.smallest_card or 0)
    had = recorded.smallest_card
    if had is not None and had == best.smallest_card:
        return f"Fits a {_card(had)} card with the settings it had."
    instead = f"needs a {_card(had)} card" if had is not None else "fits none of them for sure"
    return (
        f"Fits a {_card(best.smallest_card or 0)} card with {conf_name(best.row)};"
        f" with the settings it had it {instead}."
    )


def _headline(tuning: Tuning) -> str:
    base, best = tuning.baseline, tuning.best
    under = under_limit(tuning.recorded, base)
    if best is None:
        if base.past_failure:
            return _passed(tuning)
        if size := _too_large(tuning):
            return f"No setting helps: one request of {format_size(size)} is above {format_size(base.cap_bytes or 0)}."
        if all(one.row.oom for one in tuning.tried):
            return f"No setting helps{under}: the run is out of memory with each of {len(tuning.tried)}."
        if base.oom is not False:
            return f"No setting helps for sure{under}: the run surely lives with none of {len(tuning.tried)}."
        return (
            f"No setting is worth a change{under}: the recorded one reserves {format_size(base.peak_reserved_bytes)},"
            f" and none of {len(tuning.tried) - 1} others would save 2 % for sure."
        )
    row = best.row
    name = conf_name(row)
    if base.oom is not False and not base.past_failure:
        lived = "gets past the failure that ended it" if row.past_failure else "lives"
        recorded = "out of memory" if base.oom else "perhaps out of memory"
        return (
            f"Use {name}: the run {lived}{under}, with {size_range(row)} reserved; with the"
            f" recorded settings it is {recorded}."
        )
    return (
        f"Use {name}: {format_size(row.peak_reserved_bytes)} reserved at the peak{under} instead of"
        f" {format_size(base.peak_reserved_bytes)}, {format_size(best.saved_bytes)} less"
        f"{'; both get past the failure that ended it' if base.past_failure else ''}."
    )


def _floor_sentence(tuning: Tuning) -> str:
    """What any allocator would have to reserve, and what that means under the limit."""
    floor = f"Any allocator would have to reserve {format_size(tuning.floor_bytes)}"
    if not tuning.no_setting_can_help:
        return f"{floor}: so much is alive at once."
    limit = format_size(tuning.baseline.cap_bytes or 0)
    return f"{floor}, more than {limit}: so much is alive at once, and no setting can help."


def _too_large(tuning: Tuning) -> int | None:
    """The request that alone is above the limit, where each setting fails at such a one: the
    rows say no more.
    """
    rows = [one.row for one in tuning.tried]
    if all(
        row.oom and row.cap_bytes is not None and (row.failed_bytes or 0) > row.cap_bytes
        for row in rows
    ):
        return tuning.baseline.failed_bytes
    return None


def _passed(tuning: Tuning) -> str:
    """The recorded settings get past the failure already, with more memory than the run had."""
    base = tuning.baseline
    given = (
        f"With {format_size(base.cap_bytes)}" if base.cap_bytes is not None else "Without a limit"
    )
    past = sum(one.row.past_failure for one in tuning.tried)
    settings = (
        "any setting" if past == len(tuning.tried) else f"{past} of {len(tuning.tried)} settings"
    )
    recorded = "" if past == len(tuning.tried) else ", the recorded one among them"
    return f"{given} the failure is passed under {settings}{recorded}; what comes later is not recorded."


def _table(tuning: Tuning, layout: Layout, rows: int) -> Iterator[Text]:
    kept = _kept(tuning, rows)
    sizes = [card.size_bytes for card in tuning.tried[0].cards]
    header = HEADER
    if sizes:
        header = [
            "peak reserved",
            "retries",
            *(f"on {_card(size)}" for size in sizes),
            "smallest card",
            "setting",
        ]
    cells = []
    for one in kept:
        name = conf_name(one.row) + (
            " (recorded)" if one.row.settings == tuning.baseline.settings else ""
        )
        figures = row_cells(one.row, tuning.baseline.peak_reserved_bytes)
        if sizes:
            smallest = _card(one.smallest_card) if one.smallest_card is not None else "none of them"
            figures = [figures[0], figures[2], *(_fit(card) for card in one.cards), smallest]
        cells.append([*figures, name])
    if sizes and _is_too_wide([header, *cells], layout):  # the smallest card says most of it
        header, *cells = ([*row[:2], *row[-2:]] for row in (header, *cells))
    yield from table(header, cells, layout)
    if hidden := len(tuning.tried) - len(kept):
        yield Text(f"  {layout.ellipsis} and {counted(hidden, 'other')}: --all shows them")
    if tuning.inert:
        yield from (
            Text(line)
            for line in layout.wrap(
                "garbage_collection_threshold does nothing without a limit on the process (--cap), so it was left out.",
                first="  ",
            )
        )
    if sizes:
        outside = tuning.outside_bytes
        said = (
            f"Of each card {format_size(outside)} are taken off: what the process held outside PyTorch's allocator."
            if outside is not None
            else "What lies outside PyTorch's allocator (often 0.5 to 1 GiB) is not in the recording: not taken off."
        )
        yield from (Text(line) for line in layout.wrap(said, first="  "))
    yield from why_lines([one.row for one in kept], layout)
    yield from missing_lines(tuning.missing, layout)


def _is_too_wide(rows: list[list[str]], layout: Layout) -> bool:
    """Whether the figures alone, which are never cut, find no room."""
    figures = list(zip(*rows, strict=True))[:-1]
    return sum(max(map(len, column)) + 2 for column in figures) > layout.width


def _kept(tuning: Tuning, rows: int) -> list[Tuned]:
    """The best rows, the recorded settings, and the worst: common advice that makes it worse
    should be seen.
    """
    tried = list(tuning.tried)
    if len(tried) <= rows:
        return tried
    recorded = [one for one in tried if one.row.settings == tuning.baseline.settings]
    kept = tried[: rows - 2]
    kept += [one for one in recorded if one not in kept]
    return kept + [one for one in tried[-(rows - len(kept)) :] if one not in kept]


def _card(size: int) -> str:
    return format_size(size).replace(".00", "")


def _fit(card: Card) -> str:
    if card.fits is None:
        return "perhaps"
    if not card.fits:
        return "no"
    return f"yes, {counted(card.row.retries, 'retry', 'retries')}" if card.row.retries else "yes"


def _next(tuning: Tuning, layout: Layout) -> Iterator[Text]:
    best = tuning.best
    if best is not None:
        gain = f"for {format_size(best.saved_bytes)} less"
        if tuning.baseline.oom is not False and not tuning.baseline.past_failure:
            gain = "to get past the failure" if best.row.past_failure else "to live"
        yield from next_lines(f"run it so, {gain}", export_line(tuning.variable, best.row), layout)
    elif tuning.baseline.past_failure:
        cap = tuning.baseline.cap_bytes
        more = f"give it {format_size(cap)}" if cap is not None else "give it more than it had"
        yield from next_lines(
            f"{more} and record what comes then", "vramlens run -o run.vram YOUR_SCRIPT.py", layout
        )
    elif tuning.ended_by_failure:  # explain has said this already, and sends people here
        yield from next_lines(
            _needs(tuning.baseline), f"vramlens view {quoted(tuning.source)}", layout
        )
    else:
        yield from next_lines(
            "what holds the memory", f"vramlens explain {quoted(tuning.source)}", layout
        )


def _needs(base: WhatIf) -> str:
    """What would get past a failure that no setting avoids."""
    if not base.oom or base.failed_bytes is None:
        return "give it more, or see what to shrink"
    return f"give it {format_size(base.peak_reserved_bytes + base.failed_bytes)}, or see what to shrink"
