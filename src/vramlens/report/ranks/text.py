"""A comparison of ranks as text: the verdict, the ranks, what differs and why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from vramlens.report.layout import Layout
from vramlens.report.screen import layout_of, next_lines, show
from vramlens.report.wording import place_name, quoted, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.analyses.finding import Finding
    from vramlens.ranks import Comparison, Difference, RankSummary
    from vramlens.ranks.failures import FailedRank
    from vramlens.trace.flight import FlightRecord

_TITLE = "bold"
_MOST_ROWS = 8
_MOST_STRIPS = 16
_MOST_DIFFERENCES = 6
_WIDEST_STRIP = 48
_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", ".:-=+*#@"
_MOST_MISSING = 12
_LONGEST_ERROR = 160
_WIDTH_OF_TABLE = 64  # with a remark


def render_comparison(found: Comparison, console: Console) -> None:
    """Prints the answer of ``vramlens ranks``."""
    layout = layout_of(console)
    lines = [Text(line, style=_TITLE) for line in layout.wrap(headline(found))]
    for number, one in enumerate(found.differences[:_MOST_DIFFERENCES]):
        lines += _difference(one, layout, told=number == 0)
    for leak in found.shared[: _MOST_DIFFERENCES if found.differences else 1]:
        lines += _shared(leak, layout, told=not found.differences and not found.failures.failed)
    if len(found.differences) > _MOST_DIFFERENCES:
        lines.append(Text(f"  {len(found.differences) - _MOST_DIFFERENCES} more: --json lists all"))
    utf8 = console.encoding.startswith("utf")
    lines += [
        *_failures(found, layout),
        *_table(found, layout),
        *_strips(found, layout, utf8),
        *_communication(found, layout),
    ]
    for note in found.notes:
        lines += [Text(line) for line in layout.wrap(visible(note), first="note: ")]
    lines += [Text(), *_next(found, layout)]
    show(console, lines)


def headline(found: Comparison) -> str:
    """The answer in one sentence."""
    what = "device" if found.by_device else "rank"
    missing = ""
    if found.missing:
        named = ", ".join(map(str, found.missing[:_MOST_MISSING])) + (
            f" and {len(found.missing) - _MOST_MISSING} more"
            if len(found.missing) > _MOST_MISSING
            else ""
        )
        missing = f"; nothing of rank{'s' if len(found.missing) > 1 else ''} {named}"
    count = max(len(found.ranks), len(found.flights))
    if found.differences:
        worst = found.differences[0]
        place = (
            f" at {place_name(worst.place)}"
            if worst.place is not None and worst.cause != "desync"
            else ""
        )
        title = worst.title[:1].upper() + worst.title[1:]
        return f"{title}{place}{missing}."
    if found.failures.failed:
        first = found.failures.failed[0]
        where = f" at {place_name(first.place)}" if first.place else ""
        rest = "; no rank holds more than its peers" if found.ranks else ""
        return f"Rank {first.rank} {failed_words(first, 'first')}{where}{rest}{missing}."
    if found.shared and not found.by_device:
        leak = found.shared[0]
        where = f" at {place_name(leak.place)}" if leak.place else ""
        return f"{visible(leak.title)}{where}{missing}."
    if not found.ranks and len(found.flights) == 1:
        return _one_flight(*next(iter(found.flights.items())))
    if count < 2:
        return f"One {what} alone: there is nothing to compare it with{missing}."
    peaks = [one.peak_requested_bytes for one in found.ranks]
    if not peaks:
        return f"The flight records of {count} ranks agree on every collective that all of them hold{missing}."
    if len(found.strangers) == len(found.ranks):
        return f"Cannot compare: the {count} recordings look like different programs{missing}."
    low, high = format_size(min(peaks)), format_size(max(peaks))
    alike = f"{'both' if len(peaks) == 2 else 'all'} peak at {high}"
    spread = alike if low == high else f"peaks from {low} to {high}"
    return f"Nothing worth acting on: {count} {what}s, {spread}{missing}."


def _one_flight(rank: int, flight: FlightRecord) -> str:
    """What a flight record tells by itself: the call that did not end, else the last one."""
    pending = [one for one in flight.collectives if one.state != "completed"]
    if not flight.collectives:
        return f"Rank {rank} had called no collective."
    last = pending[0] if pending else flight.collectives[-1]
    where = f" at {last.user_frame.file}:{last.user_frame.line}" if last.user_frame else ""
    group = f" of group {visible(last.group)}" + (
        f" ({visible(last.description)})" if last.description else ""
    )
    what = f"{visible(last.name)}, number {last.seq}{group}{visible(where)}"
    calls = counted(len(flight.collectives), "call")
    if pending:
        return f"Rank {rank} waits in {what}: {last.state}, not completed; name the other ranks' records to see why."
    return f"Rank {rank}: all {calls} in the record completed; the last is {what}."


def _difference(one: Difference, layout: Layout, *, told: bool) -> list[Text]:
    """A difference; ``told``: the headline has said what it is."""
    lines: list[Text] = []
    if not told:
        place = (
            f" at {place_name(one.place)}"
            if one.place is not None and one.cause != "desync"
            else ""
        )
        title = visible(one.title[:1].upper() + one.title[1:])
        lines = [Text(), *(Text(line, style=_TITLE) for line in layout.wrap(f"{title}{place}."))]
    for each in (f"{one.verdict}: {one.cause.replace('_', ' ')}", *one.evidence):
        lines += [Text(line) for line in layout.wrap(visible(each), first="  ")]
    return lines + [
        Text(line, style=_TITLE) for line in layout.wrap(visible(one.fix), first="  Fix: ")
    ]


def _shared(leak: Finding, layout: Layout, *, told: bool) -> list[Text]:
    """A leak of most ranks; ``told``: the headline has said what it is."""
    lines: list[Text] = []
    if not told:
        place = f" at {place_name(leak.place)}" if leak.place is not None else ""
        lines = [
            Text(),
            *(Text(line, style=_TITLE) for line in layout.wrap(f"{visible(leak.title)}{place}.")),
        ]
    for text in (f"{leak.verdict}: leak on most ranks", *leak.evidence):
        lines += [Text(line) for line in layout.wrap(visible(text), first="  ")]
    if leak.fix is not None:
        lines += [
            Text(line, style=_TITLE) for line in layout.wrap(visible(leak.fix), first="  Fix: ")
        ]
    return lines


def failed_words(one: FailedRank, when: str = "") -> str:
    """What happened to a rank."""
    if one.failure is not None:
        size = format_size(one.failure.requested_bytes)
        return (
            f"ran out of memory {when}, asking for {size}"
            if when
            else f"ran out of memory, asking for {size}"
        )
    message = (
        visible(one.error.message[:_LONGEST_ERROR]) if one.error is not None else "no reason told"
    )
    if one.follows:
        return f"followed: {message}"
    return f"failed {when}: {message}" if when else f"failed: {message}"


def _failures(found: Comparison, layout: Layout) -> list[Text]:
    failed = found.failures.failed
    if not failed:
        return []
    lines = [
        Text(),
        Text("Failures, in order" + (f" ({found.failures.clock})" if found.failures.clock else "")),
    ]
    for one in failed[:_MOST_ROWS]:
        after = (
            "first"
            if one is failed[0]
            else "later"
            if one.after_s is None
            else f"{one.after_s:.1f} s later"
        )
        where = f" at {place_name(one.place)}" if one.place else ""
        text = f"rank {one.rank}, {after}: {failed_words(one)}{where}"
        if one.waiting_in:
            text += f"; its last collective: {visible(one.waiting_in)}"
        lines += [Text(line) for line in layout.wrap(text, first="  ", rest="    ")]
    if len(failed) > _MOST_ROWS:
        lines.append(Text(f"  and {len(failed) - _MOST_ROWS} more"))
    return lines


def _table(found: Comparison, layout: Layout) -> list[Text]:
    """The ranks; of many, the ones that stand out and what is usual."""
    if not found.ranks:
        return []
    ranks = found.ranks
    odd = {rank for one in found.differences for rank in one.ranks}
    if len(ranks) > _MOST_ROWS:
        by_peak = sorted(ranks, key=lambda one: -one.peak_requested_bytes)
        chosen = [one for one in by_peak if one.rank in odd][: _MOST_ROWS - 3]
        middle = by_peak[len(by_peak) // 2]
        rest = [one for one in (by_peak[0], middle, by_peak[-1]) if one not in chosen]
        shown = sorted(
            {one.rank: one for one in (*chosen, *rest)}.values(),
            key=lambda one: -one.peak_requested_bytes,
        )
        names = {by_peak[0].rank: "highest", middle.rank: "median", by_peak[-1].rank: "lowest"}
    else:
        shown, names = list(ranks), {}
    what = "device" if found.by_device else "rank"
    is_narrow = layout.width < _WIDTH_OF_TABLE
    wide, second = (max(4, len(what)), 13) if is_narrow else (8, 14)
    head = f"{what:>{wide}}  requested peak  {'reserved peak':>{second}}  {'GPU':>4}  {'steps':>6}"
    lines = [Text(), Text(head, style=_TITLE)]
    for one in shown:
        remark = "differs" if one.rank in odd else names.get(one.rank, "")
        sizes = f"{format_size(one.peak_requested_bytes):>14}  {format_size(one.peak_reserved_bytes):>{second}}"
        device = str(one.device) if one.device >= 0 else "-"
        lines.append(
            Text(
                f"{one.rank:>{wide}}  {sizes}  {device:>4}  {len(one.step_peaks):>6,}  {remark}".rstrip()
            )
        )
    if len(shown) < len(ranks):
        said = f"{len(ranks) - len(shown)} more of {len(ranks)} are not shown; --json lists all"
        lines += [Text(line) for line in layout.wrap(said, first=" " * (wide + 2))]
    return lines


def _strips(found: Comparison, layout: Layout, utf8: bool) -> list[Text]:
    """Each rank's peak by step, as high as it is; of many ranks the highest and the odd ones."""
    ranks = [one for one in found.ranks if len(one.step_peaks) > 1]
    if len(ranks) < 2:
        return []
    odd = {rank for one in found.differences for rank in one.ranks}
    shown = sorted(ranks, key=lambda one: (one.rank not in odd, -one.peak_requested_bytes))[
        :_MOST_STRIPS
    ]
    shown.sort(key=lambda one: one.rank)
    top = max(max(one.step_peaks) for one in shown)
    steps = max(len(one.step_peaks) for one in shown)
    title = f"Peak of each step, {format_size(top)} at full height"
    if steps > _WIDEST_STRIP:
        title += f"; each column is the highest of {-(-steps // _WIDEST_STRIP)} steps"
    titles = [Text(line) for line in layout.wrap(title)]
    return [Text(), *titles, *(Text(f"{one.rank:>8}  {_strip(one, top, utf8)}") for one in shown)]


