"""A comparison of ranks as one page of HTML: no script, nothing loaded from anywhere, every name
escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vramlens.foreign_text import html_text
from vramlens.report.html import page_of
from vramlens.report.ranks.story import (
    difference_title,
    failed_words,
    headline,
    how_sure,
    how_sure_of_shared,
    odd_ranks,
    shared_title,
    telling_ranks,
)
from vramlens.report.wording import and_more, at_place
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.finding import Finding
    from vramlens.ranks import Comparison, RankDifference, RankSummary
    from vramlens.ranks.rank_failures import FailedRank

_MOST_ROWS, _MOST_STRIPS, _MOST_COLUMNS, _MOST_DIFFERENCES = 200, 128, 160, 50
_CELL, _ROW, _LABEL = 6, 14, 64
_FIGURES = ("peak requested", "peak reserved", "GPU", "steps")
_HEADS = '<table><tr>{heads}<th class="word">recording</th></tr>'
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
h1{font-size:1.35rem}h2{font-size:1.05rem;margin-top:2rem}table{border-collapse:collapse}
th,td{padding:.15rem .8rem;text-align:right;border-bottom:1px solid #dfe4ea}td.word,th.word{text-align:left}
tr.odd td{background:#fdf0e6}pre,code{font:13px ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
.fix{font-weight:600}.soft{color:#5c6773}svg text{font:11px ui-monospace,monospace;fill:#5c6773}
@media(prefers-color-scheme:dark){body{color:#e5e9ef;background:#161b22}th,td{border-color:#2d3540}
tr.odd td{background:#3a2a1c}.soft,svg text{color:#9aa5b1;fill:#9aa5b1}}
"""


def comparison_to_html(comparison: Comparison) -> str:
    """The comparison as a page of its own."""
    title = headline(comparison)
    body = [
        f"<h1>{_text(title)}</h1>",
        *map(_difference, comparison.differences[:_MOST_DIFFERENCES]),
        *_left_out(len(comparison.differences), _MOST_DIFFERENCES, "difference"),
        *map(_shared, comparison.shared[:_MOST_DIFFERENCES]),
        *(_recordings(comparison) if comparison.is_no_job else _ranks(comparison)),
        *(f'<p class="soft">note: {_text(note)}</p>' for note in comparison.notes),
    ]
    return page_of(title, _STYLE, body, viewport="width=device-width")


def _ranks(comparison: Comparison) -> Iterator[str]:
    yield from _failures(comparison)
    yield from _strips(comparison)
    yield from _table(comparison)


def _recordings(comparison: Comparison) -> Iterator[str]:
    """Yields recordings that are not of a job, by their names: none of them is a rank."""
    yield _HEADS.format(heads=_heads(_FIGURES))
    for recording in comparison.ranks[:_MOST_ROWS]:
        yield f"<tr>{_cells(recording)}</tr>"
    yield "</table>"
    yield from _left_out(len(comparison.ranks), _MOST_ROWS, "recording")


def _text(words: object) -> str:
    return html_text(str(words))


def _left_out(count: int, most: int, noun: str) -> Iterator[str]:
    if count > most:
        yield f'<p class="soft">{and_more(count - most, noun, "vramlens ranks --json")}</p>'


def _difference(difference: RankDifference) -> str:
    sureness = how_sure(difference.verdict)
    return _claim(difference_title(difference), sureness, difference.evidence, difference.fix)


def _shared(trouble: Finding) -> str:
    return _claim(shared_title(trouble), how_sure_of_shared(trouble), trouble.evidence, trouble.fix)


def _claim(title: str, sureness: str, evidence: Iterable[str], fix: str | None) -> str:
    items = "".join(f"<li><code>{_text(words)}</code></li>" for words in evidence)
    advice = "" if fix is None else f'<p class="fix">Fix: {_text(fix)}</p>'
    return f'<h2>{_text(title)}</h2><p class="soft">{_text(sureness)}</p><ul>{items}</ul>{advice}'


