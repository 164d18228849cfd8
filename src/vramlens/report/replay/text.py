"""A replay as text for a terminal: the answer first, then the proof, then the table and what to
do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from vramlens.report.layout import Layout, left, right
from vramlens.report.screen import layout_of, next_lines, show
from vramlens.report.wording import quoted, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.replay import Answer, Recorded, WhatIf

_TITLE = "bold"
_OWN_LINE = "      "


def render_answer(answer: Answer, console: Console) -> None:
    """Prints the answer of ``vramlens replay``."""
    layout = layout_of(console)
    show(console, [*_opening(answer, layout), *_evidence(answer, layout), *_advice(answer, layout)])


def conf_name(row: WhatIf) -> str:
    """The settings, as a person would name them."""
    return visible(row.settings.conf) or "default settings"


def _opening(answer: Answer, layout: Layout) -> list[Text]:
    others = [row for row in answer.what_if if not _is_recorded(answer, row)]
    headline = best_headline(answer, others) if others else proof_sentence(answer.recorded)
    lines = [Text(line, style=_TITLE) for line in layout.wrap(headline)]
    if others:
        lines += [Text(line) for line in layout.wrap(proof_sentence(answer.recorded))]
    return lines


def _is_recorded(answer: Answer, row: WhatIf) -> bool:
    return row.settings == answer.recorded.settings and row.cap_bytes == answer.recorded.limit.bytes


def best_headline(answer: Answer, rows: Sequence[WhatIf]) -> str:
    """The answer in one sentence: the best of some settings against what was recorded."""
    order = {False: 0, None: 1, True: 2}
    row = min(
        rows, key=lambda one: (not one.past_failure, order[one.oom], one.high_bytes, one.retries)
    )
    name = conf_name(row)
    under = under_limit(answer.recorded, row)
    if row.oom:
        return f"With {name} the run would have run out of memory{under}: {failure_words(answer, row)}."
    if row.past_failure:
        return (
            f"With {name} the run would have got past the failure that ended it{under}, with"
            f" {format_size(row.peak_reserved_bytes)} reserved; what would have come then is not recorded."
        )
    if row.oom is None:
        if row.failed_requests:
            return f"With {name} it cannot be told whether the run would have lived{under}: {failure_words(answer, row)}."
        return f"With {name} it cannot be told whether the run would have lived{under}: the orders that were tried differ."
    change = answer.recorded.peak_reserved_bytes - row.peak_reserved_bytes
    against = (
        f"{format_size(abs(change))} {'less' if change > 0 else 'more'} than recorded"
        if change
        else "as recorded"
    )
    return f"With {name} the run would have reserved {format_size(row.peak_reserved_bytes)} at its peak{under}: {against}."


def under_limit(recorded: Recorded, row: WhatIf) -> str:
    """What bounded a run, as the end of a sentence's part; an inferred limit is known only
    roughly.
    """
    if row.cap_bytes is None:
        return ""
    if recorded.limit.source == "inferred" and row.cap_bytes == recorded.limit.bytes:
        return " under the recorded run's limit"
    return f" under a limit of {format_size(row.cap_bytes)}"


def failure_words(answer: Answer, row: WhatIf) -> str:
    """Which request would have failed first."""
    where = answer.places.get(row.oom_event) if row.oom_event is not None else None
    size = format_size(row.failed_bytes or 0)
    at = f" at {visible(where)}" if where else ""
    many = (
        f", the first of {counted(row.failed_requests, 'failure')}"
        if row.failed_requests > 1
        else ""
    )
    return f"a request of {size}{at} fails (event {row.oom_event:,}{many})"


def proof_sentence(recorded: Recorded) -> str:
    """How far the replay under the recorded settings is exact."""
    if recorded.exact:
        came = "there was no segment event to match"
        if recorded.segment_events:
            came = f"all {counted(recorded.segment_events, 'segment event')} came in the recorded order"
        return (
            f"The replay is exact: all {counted(recorded.addresses, 'allocation')} got the recorded address and size,"
            f" and {came} (rules of PyTorch {recorded.version.name})."
        )
    found = recorded.first_difference
    sentence = (
        f"The replay under the recorded settings is not exact: {recorded.addresses_matched:,} of"
        f" {recorded.addresses:,} allocations got the recorded address."
    )
    if found is not None:
        sentence += (
            f" It first differs at event {found.event:,}: recorded is {found.recorded}, replayed {found.simulated};"
            f" {found.why}."
        )
    return sentence


def _evidence(answer: Answer, layout: Layout) -> Iterator[Text]:
    recorded = answer.recorded
    yield Text("")
    rows = [row for row in answer.what_if if not _is_recorded(answer, row)]
    name = visible(recorded.settings.conf) or "default settings"
    cells = [[*recorded_cells(answer), f"{name} (recorded)" if rows else name]]
    cells += [[*row_cells(row, recorded.peak_reserved_bytes), conf_name(row)] for row in rows]
    yield from table(HEADER, cells, layout)
    notes = [
        f"  at most {format_size(row.cap_bytes)} may be reserved"
        for row in rows[:1]
        if row.cap_bytes is not None
    ]
    limit = recorded.limit
    if limit.source == "inferred" and limit.bytes is not None:
        below = (
            f" and below {format_size(limit.below_bytes)}" if limit.below_bytes is not None else ""
        )
        notes.append(
            f"  the recorded run's limit is not in the recording: at least {format_size(limit.bytes)}{below}"
        )
    if recorded.private_pools:
        named = ", ".join(
            str(pool) if pool[0] >= 0 else "one that is gone" for pool in recorded.private_pools
        )
        notes.append(
            f"  private pools ({counted(len(recorded.private_pools), 'pool')}: {named}) are replayed apart"
        )
    yield from (Text(note) for note in notes)
    yield from why_lines(rows, layout)
    yield from missing_lines(answer.missing, layout)


def missing_lines(missing: Sequence[str], layout: Layout) -> Iterator[Text]:
    """What the recording does not hold."""
    if missing:
        yield from (
            Text(line) for line in layout.wrap("; ".join(missing) + ".", first="  missing: ")
        )


def recorded_cells(answer: Answer) -> list[str]:
    """The recorded run as the first row."""
    recorded = answer.recorded
    outcome = "out of memory" if answer.ended_by_failure else "lived"
    size = format_size(recorded.peak_reserved_bytes)
    return [size, "", f"{recorded.retries:,}", f"{recorded.failed_requests:,}", outcome, "recorded"]


def row_cells(row: WhatIf, recorded_bytes: int) -> list[str]:
    """Peak, change, retries, failed requests, outcome and confidence of one row."""
    change = row.peak_reserved_bytes - recorded_bytes
    return [
        size_range(row),
        f"{'+' if change > 0 else ''}{format_size(change)}" if change else "none",
        f"{row.retries:,}",
        f"{row.failed_requests:,}",
        outcome_words(row),
        row.confidence,
    ]


HEADER = ["peak reserved", "change", "retries", "failed", "outcome", "this is", "setting"]


def outcome_words(row: WhatIf) -> str:
    """What would have become of the program."""
    if row.past_failure:
        return "gets past it"
    return {False: "lives", True: "out of memory", None: "cannot tell"}[row.oom]


def size_range(row: WhatIf) -> str:
    """Peak reserved; its range where that is wider than what is printed."""
    low, middle, high = (
        format_size(size) for size in (row.low_bytes, row.peak_reserved_bytes, row.high_bytes)
    )
    if low == high:
        return middle
    number, unit = low.split(" ")
    return f"{number} to {high}" if high.endswith(unit) else f"{low} to {high}"


# What says nothing where every row says it.
_DULL = {"change": {""}, "retries": {"0"}, "failed": {"0"}, "outcome": {"lives", "lived"}}


def table(header: list[str], rows: list[list[str]], layout: Layout) -> Iterator[Text]:
    """A table: figures aligned to the right, words to the left, the setting last; dull columns are
    left out.

    A setting is there to be pasted, so it is never cut: what finds no room stands on a line of its
    own. Before that, what is the same in all rows leaves them for a line below the table.
    """
    columns = [
        column
        for column in zip(header, *rows, strict=True)
        if not set(column[1:]) <= _DULL.get(column[0], set())
    ]
    alike = [column for column in columns[1:-1] if len(rows) > 1 and len(set(column[1:])) == 1]
    fewer = [column for column in columns if column not in alike]
    if _without_room(fewer, layout) < _without_room(columns, layout):
        columns = fewer
    else:
        alike = []
    cells = _aligned(columns)
    used = _width(cells)
    for index, (*figures, name) in enumerate(zip(*cells, columns[-1], strict=True)):
        style = "" if index else "dim"
        if cell_len(name) <= layout.width - used:
            yield Text("  " + "  ".join((*figures, name)).rstrip(), style=style)
        else:
            yield Text("  " + "  ".join(figures).rstrip(), style=style)
            yield Text(f"{_OWN_LINE}{name}", style=style)
    if alike:
        same = ", ".join(f"{column[0]} {column[1]}" for column in alike)
        yield from (
            Text(line, style="dim") for line in layout.wrap(f"in each of these: {same}", first="  ")
        )


def _aligned(columns: Sequence[tuple[str, ...]]) -> list[list[str]]:
    """The cells of all columns but the last, each column as wide as its widest."""
    return [
        left(list(column))
        if column[0] in ("outcome", "this is", "smallest card")
        else right(list(column))
        for column in columns[:-1]
    ]


def _width(cells: list[list[str]]) -> int:
    return 2 + sum(cell_len(column[0]) + 2 for column in cells)


def _without_room(columns: Sequence[tuple[str, ...]], layout: Layout) -> int:
    """How many settings do not fit beside their figures."""
    room = layout.width - _width(_aligned(columns))
    return sum(cell_len(name) > room for name in columns[-1])


def why_lines(rows: Sequence[WhatIf], layout: Layout) -> Iterator[Text]:
    """What makes rows less than exact, each reason once."""
    for confidence in ("bounded", "conditional"):
        reasons = dict.fromkeys(
            why for row in rows if row.confidence == confidence for why in row.why
        )
        if reasons:
            yield from (
                Text(line)
                for line in layout.wrap("; ".join(reasons) + ".", first=f"  {confidence}: ")
            )


def _advice(answer: Answer, layout: Layout) -> Iterator[Text]:
    rows = [row for row in answer.what_if if not _is_recorded(answer, row)]
    better = [
        row
        for row in rows
        if row.settings != answer.recorded.settings
        and (
            row.past_failure
            or (row.oom is False and row.high_bytes < answer.recorded.peak_reserved_bytes)
        )
    ]
    yield Text("")
    if not better:
        yield from next_lines(
            "which settings are worth having", f"vramlens tune {quoted(answer.source)}", layout
        )
        return
    row = min(better, key=lambda one: (one.oom is None, one.high_bytes))
    saved = answer.recorded.peak_reserved_bytes - row.high_bytes
    gain = (
        "to get past the failure" if row.past_failure else f"for {format_size(saved)} less reserved"
    )
    yield from next_lines(f"run it so, {gain}", export_line(answer.variable, row), layout)


def export_line(variable: str, row: WhatIf) -> str:
    """The line to paste before a run."""
    from vramlens.replay.answer import assignment

    return f"export {visible(assignment(variable, row.settings.conf))}"
