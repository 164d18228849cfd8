"""The story of a replay: the answer first, then the proof, then the table and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.ground.verdict import Confidence
from vramlens.report.document import (
    Blank,
    Column,
    Command,
    Document,
    Heading,
    LastColumn,
    Part,
    Sentences,
    Table,
)
from vramlens.report.wording import quoted, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.replay import Answer, Recorded, WhatIf

HEADER = ("peak reserved", "change", "retries", "failed", "outcome", "basis", "setting")
_WORDS = ("outcome", "basis", "smallest card", "setting")
"""The columns that are words, aligned to the left."""
# What says nothing where every row says it.
_DULL = {"change": {""}, "retries": {"0"}, "failed": {"0"}, "outcome": {"completes", "completed"}}

STEP_FINISHES, STEP_FAILS, GETS_PAST = "step finishes", "fails later", "gets past it"
FAILS = "step fails"
STEP_LEGEND = (
    (
        STEP_FINISHES,
        "step finishes: the failed step, continued like an earlier one, fits",
    ),
    (
        STEP_FAILS,
        "fails later: the failed request fits, and a later one of the step does not",
    ),
    (
        GETS_PAST,
        "gets past it: the failed request fits; whether the rest of the step does is unknown",
    ),
    (
        FAILS,
        "step fails: at the failed request, or at a later one of the step",
    ),
    (
        "unknown",
        "unknown: it depends on where the driver places segments, or on the exact limit",
    ),
)
"""What an outcome says of the step behind the failed request, by the word of ``explain``."""
TRY_UNLESS_REFUTED = "try this setting: whether the rest of the step fits is not known"
"""Why to use what gets past a failure, where nothing tells how the step goes on."""


def replay_document(answer: Answer) -> Document:
    """The answer of ``vramlens replay`` in parts."""
    other_settings = [row for row in answer.what_if if not _is_recorded(answer, row)]
    proof = proof_sentence(answer.recorded)
    parts: list[Part] = [
        Heading(best_headline(answer, other_settings) if other_settings else proof)
    ]
    if other_settings:
        parts.append(Sentences((proof,)))
    parts += [
        Blank(),
        _table(answer, other_settings),
        *_limit_notes(answer, other_settings),
        *why_parts(other_settings),
        *missing_parts(answer.missing),
        Blank(),
        _next(answer, other_settings),
    ]
    return Document(tuple(parts))


def conf_name(row: WhatIf) -> str:
    """The settings, as a person would name them."""
    return visible(row.settings.conf) or "default settings"


def _is_recorded(answer: Answer, row: WhatIf) -> bool:
    return row.settings == answer.recorded.settings and row.cap_bytes == answer.recorded.limit.bytes


def best_headline(answer: Answer, rows: Sequence[WhatIf]) -> str:
    """The answer in one sentence: the best of some settings against what was recorded."""
    order = {False: 0, None: 1, True: 2}
    best = min(
        rows,
        key=lambda row: (
            not row.past_failure,
            _AFTER_FAILURE[answer.step_finishes(row)],
            order[row.oom],
            row.high_bytes,
            row.retries,
        ),
    )
    name, under = conf_name(best), under_limit(answer.recorded, best)
    if best.oom:
        failure = failure_words(answer, best)
        return f"With {name}, the run would have run out of memory{under}: {failure}."
    peak = format_size(best.peak_reserved_bytes)
    if best.past_failure:
        return _past_failure(answer, best)
    if best.oom is None:
        why = "the answer depends on the order in which the driver places segments"
        if best.failed_requests:
            why = failure_words(answer, best)
        return f"It is unknown whether the run would have completed with {name}{under}: {why}."
    against = _against_recorded(answer.recorded, best)
    return f"With {name}, the run would have reserved {peak} at its peak{under}: {against}."


_AFTER_FAILURE = {True: 0, None: 1, False: 2}


def _past_failure(answer: Answer, row: WhatIf) -> str:
    """What a setting leads to that gets past the failed request, as far as that is known."""
    name, under = conf_name(row), under_limit(answer.recorded, row)
    finishes = answer.step_finishes(row)
    peak_bytes = None if answer.failed_step is None else answer.failed_step.peak_bytes(row.settings)
    if finishes and peak_bytes is not None:
        return (
            f"With {name}, the step that failed finishes{under}, with {format_size(peak_bytes)}"
            " reserved. What would have come after it is not recorded."
        )
    if finishes is False:
        return (
            f"{name} gets past this request only; the step still fails later{under}"
            " (`vramlens explain` says why)."
        )
    return (
        f"With {name}, the run would have gotten past its failure{under}, with"
        f" {format_size(row.peak_reserved_bytes)} reserved. What would have come next is not"
        " recorded."
    )


def step_cells(cells: Sequence[str], finishes: bool | None) -> list[str]:
    """A row's cells, with what is known of the step behind a failure that it gets past."""
    with_step = list(cells)
    if finishes is not None:
        with_step[HEADER.index("outcome")] = STEP_FINISHES if finishes else STEP_FAILS
    return with_step