def _strip(one: RankSummary, top: int, utf8: bool) -> str:
    wide = -(-len(one.step_peaks) // _WIDEST_STRIP)
    columns = [max(one.step_peaks[at : at + wide]) for at in range(0, len(one.step_peaks), wide)]
    levels = _LEVELS if utf8 else _ASCII_LEVELS
    return "".join(
        levels[min(len(levels) - 1, value * len(levels) // max(1, top))] for value in columns
    )


def _communication(found: Comparison, layout: Layout) -> list[Text]:
    """What communication takes, where it was measured."""
    shares = [(one, dict(one.ledger)) for one in found.ranks if one.ledger]
    sizes = [ledger["nccl"] for _, ledger in shares if "nccl" in ledger]
    if not sizes:
        return []
    total = max(
        1, sum(sum(ledger.values()) - ledger.get("free", 0) for _, ledger in shares) // len(shares)
    )
    mean = sum(sizes) // len(sizes)
    text = f"NCCL's communicators take {format_size(mean)} a rank, {100 * mean / total:.0f} % of what is in use"
    return [Text(), *(Text(line) for line in layout.wrap(text))]


def _next(found: Comparison, layout: Layout) -> list[Text]:
    source = _worth_a_look(found)
    if source is None:
        command = (
            "torchrun --nproc-per-node GPUS --no-python vramlens run -o runs/r1 YOUR_SCRIPT.py"
        )
        return list(next_lines("record the ranks' memory, too", command, layout))
    name = quoted(source.source)
    device = f" --device {source.device}" if found.by_device else ""
    is_shared_leak = bool(found.shared) and not found.differences and not found.failures.failed
    is_own_leak = bool(found.differences) and found.differences[0].cause == "leak"
    if is_shared_leak or (is_own_leak and source.rank in found.differences[0].ranks):
        why, command = (
            f"what keeps the memory of rank {source.rank}",
            f"vramlens leaks {name}{device}",
        )
    else:
        why, command = (
            f"where the memory of rank {source.rank} is",
            f"vramlens explain {name}{device}",
        )
    return list(next_lines(why, command, layout))


def _worth_a_look(found: Comparison) -> RankSummary | None:
    wanted: Sequence[int] = ()
    if found.differences:
        wanted = found.differences[0].ranks
    elif found.failures.failed:
        wanted = (found.failures.failed[0].rank,)
    chosen = [one for one in found.ranks if one.rank in wanted] or list(found.ranks)
    return max(chosen, key=lambda one: one.peak_requested_bytes, default=None)
