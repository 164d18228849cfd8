"""The story of a check, and of a budget that was updated: the answer first, then each limit, then
what broke it, what is next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vramlens.analyses.budget.broken_limits import shown
from vramlens.report.document import (
    Blank,
    Column,
    Command,
    Document,
    Form,
    Heading,
    Items,
    LastColumn,
    Part,
    Sentences,
    Table,
    Tone,
)
from vramlens.report.wording import quoted, sentence, visible
from vramlens.units import counted

if TYPE_CHECKING:
    from vramlens.analyses.budget.broken_limits import Result
    from vramlens.analyses.budget.budget import Check
    from vramlens.analyses.budget.budget_update import Update
    from vramlens.analyses.budget.predicted_script import PredictedScript
    from vramlens.analyses.finding import Finding

_NARROWEST_NAME = 12
_OUTCOME = 8 + len("over (vram.toml:44)")  # and the space between columns


def headline(check: Check) -> str:
    """The answer in one sentence."""
    if check.passed:
        tightest = _tightest(check)
        is_closest = " is closest" if len(check.results) > 1 else ""
        nearest = (
            f"; {visible(tightest.limit.scope)}{is_closest}: {_room(tightest)}" if tightest else ""
        )
        on_ranks = f" on all {counted(len(check.ranks), 'rank')}" if check.ranks else ""
        return f"Within budget: {_all_limits(len(check.results))} met{on_ranks}{nearest}."
    return (
        f"{'Over budget' if _over(check) else 'Cannot tell'}: {visible(check.findings[0].title)}."
    )


def _all_limits(count: int) -> str:
    return "the only limit is" if count == 1 else f"all {count:,} limits are"


def _over(check: Check) -> bool:
    return any(result.passed is False for result in check.results)


def _room(result: Result) -> str:
    """What is left of a limit that holds, and of how much: two sizes that round to the same say
    nothing.
    """
    room = shown(result.limit.kind, max(0, result.limit.value - (result.value or 0)))
    where = "" if result.rank is None else f" on rank {result.rank}"
    return f"{room} below its limit of {shown(result.limit.kind, result.limit.value)}{where}"


def _tightest(check: Check) -> Result | None:
    """The limit that has the smallest share of itself left."""
    used = [
        (result.value / result.limit.value, result)
        for result in check.results
        if result.limit.value and result.value
    ]
    return max(used, key=lambda pair: pair[0])[1] if used else None


def check_document(check: Check) -> Document:
    """The answer, each limit, and what broke it; on a screen the worst of it comes first."""
    badge = "✅" if check.passed else "❌"
    why, command = next_step(check)
    tone = Tone.GOOD if check.passed else Tone.BAD if _over(check) else Tone.OPEN
    parts: list[Part] = [Heading(headline(check), badge=badge, tone=tone)]
    for finding in check.findings[:1]:
        parts += _evidence(finding, command)
    parts += [Blank(), _table(check), Sentences(tuple(map(visible, check.notes)), "note: ")]
    for finding in check.findings[1:]:
        title = sentence(visible(finding.title))
        parts += [Blank(), Sentences((title,), forms=Form.TEXT), *_evidence(finding, command)]
    for finding in check.findings:
        parts += _markdown_evidence(finding)
    parts += [Blank(), Command(why, (command,), is_broken=True)]
    return Document(tuple(parts))


def _evidence(finding: Finding, next_command: str) -> Iterator[Part]:
    """Yields what a claim rests on, and its fix unless that is the next step of the answer."""
    yield Items(tuple(map(visible, finding.evidence)), hang=4, forms=Form.TEXT)
    if finding.fix and next_command not in finding.fix:
        yield Sentences((visible(finding.fix),), "  Do: ", forms=Form.TEXT)


def _markdown_evidence(finding: Finding) -> Iterator[Part]:
    words = [visible(text) for text in finding.evidence]
    if finding.fix:
        words.append(f"Do: {visible(finding.fix)}")
    if words:
        yield Heading(sentence(visible(finding.title)), level=2, forms=Form.MARKDOWN)
        yield Items(tuple(words), forms=Form.MARKDOWN)


def _table(check: Check) -> Table:
    columns = (
        Column("", is_right=False, least=_NARROWEST_NAME),
        Column("limit"),
        Column("value"),
        Column("", is_right=False),
    )
    rows = tuple(_row(result, check.budget) for result in check.results)
    return Table(columns, rows, LastColumn.WRAPPED, hang=6, last_room=_OUTCOME)


def _row(result: Result, budget: str) -> tuple[str, str, str, str]:
    limit = shown(result.limit.kind, result.limit.value)
    value = shown(result.limit.kind, result.value) if result.value is not None else "unknown"
    outcome = {True: "ok", False: "over", None: "cannot tell"}[result.passed]
    if result.rank is not None:
        outcome = f"{outcome} on rank {result.rank}"
    if result.why and result.passed is not None:  # else a claim below says why
        outcome = f"{outcome}: {visible(result.why)}"
    if result.limit.line and not result.passed:
        outcome = f"{outcome} ({visible(budget)}:{result.limit.line})"
    return visible(result.limit.scope), limit, value, outcome


def _next_of_prediction(check: Check, predicted: PredictedScript) -> tuple[str, str]:
    if check.passed:
        budget = ("--budget", check.budget) if check.budget else ()
        options = ("--predict", *budget, "--format", "github")
        return (
            f"enforce {'the budget' if budget else 'this'} in every pull request",
            predicted.command("check", options=options),
        )
    return "see what uses the predicted memory", predicted.command("predict")


def next_step(check: Check) -> tuple[str, str]:
    """What to do with the answer, and the command."""
    source, budget = quoted(check.source), quoted(check.budget)
    if check.predicted is not None:
        why, command = _next_of_prediction(check, check.predicted)
        return why, visible(command)
    recording = source if check.worst_recording is None else quoted(check.worst_recording)
    if check.passed:
        return (
            "enforce the budget in every pull request",
            f"vramlens check {source} --budget {budget} --format github",
        )
    if not _over(check):
        return "record what the limits need", "vramlens run -o run.vram YOUR_SCRIPT.py"
    if any(map(_says_what_failed, check.results)):
        return "find out what failed and why", f"vramlens explain {recording}"
    if any(map(_is_over_growth, check.results)):
        return "see what each step leaves behind", f"vramlens leaks {recording}"
    return "if this is intended, raise the budget and have the change reviewed", (
        f"vramlens check {source} --budget {budget} --update"
    )


def _says_what_failed(result: Result) -> bool:
    return result.limit.path[0] == "out_of_memory" and bool(result.why) and not result.passed


def _is_over_growth(result: Result) -> bool:
    return result.limit.path[0] == "growth_per_step" and result.passed is False


def update_document(
    update: Update, budget: str, *, is_new: bool, next_step: tuple[str, str]
) -> Document:
    """What became of a budget file; ``next_step`` is why, and the command."""
    done = "written" if is_new else "updated" if update.changes else "unchanged"
    limits = [
        f"{scope}: {now}" if before is None else f"{scope}: {before} before, {now} now"
        for scope, before, now in update.changes
    ]
    stays = "left out" if is_new else "as it was"
    limits += [f"{scope}: {stays}, because it is unknown: {why}" for scope, why in update.untold]
    why, command = next_step
    return Document(
        (
            Heading(visible(f"{budget}: {done}.")),
            Items(tuple(map(visible, limits)), hang=4),
            Sentences(tuple(map(visible, update.notes)), "note: "),
            Blank(),
            Command(why, (visible(command),), is_broken=True),
        )
    )
