"""A comparison of ranks as one page of HTML: no script, nothing loaded from anywhere, every name
escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vramlens.foreign_text import html_text
from vramlens.report.ranks.text import failed_words, headline
from vramlens.report.wording import place_name
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.ranks import Comparison, Difference, RankSummary

_MOST_ROWS, _MOST_STRIPS, _MOST_COLUMNS, _MOST_DIFFERENCES = 200, 128, 160, 50
_CELL, _ROW, _LABEL = 6, 14, 64
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
h1{font-size:1.35rem}h2{font-size:1.05rem;margin-top:2rem}table{border-collapse:collapse}
th,td{padding:.15rem .8rem;text-align:right;border-bottom:1px solid #dfe4ea}td.word,th.word{text-align:left}
tr.odd td{background:#fdf0e6}pre,code{font:13px ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
.fix{font-weight:600}.soft{color:#5c6773}svg text{font:11px ui-monospace,monospace;fill:#5c6773}
@media(prefers-color-scheme:dark){body{color:#e5e9ef;background:#161b22}th,td{border-color:#2d3540}
tr.odd td{background:#3a2a1c}.soft,svg text{color:#9aa5b1;fill:#9aa5b1}}
"""


def comparison_to_html(found: Comparison) -> str:
    """The comparison as a page of its own."""
    title = headline(found)
    body = [
        f"<h1>{_text(title)}</h1>",
        *(_difference(one) for one in found.differences[:_MOST_DIFFERENCES]),
        *_left_out(len(found.differences), _MOST_DIFFERENCES, "difference"),
        *_failures(found),
        *_strips(found),
        *_table(found),
        *(f'<p class="soft">note: {_text(note)}</p>' for note in found.notes),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _text(value: object) -> str:
    return html_text(str(value))


def _left_out(count: int, most: int, what: str) -> list[str]:
    if count <= most:
        return []
    return [
        f'<p class="soft">{counted(count - most, what)} more: vramlens ranks --json lists all</p>'
    ]


def _difference(one: Difference) -> str:
    place = (
        f" at {place_name(one.place)}" if one.place is not None and one.cause != "desync" else ""
    )
    evidence = "".join(f"<li><code>{_text(each)}</code></li>" for each in one.evidence)
    return (
        f"<h2>{_text(one.title[:1].upper() + one.title[1:])}{_text(place)}</h2>"
        f'<p class="soft">{_text(one.verdict)}: {_text(one.cause.replace("_", " "))}</p><ul>{evidence}</ul>'
        f'<p class="fix">Fix: {_text(one.fix)}</p>'
    )


def _failures(found: Comparison) -> Iterable[str]:
    failed = found.failures.failed
    if not failed:
        return
    clock = f" ({found.failures.clock})" if found.failures.clock else ""
    yield f"<h2>Failures, in order{_text(clock)}</h2><ol>"
    for one in failed[:_MOST_ROWS]:
        after = "" if one.after_s is None else f", {one.after_s:.1f} s after the first"
        where = f" at {place_name(one.place)}" if one.place else ""
        waits = f"; its last collective: {one.waiting_in}" if one.waiting_in else ""
        yield f"<li>{_text(f'rank {one.rank}{after}: {failed_words(one)}{where}{waits}')}</li>"
    yield "</ol>"
    yield from _left_out(len(failed), _MOST_ROWS, "rank")


def _strips(found: Comparison) -> Iterable[str]:
    """A row a rank, a column a step (or several): the fuller, the darker."""
    ranks = [one for one in found.ranks if len(one.step_peaks) > 1]
    if len(ranks) < 2:
        return
    shown = _worth_showing(found, ranks, _MOST_STRIPS)
    steps = max(len(one.step_peaks) for one in shown)
    wide = -(-steps // _MOST_COLUMNS)
    top, low = max(max(one.step_peaks) for one in shown), min(min(one.step_peaks) for one in shown)
    columns = -(-steps // wide)
    each = "one step a column" if wide == 1 else f"the highest of {wide} steps a column"
    scale = f"from {format_size(low)} (light) to {format_size(top)} (dark)"
    yield f'<h2>Peak of each step</h2><p class="soft">{each}; {scale}</p>'
    width, height = _LABEL + columns * _CELL, len(shown) * _ROW
    yield f'<svg width="{width}" height="{height}" role="img" aria-label="peak of each step, a row a rank">'
    for row, one in enumerate(shown):
        y = row * _ROW
        yield f'<text x="{_LABEL - 8}" y="{y + _ROW - 4}" text-anchor="end">{one.rank}</text>'
        for column in range(-(-len(one.step_peaks) // wide)):
            peak = max(one.step_peaks[column * wide : (column + 1) * wide])
            shade = round((peak - low) / max(1, top - low), 2)
            yield (
                f'<rect x="{_LABEL + column * _CELL}" y="{y}" width="{_CELL}" height="{_ROW - 1}" '
                f'fill="{_colour(shade)}">'
                f"<title>rank {one.rank}, step {column * wide}: {format_size(peak)}</title></rect>"
            )
    yield "</svg>"
    yield from _left_out(len(ranks), len(shown), "rank")


def _colour(share: float) -> str:
    light, dark = (222, 235, 247), (8, 48, 107)
    return "#" + "".join(
        f"{round(a + (b - a) * share):02x}" for a, b in zip(light, dark, strict=True)
    )


def _worth_showing(found: Comparison, ranks: Sequence[RankSummary], most: int) -> list[RankSummary]:
    odd = {rank for one in found.differences for rank in one.ranks}
    chosen = sorted(ranks, key=lambda one: (one.rank not in odd, -one.peak_requested_bytes))[:most]
    return sorted(chosen, key=lambda one: one.rank)


def _table(found: Comparison) -> Iterable[str]:
    if not found.ranks:
        return
    odd = {rank for one in found.differences for rank in one.ranks}
    what = "device" if found.by_device else "rank"
    heads = "".join(
        f"<th>{head}</th>" for head in (what, "requested peak", "reserved peak", "GPU", "steps")
    )
    yield f'<h2>{what.capitalize()}s</h2><table><tr>{heads}<th class="word">recording</th></tr>'
    shown = _worth_showing(found, found.ranks, _MOST_ROWS)
    for one in shown:
        cells = (
            one.rank,
            format_size(one.peak_requested_bytes),
            format_size(one.peak_reserved_bytes),
            one.device if one.device >= 0 else "-",
            f"{len(one.step_peaks):,}",
        )
        mark = ' class="odd"' if one.rank in odd else ""
        row = "".join(f"<td>{_text(cell)}</td>" for cell in cells)
        yield f'<tr{mark}>{row}<td class="word"><code>{_text(one.source)}</code></td></tr>'
    yield "</table>"
    yield from _left_out(len(found.ranks), len(shown), what)