def _against_recorded(recorded: Recorded, row: WhatIf) -> str:
    saved_bytes = recorded.peak_reserved_bytes - row.peak_reserved_bytes
    origin = origin_word(recorded)
    if not saved_bytes:
        return f"the same as {origin}"
    direction = "less" if saved_bytes > 0 else "more"
    return f"{format_size(abs(saved_bytes))} {direction} than {origin}"


def under_limit(recorded: Recorded, row: WhatIf) -> str:
    """What bounded a run, as the end of a sentence's part; an inferred limit is known only
    roughly.
    """
    if row.cap_bytes is None:
        return ""
    if recorded.limit.source == "inferred" and row.cap_bytes == recorded.limit.bytes:
        return " under the limit of the recorded run"
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
    return f"a request for {size}{at} fails (event {row.oom_event:,}{many})"


def proof_sentence(recorded: Recorded) -> str:
    """How far the replay under the recorded settings is exact."""
    rules = f"rules of PyTorch {recorded.version.name}"
    if recorded.is_prediction:
        return f"Estimated: these requests are predicted; no GPU recorded them ({rules})."
    if recorded.exact:
        allocations = counted(recorded.addresses, "allocation")
        events = counted(recorded.segment_events, "segment event")
        return f"The replay is exact: all {allocations} and {events} match the recording ({rules})."
    difference = recorded.first_difference
    sentence = (
        f"The replay under the recorded settings is not exact: {recorded.addresses_matched:,} of"
        f" {recorded.addresses:,} allocations got the recorded address."
    )
    if difference is not None:
        sentence += (
            f" It first differs at event {difference.event:,}: the recording has "
            f"{difference.recorded}, the replay has {difference.simulated}: {difference.why}."
        )
    return sentence


def recorded_cells(answer: Answer) -> list[str]:
    """The recorded run as the first row."""
    recorded = answer.recorded
    outcome = "out of memory" if answer.ended_by_failure else "completed"
    size = format_size(recorded.peak_reserved_bytes)
    failed = f"{recorded.failed_requests:,}"
    return [size, "", f"{recorded.retries:,}", failed, outcome, origin_word(recorded)]


def own_settings(recorded: Recorded) -> str:
    """The settings that the run had, in words: a prediction recorded none."""
    return "the settings as they are" if recorded.is_prediction else "the recorded settings"


def origin_word(recorded: Recorded) -> str:
    """``recorded``, or ``predicted``: where the requests come from."""
    return "predicted" if recorded.is_prediction else "recorded"


def row_cells(row: WhatIf, recorded_bytes: int) -> list[str]:
    """Peak, change, retries, failed requests, outcome and confidence of one row."""
    return [
        size_range(row),
        _change_words(row, recorded_bytes),
        f"{row.retries:,}",
        f"{row.failed_requests:,}",
        outcome_words(row),
        row.confidence,
    ]


def _change_words(row: WhatIf, recorded_bytes: int) -> str:
    """The change of the peak; nothing where that is a range, nor unless the program surely lives or
    gets past its failure, since a lower peak saves nothing else.
    """
    change = row.peak_reserved_bytes - recorded_bytes
    if format_size(row.low_bytes) != format_size(row.high_bytes):
        return ""
    if not change:
        return "none"
    if row.oom is not False and not row.past_failure:
        return ""
    return f"{'+' if change > 0 else ''}{format_size(change)}"


def outcome_words(row: WhatIf) -> str:
    """What would have become of the program."""
    if row.past_failure:
        return GETS_PAST
    return {False: "completes", True: "out of memory", None: "unknown"}[row.oom]


def size_range(row: WhatIf) -> str:
    """Peak reserved; its range where that is wider than what is printed."""
    low, middle, high = (
        format_size(size) for size in (row.low_bytes, row.peak_reserved_bytes, row.high_bytes)
    )
    if low == high:
        return middle
    number, unit = low.split(" ")
    return f"{number} to {high}" if high.endswith(unit) else f"{low} to {high}"


