"""The story of a tuning: the setting to use first, then all that were tried, then the line to
paste.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.analyses.undecided_run import decisions_sentence
from vramlens.ground.verdict import Confidence
from vramlens.report.document import (
    Blank,
    Command,
    Cut,
    Document,
    Fit,
    Heading,
    Part,
    Sentences,
    Table,
    alternatives,
    cut_whole,
)
from vramlens.report.replay.card_words import a_card, card_words, cards_headline, legend_of
from vramlens.report.replay.story import (
    FAILS,
    HEADER,
    STEP_LEGEND,
    aside,
    conf_name,
    export_line,
    missing_parts,
    origin_word,
    own_settings,
    proof_sentence,
    row_cells,
    settings_table,
    size_range,
    step_cells,
    under_limit,
    why_parts,
)
from vramlens.report.wording import and_more, quoted, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.failure.need import LimitAdvice
    from vramlens.replay import CardUnderSetting, Tuned, Tuning, WhatIf

_ROWS = 9
_LEAST_ROWS = 3
# Before and after the rows of the table.
_CUT_FAILED_ROWS, _CUT_EXACT, _CUT_FLOOR, _CUT_OUTCOMES = 0, 49, 50, 51


def tuning_document(tuning: Tuning, *, all_rows: bool = False) -> Document:
    """The answer of ``vramlens tune`` in parts; unless all rows are asked for, they go first where
    there is little room.
    """
    counts = [len(tuning.tried)] if all_rows else range(_ROWS, _LEAST_ROWS - 1, -1)
    tables = [list(_table_parts(tuning, count)) for count in counts]
    return Document(
        (
            *_opening(tuning),
            Sentences((_floor_sentence(tuning),), cuts=cut_whole(_CUT_FLOOR)),
            Sentences((proof_sentence(tuning.recorded),)),
            *_decisions(tuning),
            Blank(),
            *([] if _too_large(tuning) else alternatives(tables)),
            *_words_of_failed_rows(tuning),
            Blank(),
            _next(tuning),
        ),
        Fit.NOWHERE if all_rows else Fit.EVERYWHERE,
    )


def _decisions(tuning: Tuning) -> Iterator[Part]:
    """Yields what made-up numbers decide, where they do."""
    if tuning.decisions is not None:
        yield Sentences((visible(decisions_sentence(tuning.decisions)),))


def _opening(tuning: Tuning) -> Iterator[Part]:
    """The answer: on which card it fits, where that was asked; else, and then, which setting to
    use, unless it is the one that the card needs.
    """
    if not tuning.tried[0].cards:
        yield Heading(_headline(tuning))
        return
    yield Heading(cards_headline(tuning))
    if tuning.card_of_best is None:
        yield Sentences((_headline(tuning),))


def _headline(tuning: Tuning) -> str:
    """Which setting to use, or why none."""
    base, best = tuning.baseline, tuning.best
    if best is None:
        return _no_help(tuning)
    under = under_limit(tuning.recorded, base)
    use = f"Use {conf_name(best.row)}:"
    if tuning.ended_by_failure and not base.past_failure:
        return _of_failed_step(best, under)
    if base.oom is not False and not base.past_failure:
        fails = "runs out of memory" if base.oom else "may run out of memory"
        return (
            f"{use} the run completes{under}, with {size_range(best.row)} reserved."
            f" With {own_settings(tuning.recorded)} it {fails}."
        )
    past = ". Both get past the failure" if base.past_failure else ""
    peak, before = format_size(best.row.peak_reserved_bytes), format_size(base.peak_reserved_bytes)
    saved = format_size(best.saved_bytes)
    return f"{use} the peak is {peak} reserved{under} instead of {before} ({saved} less){past}."


def _of_failed_step(best: Tuned, under: str) -> str:
    """What the best setting does to the step that failed: it finishes, or it may."""
    name = conf_name(best.row)
    if best.step_peak_bytes is not None:
        reserved = format_size(best.step_peak_bytes)
        return (
            f"Use {name}: the step that failed finishes{under}, with {reserved} reserved."
            " With the recorded settings it runs out of memory."
        )
    return (
        f"{name} may help: it gets past the failed request{under}, with {size_range(best.row)}"
        " reserved, but may not be enough for what comes next."
    )


def _no_help(tuning: Tuning) -> str:
    """Why no setting is worth a change."""
    base, count = tuning.baseline, len(tuning.tried)
    if tuning.leaked_per_step is not None:
        growth = format_size(tuning.leaked_per_step)
        return f"This run leaks {growth} per step; no setting or limit helps for long."
    if tuning.past_request_only is not None:
        return (
            f"{conf_name(tuning.past_request_only.row)} gets past this request only; the step still"
            " fails later (`vramlens explain` says why)."
        )
    if base.past_failure:
        return _passed(tuning)
    too_large = _too_large(tuning)
    if too_large:
        cap = format_size(base.cap_bytes or 0)
        return f"No setting helps: a single request for {format_size(too_large)} exceeds {cap}."
    under = under_limit(tuning.recorded, base)
    if all(tuned.fails for tuned in tuning.tried):
        return f"No setting helps{under}: the run fails with all {count} settings tried."
    if base.oom is not False:
        return f"None of the {count} settings tried is certain to avoid this failure{under}."
    return (
        f"Keep {own_settings(tuning.recorded)}{under}: they reserve"
        f" {format_size(base.peak_reserved_bytes)}, and none of {count - 1} others is certain to"
        " save 2% or more."
    )


def _floor_sentence(tuning: Tuning) -> str:
    """What any allocator would have to reserve, and what that means under the limit."""
    floor = format_size(tuning.floor_bytes)
    ended = tuning.ended_by_failure
    peak_words = "predicted peak" if tuning.recorded.is_prediction else "peak"
    basis = "the failed request included" if ended else f"the {peak_words} of requested bytes"
    words = f"Any allocator must reserve at least {floor}, {basis}."
    if tuning.decisions is not None:
        words = f"If made-up numbers decide as predicted, a{words[1:]}"
    if tuning.no_setting_can_help:
        limit = format_size(tuning.capacity_bytes or 0)
        words += f" That exceeds {limit}, so no setting can help."
    return words


def _too_large(tuning: Tuning) -> int | None:
    """The request that alone is above the limit, where each setting fails at such a one: the
    rows say no more.
    """
    rows = [tuned.row for tuned in tuning.tried]
    if all(
        row.oom and row.cap_bytes is not None and (row.failed_bytes or 0) > row.cap_bytes
        for row in rows
    ):
        return tuning.baseline.failed_bytes
    return None


def _passed(tuning: Tuning) -> str:
    """The recorded settings get past the failure already, with more memory than the run had."""
    base = tuning.baseline
    under_limit = (
        f"With {format_size(base.cap_bytes)}" if base.cap_bytes is not None else "Without a limit"
    )
    past = sum(tuned.row.past_failure for tuned in tuning.tried)
    settings = (
        "any setting" if past == len(tuning.tried) else f"{past} of {len(tuning.tried)} settings"
    )
    recorded = "" if past == len(tuning.tried) else ", including the recorded one"
    return (
        f"{under_limit}, the run gets past the failure with {settings}{recorded}. What comes later"
        " is not recorded."
    )


def _table_parts(tuning: Tuning, count: int) -> Iterator[Part]:
    """Yields the settings that were tried, and what has to be known of them."""
    listed_rows = _listed_rows(tuning, count)
    shown = [tuned.row for tuned in listed_rows]
    has_cards = bool(tuning.tried[0].cards)
    if has_cards:
        yield _card_table(tuning, listed_rows)
    else:
        table = settings_table(HEADER, [_row(tuning, tuned) for tuned in listed_rows])
        yield replace(table, legend=STEP_LEGEND, cuts=(Cut(_CUT_OUTCOMES, {"legend": ()}),))
    hidden = len(tuning.tried) - len(listed_rows)
    if hidden:
        yield aside(and_more(hidden, "setting", "--all"))
    if tuning.inert:
        yield aside(_INERT)
    if has_cards and _exceeds_a_card(listed_rows):
        yield aside(_MEANING_OF_PEAK)
    if has_cards and tuning.outside_bytes is not None:
        yield aside(_outside_words(tuning.outside_bytes))
    if any(map(_is_above_limit, shown)):
        yield aside(_ABOVE_LIMIT)
    if not has_cards:  # the table of cards has no column for it
        yield from _asides_on_certainty(shown)
    yield from missing_parts(tuning.missing)


_INERT = (
    "garbage_collection_threshold has no effect without a process limit (--cap), so it was not"
    " tried."
)
_ABOVE_LIMIT = (
    "Reserved can exceed the limit: PyTorch checks the request against it, then grows an"
    " expandable segment by whole pages (20 MiB by default)."
)


def _words_of_failed_rows(tuning: Tuning) -> Iterator[Part]:
    """Yields what the peak of a row is that ends out of memory."""
    if _too_large(tuning) or tuning.tried[0].cards:
        return
    if any(tuned.row.oom and not tuned.row.past_failure for tuned in tuning.tried):
        words = "out of memory: the peak is what was reserved when the request failed."
        yield Sentences((words,), is_aside=True, cuts=cut_whole(_CUT_FAILED_ROWS))


def _asides_on_certainty(rows: Sequence[WhatIf]) -> Iterator[Part]:
    yield from why_parts(rows)
    if any(row.confidence == Confidence.EXACT for row in rows):
        words = "exact: the number that PyTorch itself would report."
        yield Sentences((words,), is_aside=True, cuts=cut_whole(_CUT_EXACT))


def _is_recorded(tuning: Tuning, tuned: Tuned) -> bool:
    return tuned.row.settings == tuning.baseline.settings


def _row(tuning: Tuning, tuned: Tuned) -> list[str]:
    """A row's cells, with what is known of the step behind a failure that it gets past."""
    cells = row_cells(tuned.row, tuning.baseline.peak_reserved_bytes)
    finishes = tuned.step_finishes if tuned.row.past_failure else None
    cells = step_cells(cells, finishes)
    if finishes is None and tuned.fails and not tuned.row.oom:
        cells[HEADER.index("outcome")] = FAILS
    return [*cells, _name(tuning, tuned)]