def _failures(comparison: Comparison) -> Iterator[str]:
    failed, clock = comparison.failures.failed, comparison.failures.clock
    if not failed:
        return
    title = f"Failures, in order ({clock})" if clock else "Failures, in order"
    yield f"<h2>{_text(title)}</h2><ol>"
    yield from (f"<li>{_text(_failure_words(rank))}</li>" for rank in failed[:_MOST_ROWS])
    yield "</ol>"
    yield from _left_out(len(failed), _MOST_ROWS, "rank")


def _failure_words(rank: FailedRank) -> str:
    after = "" if rank.after_s is None else f", {rank.after_s:.1f} s after the first"
    waits = f"; its last collective: {rank.waiting_in}" if rank.waiting_in else ""
    return f"rank {rank.rank}{after}: {failed_words(rank)}{at_place(rank.place)}{waits}"


def _strips(comparison: Comparison) -> Iterator[str]:
    """Yields a row a rank, a column a step (or several): the fuller, the darker."""
    ranks = [rank for rank in comparison.ranks if len(rank.step_peaks) > 1]
    if len(ranks) < 2:
        return
    listed = telling_ranks(comparison, ranks, _MOST_STRIPS)
    steps = max(len(rank.step_peaks) for rank in listed)
    steps_by_column = -(-steps // _MOST_COLUMNS)
    low = min(min(rank.step_peaks) for rank in listed)
    high = max(max(rank.step_peaks) for rank in listed)
    columns = "one column per step"
    if steps_by_column > 1:
        columns = f"each column is the highest of {steps_by_column} steps"
    scale = f"from {format_size(low)} (light) to {format_size(high)} (dark)"
    yield f'<h2>Peak of each step</h2><p class="soft">{columns}; {scale}</p>'
    width, height = _LABEL + -(-steps // steps_by_column) * _CELL, len(listed) * _ROW
    yield (
        f'<svg width="{width}" height="{height}" role="img"'
        ' aria-label="peak of each step, one row per rank">'
    )
    for row, rank in enumerate(listed):
        y = row * _ROW
        label = f'x="{_LABEL - 8}" y="{y + _ROW - 4}" text-anchor="end"'
        yield f"<text {label}>{rank.rank}</text>"
        for first_step in range(0, len(rank.step_peaks), steps_by_column):
            peak = max(rank.step_peaks[first_step : first_step + steps_by_column])
            shade = round((peak - low) / max(1, high - low), 2)
            x = _LABEL + first_step // steps_by_column * _CELL
            yield (
                f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_ROW - 1}" '
                f'fill="{_colour(shade)}">'
                f"<title>rank {rank.rank}, step {first_step}: {format_size(peak)}</title></rect>"
            )
    yield "</svg>"
    yield from _left_out(len(ranks), len(listed), "rank")


def _colour(share: float) -> str:
    light, dark = (222, 235, 247), (8, 48, 107)
    parts = (round(a + (b - a) * share) for a, b in zip(light, dark, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


def _table(comparison: Comparison) -> Iterator[str]:
    if not comparison.ranks:
        return
    odd = odd_ranks(comparison)
    noun = "device" if comparison.by_device else "rank"
    yield f"<h2>{noun.capitalize()}s</h2>" + _HEADS.format(heads=_heads((noun, *_FIGURES)))
    listed = telling_ranks(comparison, comparison.ranks, _MOST_ROWS)
    for rank in listed:
        yield _row(rank, is_odd=rank.rank in odd)
    yield "</table>"
    yield from _left_out(len(comparison.ranks), len(listed), noun)


def _row(rank: RankSummary, *, is_odd: bool) -> str:
    mark = ' class="odd"' if is_odd else ""
    return f"<tr{mark}><td>{rank.rank}</td>{_cells(rank)}</tr>"


def _heads(names: Iterable[str]) -> str:
    return "".join(f"<th>{name}</th>" for name in names)


def _cells(rank: RankSummary) -> str:
    """The cells of ``_FIGURES``, and the recording's."""
    figures = (
        format_size(rank.peak_requested_bytes),
        format_size(rank.peak_reserved_bytes),
        rank.device if rank.device >= 0 else "-",
        f"{len(rank.step_peaks):,}",
    )
    cells = "".join(f"<td>{_text(figure)}</td>" for figure in figures)
    return f'{cells}<td class="word"><code>{_text(rank.source)}</code></td>'