def _table(answer: Answer, others: Sequence[WhatIf]) -> Table:
    name = visible(answer.recorded.settings.conf) or "default settings"
    own_name = f"{name} ({origin_word(answer.recorded)})" if others else name
    rows = [[*recorded_cells(answer), own_name]]
    base = answer.recorded.peak_reserved_bytes
    rows += [
        [*step_cells(row_cells(row, base), answer.step_finishes(row)), conf_name(row)]
        for row in others
    ]
    return replace(settings_table(HEADER, rows), legend=STEP_LEGEND)


def settings_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Rows of settings; the columns that say nothing are left out.

    A setting is never cut.
    """
    telling = [
        at
        for at, name in enumerate(names)
        if not {row[at] for row in rows} <= _DULL.get(name, set())
    ]
    columns = tuple(Column(names[at], is_right=names[at] not in _WORDS) for at in telling)
    cells = tuple(tuple(row[at] for at in telling) for row in rows)
    return Table(columns, cells, LastColumn.AS_A_NAME)


def _limit_notes(answer: Answer, others: Sequence[WhatIf]) -> Iterator[Part]:
    """Yields what bounded the runs, and what is replayed apart."""
    recorded = answer.recorded
    if others and others[0].cap_bytes is not None:
        yield aside(f"limit: {format_size(others[0].cap_bytes)} reserved")
    limit = recorded.limit
    if limit.source == "inferred" and limit.bytes is not None:
        below = limit.below_bytes
        bound = f", but below {format_size(below)}" if below is not None else ""
        at_least = format_size(limit.bytes)
        yield aside(f"the exact limit of the recorded run is unknown: {at_least} or more{bound}")
    if recorded.private_pools:
        pools = recorded.private_pools
        named = ", ".join(
            str(pool) if pool[0] >= 0 else "one that no longer exists" for pool in pools
        )
        yield aside(
            f"private pools ({counted(len(pools), 'pool')}: {named}) are replayed separately"
        )


def aside(text: str) -> Sentences:
    """A sentence beside the answer."""
    return Sentences((text,), is_aside=True)


def missing_parts(missing: Sequence[str]) -> Iterator[Part]:
    """Yields what the recording does not hold."""
    if missing:
        yield Sentences(("; ".join(missing) + ".",), "missing: ", is_aside=True)


def why_parts(rows: Sequence[WhatIf]) -> Iterator[Part]:
    """Yields what makes rows less than exact, each reason once."""
    for confidence in (Confidence.BOUNDED, Confidence.CONDITIONAL):
        uncertain = (row for row in rows if row.confidence == confidence)
        reasons = dict.fromkeys(why for row in uncertain for why in row.why)
        if reasons:
            words = f"{'; '.join(reasons)}."
            yield Sentences((words,), f"{confidence}: ", is_aside=True)


def _next(answer: Answer, others: Sequence[WhatIf]) -> Command:
    better = [row for row in others if _is_better(answer.recorded, row)]
    if better and all(answer.step_finishes(row) is False for row in better):
        command = f"vramlens explain {quoted(answer.source)}"
        return Command("see what the rest of the step needs", (command,), is_broken=True)
    if not better:
        command = f"vramlens tune {quoted(answer.source)}"
        return Command("find settings that help", (command,), is_broken=True)
    best = min(
        better,
        key=lambda row: (
            row.oom is None,
            _AFTER_FAILURE[answer.step_finishes(row)],
            row.high_bytes,
        ),
    )
    saved_bytes = answer.recorded.peak_reserved_bytes - best.high_bytes
    reason = f"use this setting to reserve {format_size(saved_bytes)} less"
    if best.past_failure:
        reason = TRY_UNLESS_REFUTED
        if answer.step_finishes(best):
            reason = "use this setting to avoid the failure"
    return Command(reason, (export_line(answer.variable, best),), is_broken=True)


def _is_better(recorded: Recorded, row: WhatIf) -> bool:
    if row.settings == recorded.settings:
        return False
    saves = row.oom is False and row.high_bytes < recorded.peak_reserved_bytes
    return row.past_failure or saves


def export_line(variable: str, row: WhatIf) -> str:
    """The line to paste before a run."""
    from vramlens.replay.answer import assignment

    return f"export {visible(assignment(variable, row.settings.conf))}"