def _is_above_limit(row: WhatIf) -> bool:
    return row.cap_bytes is not None and row.peak_reserved_bytes > row.cap_bytes


def _name(tuning: Tuning, tuned: Tuned) -> str:
    origin = f" ({origin_word(tuning.recorded)})" if _is_recorded(tuning, tuned) else ""
    return f"{conf_name(tuned.row)}{origin}"


def _card_table(tuning: Tuning, listed_rows: Sequence[Tuned]) -> Table:
    """On which cards each setting fits; without room for all of them, the smallest alone."""
    on_cards = [f"on {card_words(card.size_bytes)}" for card in tuning.tried[0].cards]
    peak_name = _PEAK_OF_ANY_SIZE if _exceeds_a_card(listed_rows) else "peak reserved"
    names = [peak_name, "retries", *on_cards, "setting"]
    rows = [_card_row(tuning, tuned, [_fit(card) for card in tuned.cards]) for tuned in listed_rows]
    narrow_names = [peak_name, "retries", "smallest card", "setting"]
    narrow_rows = [_card_row(tuning, tuned, [_smallest_fit(tuned)]) for tuned in listed_rows]
    legend = legend_of(tuning, listed_rows)
    has_several = len(on_cards) > 1
    return replace(
        settings_table(names, rows),
        legend=legend,
        narrow=replace(settings_table(narrow_names, narrow_rows), legend=legend)
        if has_several
        else None,
        least_width=_figures_width([names, *rows]),
    )


