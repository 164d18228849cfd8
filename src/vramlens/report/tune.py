"""A tuning as text for a terminal: the setting to use first, then all that were tried, then the line to paste."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from vramlens.report.layout import Layout
from vramlens.report.replay import (
    HEADER,
    conf_name,
    missing_lines,
    next_lines,
    proof_sentence,
    quoted,
    row_cells,
    show,
    table,
    why_lines,
)
from vramlens.report.wording import visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.replay import Card, Tuned, Tuning

_TITLE = "bold"
_SCREEN_LINES = 24
_ROWS = 9
_LEAST_ROWS = 4


def render_tuning(tuning: Tuning, console: Console, *, whole: bool = False) -> None:
    """Prints the answer of ``vramlens tune``; it fits 24 lines unless ``whole`` or the terminal has more."""
    layout = Layout(console.width, ascii_only=not console.encoding.startswith("utf"))
    room = max(_SCREEN_LINES, console.height - 1) if console.is_terminal else _SCREEN_LINES
    rows = len(tuning.tried) if whole else _ROWS
    lines = _lines(tuning, layout, rows)
    while not whole and len(lines) > room and rows > _LEAST_ROWS:
        rows -= 1
        lines = _lines(tuning, layout, rows)
    show(console, lines)


def _lines(tuning: Tuning, layout: Layout, rows: int) -> list[Text]:
    return [
        *(Text(line, style=_TITLE) for line in layout.wrap(_headline(tuning))),
        *(Text(line) for line in layout.wrap(proof_sentence(tuning.recorded))),
        Text(""),
        *_table(tuning, layout, rows),
        Text(""),
        *_next(tuning, layout),
    ]


def _headline(tuning: Tuning) -> str:
    base, best = tuning.baseline, tuning.best
    under = f" under {format_size(base.cap_bytes)}" if base.cap_bytes is not None else ""
    if best is None:
        if base.oom is not False:
            return f"No setting helps for sure{under}: the run surely lives with none of {len(tuning.tried)}."
        return (
            f"No setting is worth a change{under}: the recorded one reserves {format_size(base.peak_reserved_bytes)},"
            f" and none of {len(tuning.tried) - 1} others would save 2 % for sure."
        )
    row = best.row
    name = conf_name(row)
    if base.oom is not False:
        lived = "gets past the failure that ended it" if row.past_failure else "lives"
        recorded = "out of memory" if base.oom else "perhaps out of memory"
        return (
            f"Use {name}: the run {lived}{under}, with {format_size(row.peak_reserved_bytes)} reserved; with the"
            f" recorded settings it is {recorded}."
        )
    return (
        f"Use {name}: {format_size(row.peak_reserved_bytes)} reserved at the peak{under} instead of"
        f" {format_size(base.peak_reserved_bytes)}, {format_size(best.saved_bytes)} less."
    )


def _table(tuning: Tuning, layout: Layout, rows: int) -> Iterator[Text]:
    kept = _kept(tuning, rows)
    sizes = [card.size_bytes for card in tuning.tried[0].cards]
    header = HEADER
    if sizes:
        header = ["peak reserved", "retries", *(f"on {_card(size)}" for size in sizes), "smallest card", "setting"]
    cells = []
    for one in kept:
        name = conf_name(one.row) + (" (recorded)" if one.row.settings == tuning.baseline.settings else "")
        figures = row_cells(one.row, tuning.baseline.peak_reserved_bytes)
        if sizes:
            smallest = _card(one.smallest_card) if one.smallest_card is not None else "none of them"
            figures = [figures[0], figures[2], *(_fit(card) for card in one.cards), smallest]
        cells.append([*figures, name])
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


def _kept(tuning: Tuning, rows: int) -> list[Tuned]:
    """The best rows, the recorded settings, and the worst: common advice that makes it worse should be seen."""
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
        saved = f"for {format_size(best.saved_bytes)} less" if best.saved_bytes > 0 else "to get past the failure"
        yield from next_lines(
            f"run it so, {saved}", f"export {tuning.variable}={visible(best.row.settings.conf)}", layout
        )
    else:
        yield from next_lines("what holds the memory", f"vramlens explain {quoted(tuning.source)}", layout)