_PEAK_OF_ANY_SIZE = "unlimited peak"
_MEANING_OF_PEAK = (
    "unlimited peak: what is reserved where there is room. On a smaller card, PyTorch returns its"
    " cache to the driver first, and so reserves less."
)


def _exceeds_a_card(rows: Sequence[Tuned]) -> bool:
    """Whether a row reserves more than a card has that it fits, or may fit."""
    return any(
        tuned.row.peak_reserved_bytes > card.size_bytes
        for tuned in rows
        for card in tuned.cards
        if card.fits is not False
    )


def _card_row(tuning: Tuning, tuned: Tuned, on_cards: Sequence[str]) -> list[str]:
    row = tuned.row
    return [size_range(row), f"{row.retries:,}", *on_cards, _name(tuning, tuned)]


def _smallest_fit(tuned: Tuned) -> str:
    """The smallest card that a setting fits; else the smallest that it may fit."""
    cards = sorted(tuned.cards, key=lambda card: (card.fits is None, card.size_bytes))
    card = next((card for card in cards if card.fits is not False), None)
    if card is None:
        return "none of them"
    size = card_words(card.size_bytes)
    return _with_retries(size if card.fits else f"maybe {size}", card)


def _figures_width(rows: Sequence[Sequence[str]]) -> int:
    """What the figures alone take, which are never cut."""
    figures = list(zip(*rows, strict=True))[:-1]
    return sum(max(map(len, column)) + 2 for column in figures)


def _outside_words(outside_bytes: int) -> str:
    return (
        f"Each card also needs {format_size(outside_bytes)} for this process outside PyTorch's"
        " allocator. That is included."
    )


def _listed_rows(tuning: Tuning, count: int) -> list[Tuned]:
    """The best rows, the recorded settings, and the worst: common advice that makes it worse
    should be seen.
    """
    tried = list(tuning.tried)
    if len(tried) <= count:
        return tried
    recorded = [tuned for tuned in tried if _is_recorded(tuning, tuned)]
    rows = tried[: count - 2]
    rows += [tuned for tuned in recorded if tuned not in rows]
    worst = tried[-(count - len(rows)) :]
    return rows + [tuned for tuned in worst if tuned not in rows]


def _fit(card: CardUnderSetting) -> str:
    if card.fits is False:
        return "no"
    return _with_retries("yes" if card.fits else "maybe", card)


def _with_retries(answer: str, card: CardUnderSetting) -> str:
    retries = 0 if card.is_undecided else card.row.retries  # those are of the run as predicted
    return f"{answer}, {counted(retries, 'retry', 'retries')}" if retries else answer


def _next(tuning: Tuning) -> Command:
    why, command = _next_step(tuning)
    return Command(why, (command,), is_broken=True)


def _next_step(tuning: Tuning) -> tuple[str, str]:
    """Why, and the command."""
    base, best = tuning.baseline, tuning.best
    if tuning.leaked_per_step is not None:
        return "see what each step leaves behind", f"vramlens leaks {quoted(tuning.source)}"
    if best is not None:
        use, gain = _use_and_gain(tuning, best)
        if base.oom is not False and not base.past_failure:
            gain = "to avoid the failure"
            if tuning.ended_by_failure and not best.step_finishes:
                use, gain = "try this setting", "to get past the failed request"
        return f"{use} {gain}", export_line(tuning.variable, best.row)
    if base.past_failure:
        cap = base.cap_bytes
        more = f"give it {format_size(cap)}" if cap is not None else "give it more memory"
        record = "vramlens run -o run.vram YOUR_SCRIPT.py"
        return f"{more} and record what comes next", record
    if tuning.ended_by_failure:  # explain has said this already, and sends people here
        return _needs(tuning), f"vramlens view {quoted(tuning.source)}"
    return "see what uses the memory", f"vramlens explain {quoted(tuning.source)}"


def _use_and_gain(tuning: Tuning, best: Tuned) -> tuple[str, str]:
    """What to do with the best setting, and what that brings, where no failure is to be avoided."""
    card = tuning.card_of_best
    if card is None:
        return "use this setting", f"to save {format_size(best.saved_bytes)}"
    if card.fits:
        return "use this setting", f"to fit {a_card(card.size_bytes)}"
    return "try this setting,", f"which may fit {a_card(card.size_bytes)}"


def _needs(tuning: Tuning) -> str:
    """What would get past a failure that no setting avoids."""
    base, limit = tuning.baseline, tuning.step_limit
    if limit is not None:
        return _by_limit(limit, base.cap_bytes or 0)
    if not base.oom or base.failed_bytes is None:
        return "use a higher limit, or see what could be smaller"
    return (
        f"allow at least {format_size(base.peak_reserved_bytes + base.failed_bytes)} for this"
        " request, or see what could be smaller"
    )


def _by_limit(limit: LimitAdvice, cap_bytes: int) -> str:
    """What ``vramlens explain`` advises of the limit, in fewer words."""
    if limit.most_bytes is not None:
        most = format_size(limit.most_bytes)
        return f"see what could be smaller: {limit.needs}, and this process can have {most}"
    if limit.bytes is None:
        least = format_size(limit.least_bytes)
        bound = "more than" if least == format_size(cap_bytes) else "at least"
        for_what = "for this request" if limit.is_of_request else "as far as known"
        return f"allow {bound} {least} ({for_what}), or see what could be smaller"
    least = "at least " if limit.is_least else ""
    words = f"allow {least}{format_size(limit.bytes)}, or see what could be smaller; {limit.needs}"
    return f"{words}; {limit.caveat[0].lower()}{limit.caveat[1:]}" if limit.caveat else words
